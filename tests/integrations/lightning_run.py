"""A small run of Lightning: `python lightning_run.py devices file` trains and writes the weights."""

import logging
import os
import sys
import warnings

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import hypermargin as hm

CLASSES, DIM, ROWS = 5, 8, 60
QUIET = {
    "accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False, "logger": False,
    "enable_checkpointing": False,
}  # fmt: skip
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")


class Module(lightning.LightningModule):
    def __init__(self, head="arcface", **more):
        super().__init__()
        torch.manual_seed(0)
        self.network = nn.Linear(16, DIM)
        self.head = hm.create_head(head, DIM, CLASSES, **more)
        self.losses = []

    def training_step(self, batch, _):
        x, y = batch
        loss = self.head(self.network(x), y)
        self.losses.append(loss.detach())
        return loss

    def validation_step(self, batch, _):
        x, y = batch
        features = self.network(x)
        self.log("val_loss", self.head(features, y))
        self.log("val_acc", (self.head(features).argmax(1) == y).float().mean())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


def rows():
    generator = torch.Generator().manual_seed(1)
    y = torch.arange(ROWS) % CLASSES
    return torch.eye(CLASSES, 16)[y] + 0.2 * torch.randn(ROWS, 16, generator=generator), y


def loader(batch=12):
    return DataLoader(TensorDataset(*rows()), batch_size=batch)


def main(devices, path):
    strategy = "ddp" if devices > 1 else "auto"
    module = Module(scale=8.0)
    settings = QUIET | {"devices": devices, "strategy": strategy, "max_epochs": 3}
    trainer = lightning.Trainer(**settings, use_distributed_sampler=False)
    data, rank = TensorDataset(*rows()), int(os.environ.get("LOCAL_RANK", "0"))
    in_order = DistributedSampler(data, devices, rank, shuffle=False)  # Lightning's own shuffles
    trainer.fit(module, DataLoader(data, 12 // devices, sampler=in_order))
    if trainer.is_global_zero:
        torch.save(module.state_dict(), path)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
