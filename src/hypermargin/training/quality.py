"""What an image looks like, in two plain numbers: how sharp it is, and how much contrast it has.

They are no measure of a face's quality, only what can be had of any image without a model.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

MEASURES = "sharpness", "contrast"


def are_images(samples: Tensor) -> bool:
    """Return whether raw samples (N, …) are images: bytes with a height and a width of 3 pixels or more."""
    return samples.dtype == torch.uint8 and samples.dim() in (3, 4) and min(samples.shape[1:3]) >= 3


@torch.no_grad()
def measure(images: Tensor) -> Tensor:
    """Return sharpness and contrast of images (N, H, W) or (N, H, W, C), (N, 2) on the CPU.

    Sharpness is the variance of the Laplacian of the gray image, contrast the deviation of its brightness; both of
    brightness in [0, 1].
    """
    gray = images.float().div(255)
    gray = gray.mean(-1) if gray.dim() == 4 else gray
    kernel = gray.new_tensor([[0.0, 1.0, 0.0], [1.0, -4.0, 1.0], [0.0, 1.0, 0.0]])
    edges = F.conv2d(gray.unsqueeze(1), kernel[None, None]).flatten(1)
    return torch.stack((edges.var(1, correction=0), gray.flatten(1).std(1, correction=0)), 1).cpu()
