"""Models of transformers with our heads: the Trainer, files, x-vectors, Accelerate. Models are tiny and random."""

import copy
import json
import os

import pytest
import torch
import torch.distributed as dist
from absent import assert_told_what_to_install
from team import ranks

import hypermargin as hm

pytest.importorskip("transformers", reason="needs transformers: make test-integrations")
accelerate = pytest.importorskip("accelerate", reason="needs accelerate: make test-integrations")
import transformers  # noqa: E402
from tiny_models import (  # noqa: E402
    BACKBONES,
    CLASSES,
    DIM,
    N,
    Pictures,
    bert,
    resnet,
    sentences,
    small_bert,
    tones,
    vit,
    wav2vec2,
    x_vector,
)

from hypermargin.integrations.huggingface import WithHead, restore_x_vector, x_vector_head  # noqa: E402

LABELS = torch.arange(N) % CLASSES


def made(backbone=vit, name="arcface", **more):
    torch.manual_seed(0)
    network, inputs = backbone()
    return WithHead(network, hm.create_head(name, DIM, CLASSES, **more)), inputs


@pytest.mark.parametrize("backbone", BACKBONES, ids=lambda f: f.__name__)
def test_train_and_evaluate_saved_and_loaded(backbone, tmp_path):
    model, inputs = made(backbone)
    before = copy.deepcopy(model.backbone.state_dict())
    assert all(torch.equal(model.backbone.state_dict()[key], value) for key, value in before.items())
    trained = model.train()(**inputs, labels=LABELS)
    trained.loss.backward()
    assert trained.logits is None
    assert next(model.backbone.parameters()).grad is not None
    with torch.no_grad():
        seen = model.eval()(**inputs, labels=LABELS)
        assert torch.equal(seen.logits, model.head.logits(model.embed(**inputs)))  # without a margin
        assert torch.equal(seen.loss, model.head(model.embed(**inputs), LABELS))  # with it
        model.save_pretrained(tmp_path)
        again = WithHead.from_pretrained(tmp_path).eval()(**inputs, labels=LABELS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    assert torch.equal(again.logits, seen.logits)
    assert torch.equal(again.loss, seen.loss)


COUNTED = ("balanced-softmax", "kappaface", "ldam", "logit-adjustment", "vs")


@pytest.mark.parametrize("name", hm.list_heads())
def test_every_head_comes_back_from_its_file(name, tmp_path):
    more = {"counts": list(range(1, CLASSES + 1))} if name in COUNTED else {}
    model, inputs = made(name=name, **more)
    model.train()(**inputs, labels=LABELS)  # its state moves on
    model.save_pretrained(tmp_path)
    again = WithHead.from_pretrained(tmp_path)
    assert str(again.head) == str(model.head)
    state = again.state_dict()
    assert all(torch.equal(state[key], value) for key, value in model.state_dict().items())
    losses = [each.train()(**inputs, labels=LABELS).loss for each in (model, again)]
    assert torch.equal(*losses)


def test_what_a_file_cannot_name_is_given_again(tmp_path):
    torch.manual_seed(0)
    head = hm.create_head("arcface", DIM, CLASSES, row_terms=[hm.terms.RingLoss()])
    network = torch.nn.Linear(4, DIM)
    network.forward = lambda pixel_values: torch.nn.functional.linear(pixel_values, network.weight, network.bias)
    model = WithHead(network, head).eval()
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["backbone_spec"], config["head_spec"]) == (None, None)
    with pytest.raises(ValueError, match=r"from_pretrained\(…, backbone=net\)"):
        WithHead.from_pretrained(tmp_path)
    other = torch.nn.Linear(4, DIM)
    other.forward = lambda pixel_values: torch.nn.functional.linear(pixel_values, other.weight, other.bias)
    with pytest.raises(ValueError, match=r"from_pretrained\(…, head=head\)"):
        WithHead.from_pretrained(tmp_path, backbone=other)
    fresh = hm.create_head("arcface", DIM, CLASSES, row_terms=[hm.terms.RingLoss()])
    again = WithHead.from_pretrained(tmp_path, backbone=other, head=fresh).eval()
    x = torch.randn(3, 4)
    assert torch.equal(again(pixel_values=x).logits, model(pixel_values=x).logits)


def test_a_file_names_models_of_transformers_alone(tmp_path):
    made()[0].save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["backbone_spec"]["class"] = "pipeline"
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="names the backbone 'pipeline', which is no model"):
        WithHead.from_pretrained(tmp_path)


def test_padding_does_not_count():
    model, inputs = made(bert)
    model.eval()
    short = {key: value[:1, :3] for key, value in inputs.items()}  # row 0 has 3 tokens
    torch.testing.assert_close(model.embed(**inputs)[:1], model.embed(**short), rtol=1e-4, atol=1e-5)
    model, inputs = made(wav2vec2)
    model.eval()
    hidden = model.backbone(**inputs).last_hidden_state
    frames = int(model.backbone._get_feat_extract_output_lengths(inputs["attention_mask"].sum(1))[0])
    assert frames < hidden.shape[1]
    torch.testing.assert_close(model.embed(**inputs)[0], hidden[0, :frames].mean(0))


def test_pool_project_and_what_evaluation_returns():
    network, inputs = vit()
    hidden = network.eval()(**inputs).last_hidden_state
    head = hm.create_head("cosface", 3, CLASSES)
    model = WithHead(network, head, pool="first", project=DIM, returns="embeddings").eval()
    found = model(**inputs)
    assert found.logits is None
    torch.testing.assert_close(found.embeddings, model.projection(hidden[:, 0]))
    own = WithHead(network, head, pool=lambda output, inputs: output.last_hidden_state[:, -1, :3]).eval()
    torch.testing.assert_close(own.embed(**inputs), hidden[:, -1, :3])
    with pytest.raises(ValueError, match=r"shape \(6, 16\), and head.dim is 3.*project=16"):
        WithHead(network, head).eval()(**inputs)
    with pytest.raises(ValueError, match=r"labels are needed in training.*label_smoothing"):
        model.train()(**inputs)
    with pytest.raises(TypeError, match="head must be a MarginHead"):
        WithHead(network, torch.nn.Linear(3, 4))


def arguments(folder, **more):
    settings = {
        "output_dir": str(folder), "use_cpu": True, "report_to": [], "num_train_epochs": 4, "disable_tqdm": True,
        "per_device_train_batch_size": 12, "learning_rate": 5e-3, "save_strategy": "epoch", "seed": 3,
        "logging_strategy": "no",
    }  # fmt: skip
    return transformers.TrainingArguments(**settings | more)


def accuracy(found):
    return {"accuracy": float((found.predictions.argmax(-1) == found.label_ids).mean())}


def test_the_trainer_trains_evaluates_and_resumes(tmp_path):
    def trainer(**more):
        # A resumed ViT misses its layers, with transformers 5.23 alone too.
        model, _ = made(resnet, scale=8.0, m=0.2)
        return transformers.Trainer(
            model, arguments(tmp_path / "run", **more), train_dataset=Pictures(), eval_dataset=Pictures(30),
            compute_metrics=accuracy,
        )  # fmt: skip

    whole = trainer()
    assert whole.label_names == ["labels"]
    whole.train()
    seen = whole.evaluate()
    assert seen["eval_accuracy"] > 0.9
    model = whole.model.eval()
    pictures = Pictures(30)
    with torch.no_grad():
        value = model(pixel_values=pictures.pictures, labels=pictures.labels)
    assert seen["eval_loss"] == pytest.approx(value.loss.item(), rel=1e-4)

    resumed = trainer()
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-10"))
    for key, tensor in whole.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[key], tensor), key
    loaded = WithHead.from_pretrained(tmp_path / "run" / "checkpoint-20").eval()
    with torch.no_grad():
        assert torch.equal(loaded(pixel_values=pictures.pictures).logits, value.logits)


@pytest.mark.parametrize(
    ("network", "samples"),
    [(small_bert, sentences), (lambda: wav2vec2()[0], tones)],
    ids=["text", "sound"],
)
def test_the_trainer_with_padded_rows_of_different_lengths(network, samples, tmp_path):
    torch.manual_seed(0)
    data, processor = samples()
    model = WithHead(network(), hm.create_head("arcface", DIM, CLASSES, scale=8.0, m=0.2))
    trainer = transformers.Trainer(
        model, arguments(tmp_path, num_train_epochs=15, learning_rate=1e-2, save_strategy="no"), train_dataset=data,
        eval_dataset=data, compute_metrics=accuracy, data_collator=transformers.DataCollatorWithPadding(processor),
    )  # fmt: skip
    trainer.train()
    assert trainer.evaluate()["eval_accuracy"] > 0.9


def test_accumulated_gradients_are_those_of_one_batch(tmp_path):
    states = []
    for size, parts in ((12, 1), (6, 2)):
        model, _ = made(scale=8.0)
        more = {"per_device_train_batch_size": size, "gradient_accumulation_steps": parts, "max_steps": 3}
        more |= {"optim": "sgd", "save_strategy": "no", "max_grad_norm": 0.0}
        transformers.Trainer(model, arguments(tmp_path, **more), train_dataset=Pictures()).train()
        states.append(model.state_dict())
    for key, tensor in states[0].items():
        torch.testing.assert_close(states[1][key], tensor, rtol=1e-4, atol=1e-6)


def test_x_vector_models_take_a_head_and_give_it_back(tmp_path):
    torch.manual_seed(0)
    model, inputs = x_vector()
    model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    state = torch.get_rng_state()
    theirs = model(**inputs, labels=LABELS).loss
    head = x_vector_head(model)
    torch.set_rng_state(state)
    ours = model(**inputs, labels=LABELS).loss
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    assert (float(head.scale), head.margin.m) == pytest.approx((30.0, 0.4))
    ours.backward()
    assert head.weight.grad is not None

    restore_x_vector(model)
    x_vector_head(model, "arcface", m=0.3)
    restore_x_vector(model)
    model.save_pretrained(tmp_path)
    again = transformers.Wav2Vec2ForXVector.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        torch.testing.assert_close(again(**inputs, labels=LABELS).loss, model.eval()(**inputs, labels=LABELS).loss)
    with pytest.raises(TypeError, match="model must be an x-vector model"):
        x_vector_head(vit()[0])


def parts(**more):
    torch.manual_seed(0)
    head = hm.create_head("arcface", DIM, CLASSES, scale=8.0, **more)
    torch.manual_seed(1)
    return torch.nn.Linear(4, DIM), head, torch.randn(8, 4), torch.arange(8) % CLASSES


STORE = {"MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}  # needed, and not used: the group is there


def accelerated(sharded):
    """Two steps by one of two processes, with Accelerate: the head's first rows, the network's last weights."""
    rank = dist.get_rank()
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"} | STORE
    network, head, x, y = parts(**({"shard": hm.Shard()} if sharded else {}))
    rows, first = slice(4 * rank, 4 * rank + 4), head.weight.tolist()
    accelerator = accelerate.Accelerator(cpu=True)
    assert accelerator.num_processes == 2
    if sharded:  # its gradients are complete on every rank, so only the network is prepared
        own = torch.optim.SGD(head.parameters(), lr=0.1)
        network, optimizer = accelerator.prepare(network, torch.optim.SGD(network.parameters(), lr=0.1))
        optimizers = (optimizer, own)
    else:
        both = [*network.parameters(), *head.parameters()]
        network, head, *optimizers = accelerator.prepare(network, head, torch.optim.SGD(both, lr=0.1))
    for _ in range(2):
        for each in optimizers:
            each.zero_grad()
        accelerator.backward(head(network(x[rows]), y[rows]))
        for each in optimizers:
            each.step()
    return first, accelerator.unwrap_model(network).weight.tolist()


@pytest.mark.parametrize("sharded", [False, True])
def test_two_processes_with_accelerate_are_one(sharded):
    found = ranks(2, "test_huggingface", "accelerated", sharded)
    assert all(isinstance(each, tuple) for each in found), found
    network, head, x, y = parts()
    with torch.no_grad():
        head.weight.copy_(torch.tensor([*found[0][0], *found[1][0]] if sharded else found[0][0]))
    optimizer = torch.optim.SGD([*network.parameters(), *head.parameters()], lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        head(network(x), y).backward()
        optimizer.step()
    for _, weight in found:
        torch.testing.assert_close(torch.tensor(weight), network.weight.detach(), rtol=1e-5, atol=1e-6)


def test_without_the_package_the_error_says_what_to_install():
    assert_told_what_to_install("huggingface", "transformers", "huggingface")
