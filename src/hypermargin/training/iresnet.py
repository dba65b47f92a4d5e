"""The improved residual networks for faces; parameters are named as in insightface, so its checkpoints load."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

BLOCKS = {
    "iresnet18": (2, 2, 2, 2),
    "iresnet34": (3, 4, 6, 3),
    "iresnet50": (3, 4, 14, 3),
    "iresnet100": (3, 13, 30, 3),
}
WIDTHS = 64, 128, 256, 512
REDUCTION = 2 ** len(WIDTHS)  # each stage halves the sides


class Block(nn.Module):
    """x ← shortcut(x) + BN(conv(PReLU(BN(conv(BN(x)))))); the second convolution has the stride."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(before)
        self.conv1 = nn.Conv2d(before, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.prelu = nn.PReLU(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(width)
        self.downsample: nn.Module | None = None
        if stride > 1:
            self.downsample = nn.Sequential(nn.Conv2d(before, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, before, H, W) to (N, width, H/stride, W/stride)."""
        y = self.prelu(self.bn2(self.conv1(self.bn1(x))))
        return cast(Tensor, self.bn3(self.conv2(y)) + (x if self.downsample is None else self.downsample(x)))


class IResNet(nn.Module):
    """Stem of stride 1, four stages of stride 2, all positions into one linear layer, and a final BatchNorm.

    The final BatchNorm only centers and scales: its weight stays 1.
    """

    def __init__(self, blocks: tuple[int, ...], shape: tuple[int, ...], dim: int, dropout: float = 0.0) -> None:
        super().__init__()
        channels, height, width = shape
        self.conv1 = nn.Conv2d(channels, WIDTHS[0], 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(WIDTHS[0])
        self.prelu = nn.PReLU(WIDTHS[0])
        before = WIDTHS[0]
        for k, (count, after) in enumerate(zip(blocks, WIDTHS, strict=True), 1):
            stage = [Block(before if b == 0 else after, after, 2 if b == 0 else 1) for b in range(count)]
            self.add_module(f"layer{k}", nn.Sequential(*stage))
            before = after
        self.bn2 = nn.BatchNorm2d(before)
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(before * (height // REDUCTION) * (width // REDUCTION), dim)
        self.features = nn.BatchNorm1d(dim)
        self.features.weight.requires_grad = False
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.normal_(module.weight, 0, 0.1)  # a BatchNorm follows each, so the size does not matter

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, C, H, W) to (N, dim)."""
        x = self.prelu(self.bn1(self.conv1(x)))
        for k in range(1, len(WIDTHS) + 1):
            x = self.get_submodule(f"layer{k}")(x)
        x = self.fc(torch.flatten(self.dropout(self.bn2(x)), 1))
        return cast(Tensor, self.features(x))
