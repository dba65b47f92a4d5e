"""Launches without Triton's look at every argument, which takes longer than most of these kernels run.

Triton compiles a kernel anew for other dtypes, for numbers that are 1 or multiples of 16, and for pointers that are
not aligned. `launch` keeps what was compiled by just these, and asks Triton once for each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

_COMPILED: dict[tuple[Any, ...], Any] = {}
_CONSTANT: dict[int, tuple[bool, ...]] = {}  # by kernel: which of its arguments are compiled in


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, warps: int = 4, stages: int = 3) -> None:
    """Run `kernel[grid](*args)` on the current device and stream."""
    grid = (*grid, 1, 1)[:3]
    constant = _CONSTANT.get(id(kernel))
    if constant is None:
        constant = tuple(parameter.is_constexpr for parameter in getattr(kernel, "params", ()))
        _CONSTANT[id(kernel)] = constant
    if not constant:  # the interpreter's
        kernel[grid](*args, num_warps=warps, num_stages=stages)
        return
    kinds = [arg if fixed else _KIND[type(arg)](arg) for arg, fixed in zip(args, constant, strict=True)]
    key = (id(kernel), warps, stages, torch.cuda.current_device(), *kinds)
    found = _COMPILED.get(key)
    if found is not None:
        found[grid](*args)
        return
    whole = [_whole(arg) if isinstance(arg, TensorDescriptor) else arg for arg in args]
    _COMPILED[key] = kernel[grid](*whole, num_warps=warps, num_stages=stages)


def tiled(x: Tensor, rows: int, columns: int) -> TensorDescriptor:
    """Return a descriptor to read or write a matrix in tiles of that size."""
    if not x.is_cuda:
        return TensorDescriptor(x, list(x.shape), list(x.stride()), [rows, columns])
    found = TensorDescriptor.__new__(TensorDescriptor)  # its checks, which ours pass, take longer than the launch
    found.base, found.shape, found.strides, found.block_shape = x, x.shape, x.stride(), [rows, columns]
    return found


def _whole(x: TensorDescriptor) -> TensorDescriptor:
    return TensorDescriptor(x.base, list(x.shape), list(x.strides), x.block_shape)


def _kind_of_tensor(x: Tensor) -> Any:
    return x.dtype if x.data_ptr() % 16 == 0 else (x.dtype,)


def _kind_of_number(x: int) -> int:
    return (x == 1) + 2 * (x % 16 == 0) + 4 * (not -(2**31) <= x < 2**31)


def _kind_of_tiles(x: TensorDescriptor) -> Any:
    rows, columns = x.block_shape
    return x.base.dtype, rows, columns


def _kind_of_type(x: object) -> Any:
    return type(x)


_KIND: dict[type, Callable[[Any], Any]] = {
    Tensor: _kind_of_tensor,
    torch.nn.Parameter: _kind_of_tensor,
    int: _kind_of_number,
    TensorDescriptor: _kind_of_tiles,
    float: _kind_of_type,
    bool: _kind_of_type,
}

