"""Hugging Face: models of transformers, or any other, with a head of this library, for its Trainer and Accelerate.

    from hypermargin.integrations.huggingface import WithHead

    backbone = AutoModel.from_pretrained("facebook/dinov2-small")
    model = WithHead(backbone, hypermargin.create_head("arcface", 384, classes))
    Trainer(model, arguments, train_dataset=…, eval_dataset=…, compute_metrics=…).train()
    model.save_pretrained("faces")
    model = WithHead.from_pretrained("faces")

`x_vector_head` puts a head into the x-vector models of transformers, which have AM-Softmax built in.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from hypermargin import checks
from hypermargin.family import create_head
from hypermargin.head import MarginHead
from hypermargin.heads.weights import by_class
from hypermargin.integrations import missing
from hypermargin.integrations._plain_head import from_plain, to_plain

try:
    import transformers
    from transformers import AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel
    from transformers.utils import ModelOutput
except ModuleNotFoundError as error:
    raise missing(error, "transformers", "transformers", "huggingface") from None

__all__ = ["HeadOutput", "WithHead", "WithHeadConfig", "restore_x_vector", "x_vector_head"]

Pool = Literal["auto", "pooler", "mean", "first"]
Returns = Literal["logits", "embeddings"]
POOLED = ("pooler_output", "embeddings", "image_embeds", "text_embeds")  # what models call one vector per row


class WithHeadConfig(PretrainedConfig):
    """What `WithHead.from_pretrained` makes a model from: config.json. None stands for what a file cannot name."""

    model_type = "hypermargin"

    def __init__(
        self,
        backbone_spec: dict[str, Any] | None = None,
        head_spec: dict[str, Any] | None = None,
        pooling: Pool = "auto",
        project: int | None = None,
        returns: Returns = "logits",
        **others: Any,
    ) -> None:
        # Other names than the arguments of WithHead, which from_pretrained would take for settings of the config.
        self.backbone_spec, self.head_spec, self.pooling = backbone_spec, head_spec, pooling
        self.project, self.returns = project, returns
        super().__init__(**others)


@dataclass
class HeadOutput(ModelOutput):
    """What `WithHead` returns: the loss if there are labels, and in evaluation the logits or the embeddings."""

    loss: Tensor | None = None
    logits: Tensor | None = None
    embeddings: Tensor | None = None


class WithHead(PreTrainedModel):
    """A network with a head on its pooled output, as the Trainer of transformers likes its models.

    - backbone: a model of transformers, or any module that returns features or such an output
    - head: a `MarginHead` of as many dimensions as the features have
    - pool: "auto" is the model's own pooled output if it has one, and else the mean over tokens, patches or frames,
      without the padding; "mean", "first" and "pooler" are said outright; a function of output and inputs is yours
    - project: the number of features, if a linear layer is to make `head.dim` of them
    - returns: "logits" or "embeddings", what evaluation gets besides the loss

    In training the forward needs labels and returns the loss alone, so no N×C logits are held. In evaluation they
    are without the margin. `embed` returns the embeddings.

    `save_pretrained` writes config.json and model.safetensors, `from_pretrained` reads them. What a file cannot
    name (a backbone of your own, a head with row terms) is given again: `from_pretrained(folder, backbone=…,
    head=…)`.
    """

    config_class = WithHeadConfig
    base_model_prefix = "backbone"
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = False  # else the Trainer would leave out the division by its accumulation steps
    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = _supports_attention_backend = True

    def __init__(
        self,
        network: nn.Module | WithHeadConfig | None = None,
        /,
        head: MarginHead | None = None,
        *,
        backbone: nn.Module | None = None,
        pool: Pool | Callable[[Any, dict[str, Any]], Tensor] = "auto",
        project: int | None = None,
        returns: Returns = "logits",
    ) -> None:
        from_file = isinstance(network, WithHeadConfig)
        if isinstance(network, WithHeadConfig):
            config = network
            backbone = _backbone(config) if backbone is None else backbone
            head = _head(config) if head is None else head
            pool, project, returns = config.pooling if pool == "auto" else pool, config.project, config.returns
        else:
            backbone = network if backbone is None else backbone
            checks.instance("backbone", backbone, nn.Module, "AutoModel.from_pretrained(…)")
            checks.instance("head", head, MarginHead, 'hypermargin.create_head("arcface", 512, classes)')
            assert backbone is not None
            assert head is not None
            config = _config_of(backbone, head, pool, project, returns)
        checks.one_of("returns", returns, get_args(Returns))
        if not callable(pool):
            checks.one_of("pool", pool, get_args(Pool))
        super().__init__(config)
        self.pool, self.returns = pool, returns
        self.backbone = backbone
        self.projection = nn.Identity() if project is None else nn.Linear(project, head.dim)
        self.head = head
        self.main_input_name = getattr(backbone, "main_input_name", "input_ids")
        if not from_file:  # then the parts are as they were given, and not to be drawn anew
            for module in self.modules():
                module._is_hf_initialized = True
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Draw what a file does not hold."""
        if isinstance(module, MarginHead) or (isinstance(module, nn.Linear) and module is self.projection):
            module.reset_parameters()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        pixel_values: Tensor | None = None,
        input_values: Tensor | None = None,
        input_features: Tensor | None = None,
        labels: Tensor | None = None,
        **others: Any,
    ) -> HeadOutput:
        """Return the loss in training; in evaluation logits or embeddings, and the loss if there are labels.

        The names are those that text, image and audio processors give; the Trainer keeps columns of these names.
        """
        named = {
            "input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids,
            "pixel_values": pixel_values, "input_values": input_values, "input_features": input_features,
        }  # fmt: skip
        others.pop("return_dict", None)
        embeddings = self.embed(**{key: value for key, value in named.items() if value is not None}, **others)
        if self.training:
            if labels is None:
                raise ValueError(
                    "labels are needed in training, since the loss is the head's. If the Trainer took them "
                    "(label_smoothing_factor), smooth in the head: create_head(…, label_smoothing=0.1). For "
                    "features call embed."
                )
            return HeadOutput(loss=self.head(embeddings, labels.flatten()))
        loss = None if labels is None else self.head(embeddings, labels.flatten())
        if self.returns == "embeddings":
            return HeadOutput(loss=loss, embeddings=embeddings)
        return HeadOutput(loss=loss, logits=self.head.logits(embeddings))

    def embed(self, **inputs: Any) -> Tensor:
        """Return the embeddings (N, head.dim), not normalised."""
        output = self.backbone(**inputs)
        pooled = self.pool(output, inputs) if callable(self.pool) else self._pooled(output, inputs)
        features: Tensor = self.projection(pooled)
        if features.dim() != 2 or features.shape[1] != self.head.dim:
            raise ValueError(
                f"the backbone's pooled features have shape {tuple(features.shape)}, and head.dim is "
                f"{self.head.dim}. Make the head with as many, or give project={features.shape[-1]}."
            )
        return features

    def _pooled(self, output: Any, inputs: dict[str, Any]) -> Any:
        """Return one vector per row from what the backbone returned."""
        if isinstance(output, Tensor):
            return output if output.dim() == 2 else self._over_tokens(output, inputs)
        found = next((output[key] for key in POOLED if output.get(key) is not None), None)
        if self.pool == "pooler" and found is None:
            raise ValueError(
                f'the backbone has no pooled output; it returns {", ".join(output)}. Take pool="mean".'
            )
        if self.pool in ("auto", "pooler") and found is not None:
            return torch.flatten(found, 1)  # convolutional networks: (N, d, 1, 1)
        return self._over_tokens(output["last_hidden_state"], inputs)

    def _over_tokens(self, hidden: Tensor, inputs: dict[str, Any]) -> Tensor:
        """Return the first token, or the mean of those that are no padding; of feature maps over their places."""
        if hidden.dim() == 4:
            return hidden.mean((2, 3))
        if self.pool == "first":
            return hidden[:, 0]
        mask = inputs.get("attention_mask")
        if mask is not None and mask.shape[1] != hidden.shape[1]:  # of samples of sound, not of frames
            shorter = getattr(self.backbone, "_get_feature_vector_attention_mask", None)
            mask = None if shorter is None else shorter(hidden.shape[1], mask)
        if mask is None:
            return hidden.mean(1)
        weights: Tensor = mask.to(hidden.dtype)[:, :, None]
        return (hidden * weights).sum(1) / weights.sum(1).clamp(min=1)


def _config_of(
    backbone: nn.Module, head: MarginHead, pool: Any, project: int | None, returns: Returns
) -> WithHeadConfig:
    """Return the config that names the parts, as far as a file can."""
    plain = None
    if isinstance(backbone, PreTrainedModel) and hasattr(transformers, type(backbone).__name__):
        plain = {"class": type(backbone).__name__, "config": backbone.config.to_dict()}
        if _may_lack_pooler(type(backbone)):
            plain["pooler"] = getattr(backbone, "pooler", None) is not None
    try:
        described = to_plain(head)
    except ValueError:
        described = None
    return WithHeadConfig(plain, described, "auto" if callable(pool) else pool, project, returns)


def _backbone(config: WithHeadConfig) -> nn.Module:
    """Make the backbone that config.json names, with first numbers."""
    if config.backbone_spec is None:
        raise ValueError(
            "config.json does not name the backbone, which is your own: from_pretrained(…, backbone=net)."
        )
    spec = config.backbone_spec
    kind = getattr(transformers, spec["class"], None)
    if not (isinstance(kind, type) and issubclass(kind, PreTrainedModel)):
        raise ValueError(
            f"config.json names the backbone {checks.shown(spec['class'])}, which is no model of transformers."
        )
    plain = dict(spec["config"])
    more = {"add_pooling_layer": spec["pooler"]} if "pooler" in spec else {}
    made: nn.Module = kind(AutoConfig.for_model(plain.pop("model_type"), **plain), **more)
    return made


def _may_lack_pooler(kind: type) -> bool:
    return "add_pooling_layer" in inspect.signature(kind.__init__).parameters  # type: ignore[misc]


def _head(config: WithHeadConfig) -> MarginHead:
    if config.head_spec is None:
        raise ValueError(
            "config.json does not name the head, which has parts of your own: from_pretrained(…, head=head)."
        )
    # Not on "meta", where from_pretrained makes models: a head reads counts and margins when it is made.
    with torch.device("cpu"):
        return from_plain(config.head_spec)


AutoConfig.register(WithHeadConfig.model_type, WithHeadConfig)
AutoModel.register(WithHeadConfig, WithHead)


def x_vector_head(model: PreTrainedModel, name: str = "am-softmax", **overrides: Any) -> MarginHead:
    """Replace the AM-Softmax of an x-vector model (`Wav2Vec2ForXVector` and its kin) by a head; return it.

    It begins with the model's class weights, and with the same s = 30 and m = 0.4 if it is am-softmax or cosface
    and nothing else is said. Everything else about the model stays. `restore_x_vector` is the way back.
    """
    old: Any = getattr(model, "objective", None)
    if type(old).__name__ != "AMSoftmaxLoss":
        raise TypeError(
            f"model must be an x-vector model with an AMSoftmaxLoss as its objective; got {type(model).__name__}."
        )
    defaults = {"scale": float(old.scale), "m": float(old.margin)} if name in ("am-softmax", "cosface") else {}
    dim, classes = old.weight.shape
    head = create_head(name, dim, classes, **defaults | overrides)
    head.to(old.weight.device, old.weight.dtype)
    with torch.no_grad():
        head.weight.view(classes, -1, dim).copy_(old.weight.t()[:, None])
    model.objective = head
    return head


def restore_x_vector(model: PreTrainedModel) -> None:
    """Put the model's own AM-Softmax back, with the rows of the head, so that anybody can load what is saved.

    It keeps s and m of a head without other settings (am-softmax, cosface) and has its own 30 and 0.4 otherwise.
    """
    head: Any = model.objective
    checks.instance("model.objective", head, MarginHead, "what x_vector_head put there")
    rows = by_class(head)["weight"]
    module = inspect.getmodule(type(model))
    plain = head.margin.name == "cosface"
    said = {"scale": float(head.current_scale().detach()), "margin": head.margin.m} if plain else {}
    own = module.AMSoftmaxLoss(head.dim, head.classes, **said).to(rows.device, rows.dtype)  # type: ignore[union-attr]
    with torch.no_grad():
        own.weight.copy_(rows.view(head.classes, -1, head.dim)[:, 0].t())
    model.objective = own
