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
    constant = _CONSTANT.get(id(kernel))
    if constant is None:
        constant = tuple(parameter.is_constexpr for parameter in getattr(kernel, "params", ()))
        _CONSTANT[id(kernel)] = constant
    if not constant:  # the interpreter's
        kernel[grid](*args, num_warps=warps, num_stages=stages)
        return
    device = torch.cuda.current_device()
    kinds = [arg if fixed else _KIND[type(arg)](arg) for arg, fixed in zip(args, constant, strict=True)]
    key = (id(kernel), warps, stages, device, *kinds)
    code = _COMPILED.get(key)
    if code is None:
        _COMPILED[key] = Code(kernel[grid](*map(_checked, args), num_warps=warps, num_stages=stages))
    else:
        code((*grid, 1, 1)[:3], stream_of(device), *args)


class Code:
    """A compiled kernel, run by itself."""

    __slots__ = ("function", "metadata", "run")

    def __init__(self, compiled: Any) -> None:
        self.run, self.function, self.metadata = compiled.run, compiled.function, compiled.packed_metadata

    def __call__(self, grid: tuple[int, ...], stream: int, *args: Any) -> None:
        """Launch it; pointers may be tensors or addresses."""
        self.run(*grid, stream, self.function, self.metadata, None, None, None, *args)


class Site:
    """One launch of a step that is made again and again: a kernel and all that does not change about it.

    The first call, with tensors, compiles. Later ones are given addresses, which must be multiples of 16.
    """

    __slots__ = ("code", "constants", "grid", "kernel", "options")

    def __init__(
        self, kernel: Any, grid: tuple[int, ...], *constants: Any, warps: int = 4, stages: int = 3
    ) -> None:
        self.kernel, self.grid, self.constants = kernel, (*grid, 1, 1)[:3], constants
        self.options = {"num_warps": warps, "num_stages": stages}
        self.code: Code | None = None

    def __call__(self, stream: int, *given: Any) -> None:
        """Launch the kernel; `given` are its first arguments."""
        if self.code is not None:
            self.code(self.grid, stream, *given, *self.constants)
            return
        compiled = self.kernel[self.grid](*map(_checked, given), *self.constants, **self.options)
        self.code = None if compiled is None else Code(compiled)  # the interpreter gives None


def stream_of(device: int) -> int:
    """Return the handle of a GPU's current stream."""
    handle: int = torch._C._cuda_getCurrentRawStream(device)
    return handle


def tiled(x: Tensor, rows: int, columns: int) -> TensorDescriptor:
    """Return a descriptor to read or write a matrix in tiles of that size."""
    if not x.is_cuda:
        return TensorDescriptor(x, list(x.shape), list(x.stride()), [rows, columns])
    found = TensorDescriptor.__new__(TensorDescriptor)  # its checks, which ours pass, take longer than a launch
    found.base, found.shape, found.strides, found.block_shape = x, x.shape, x.stride(), [rows, columns]
    return found


def _checked(arg: Any) -> Any:
    if isinstance(arg, TensorDescriptor):
        return TensorDescriptor(arg.base, list(arg.shape), list(arg.strides), arg.block_shape)
    return arg


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
