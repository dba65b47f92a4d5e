"""Train a network of timm with a margin: timm's model, augmentation, optimiser, schedule and average of weights.

    python examples/with_timm.py pictures --model resnet18 --head arcface --epochs 20

`pictures` holds train/CLASS/*.png and val/CLASS/*.png. timm's own train.py has no place for a loss with weights of
its own, so this is that loop: the network gives features (num_classes=0), and the head turns them into the loss.
"""

import argparse

import torch
from timm import create_model
from timm.data import create_dataset, create_loader, resolve_data_config
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import AverageMeter, ModelEmaV3

import hypermargin as hm

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("data")
parser.add_argument("--model", default="resnet18")
parser.add_argument("--pretrained", action="store_true")
parser.add_argument("--head", default="arcface", choices=hm.list_heads(), metavar="NAME")
parser.add_argument("--scale", type=float, help="s; default: what suits the number of classes")
parser.add_argument("--margin", type=float, help="m; default: the head's own")
parser.add_argument("--img-size", type=int, default=224)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--weight-decay", type=float, default=0.05)
parser.add_argument("--mixup", type=float, default=0.0, help="alpha of Beta(alpha, alpha); 0 is without")
parser.add_argument("--ema", type=float, default=0.99)
parser.add_argument("--workers", type=int, default=2)
parser.add_argument("--out", default="network.pt")


def main(args):
    """Train, and say after each epoch how well the averaged weights do."""
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    network = create_model(args.model, pretrained=args.pretrained, num_classes=0).to(device)
    config = resolve_data_config({"img_size": args.img_size}, model=network)
    augmented = {"auto_augment": "rand-m7-mstd0.5", "re_prob": 0.2, "hflip": 0.0, "scale": (0.6, 1.0)}

    def loader(split, training=False, **more):
        data = create_dataset("", f"{args.data}/{split}", is_training=training)
        return create_loader(
            data, (3, args.img_size, args.img_size), args.batch_size, is_training=training, mean=config["mean"],
            std=config["std"], num_workers=args.workers, use_prefetcher=False, **more,
        )  # fmt: skip

    train, val = loader("train", training=True, **augmented), loader("val")
    classes = len(train.dataset.reader.class_to_idx)
    own = {} if args.margin is None else {"m": args.margin}
    head = hm.create_head(args.head, network.num_features, classes, scale=args.scale or "advised", **own).to(device)
    print(head)
    model = torch.nn.ModuleDict({"network": network, "head": head})  # one module: one optimiser, one average
    optimizer = create_optimizer_v2(model, opt="adamw", lr=args.lr, weight_decay=args.weight_decay)
    scheduler, epochs = create_scheduler_v2(
        optimizer, "cosine", num_epochs=args.epochs, warmup_epochs=1, updates_per_epoch=len(train)
    )
    average, step = ModelEmaV3(model, decay=args.ema, use_warmup=True), 0
    for epoch in range(epochs):
        model.train()
        losses = AverageMeter()
        for images, labels in train:
            images, labels, mix = images.to(device), labels.to(device), None
            if args.mixup:  # the labels stay labels: each has its margin, and they are weighed
                share = torch.distributions.Beta(args.mixup, args.mixup).sample().item()
                order = torch.randperm(len(images), device=device)
                images, mix = images.lerp(images[order], 1 - share), (labels[order], share)
            loss = head(network(images), labels, mix=mix)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            scheduler.step_update(step)
            average.update(model, step=step)
            losses.update(loss.item(), len(images))
        scheduler.step(epoch + 1)
        right = accuracy(average.module, val, device)
        print(f"epoch {epoch + 1:2}: loss {losses.avg:.3f}, accuracy {right:.1%}")
    torch.save(average.module.state_dict(), args.out)


@torch.no_grad()
def accuracy(model, loader, device):
    """Return the share of pictures whose class has the largest logit."""
    model.eval()
    right = AverageMeter()
    for images, labels in loader:
        logits = model["head"].logits(model["network"](images.to(device)))  # without the margin
        right.update((logits.argmax(1).cpu() == labels).float().mean().item(), len(labels))
    return right.avg


if __name__ == "__main__":
    main(parser.parse_args())
