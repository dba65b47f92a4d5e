"""What plain pickles may ask for by name, done here by hand: bytes, and numpy's arrays of bytes or bool.

numpy writes an array as a call of _reconstruct(ndarray, (0,), b"b") and then its state (1, shape, dtype, False,
bytes), or, from protocol 5, as _frombuffer(bytes, dtype, shape, "C"); a dtype as dtype("u1", False, True) and its
state.
The names stand for functions of this file. Nothing of numpy is imported, called or made.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from hypermargin.data.base import DataError

REFUSED = (
    "Only plain lists, tuples, dicts, numbers, strings, bytes, and numpy arrays of uint8 or bool of one or two "
    "dimensions, are read, because a pickle can run any program. If you trust the file, load it with pickle and "
    "save it again as lists of bytes and bool."
)
UINT8, BOOL = "uint8", "bool"
CODES = {"u1": UINT8, "b1": BOOL}
NO_BYTE_ORDER = (3, "|", None, None, None, -1, -1, 0)


@dataclass(eq=False)
class PlainArray:
    """The bytes of a numpy array, row by row; `dtype` is None until its state has come."""

    dtype: str | None = None
    raw: bytes = b""
    shape: tuple[int, ...] = ()

    @property
    def is_column(self) -> bool:
        """Whether it has one dimension, or one column."""
        return len(self.shape) == 1 or self.shape[1:] == (1,)

    def fill(self, kind: object, shape: object, raw: object) -> None:
        """Take dtype, shape and content, which have to fit one another."""
        if not isinstance(kind, Dtype) or not isinstance(raw, bytes) or not isinstance(shape, tuple):
            refuse("a numpy array of an unknown kind")
        if not all(type(side) is int and 0 <= side < 2**63 for side in shape):
            raise ValueError("an array whose shape is not made of numbers")
        if len(shape) not in (1, 2):
            refuse(f"a numpy array of shape {shape[:8]}")
        if math.prod(shape) != len(raw):
            raise ValueError(f"an array of shape {shape} in {len(raw)} bytes")
        if kind.name == BOOL and raw.strip(b"\0\1"):
            raise ValueError("an array of bool with other values")
        self.dtype, self.raw, self.shape = kind.name, raw, shape


@dataclass(eq=False)
class Dtype:
    """The type of an array's numbers."""

    name: str


@dataclass(frozen=True, eq=False)
class Known:
    """A name that a pickle may call, and what is done instead."""

    name: str
    make: Callable[..., object]


def refuse(asked: str) -> NoReturn:
    """Refuse what a pickle asks for."""
    raise DataError(f"the pickle asks for {asked}. {REFUSED}")


def build(target: object, state: object) -> None:
    """Give an array or a dtype its state."""
    if isinstance(target, Dtype) and isinstance(state, tuple) and tuple(map(_text, state)) == NO_BYTE_ORDER:
        return
    if not (isinstance(target, PlainArray) and isinstance(state, tuple) and len(state) == 5):
        refuse("a state to be set")
    version, shape, kind, by_column, raw = state
    if version != 1 or by_column or target.dtype is not None:
        refuse("a numpy array of another layout")
    target.fill(kind, shape, raw)


def _text(value: object) -> object:
    return value.decode("latin-1") if isinstance(value, bytes) else value  # Python 2 wrote bytes


def _encode(text: str, coding: str) -> bytes:
    """Protocols 0 to 2 have no bytes: Python 3 writes a call of _codecs.encode(text, "latin1"), …"""
    if _text(coding) not in ("latin1", "latin-1"):
        refuse("a call")
    return str.encode(text, "latin-1")


def _empty() -> bytes:
    """… and of bytes() for b""."""
    return b""


def _dtype(code: object, align: object = False, copy: object = True) -> Dtype:
    name = _text(code)
    if not isinstance(name, str):
        raise ValueError("a dtype without a name")
    if name not in CODES:
        refuse(f"numpy.dtype({name[:40]!r})")
    return Dtype(CODES[name])


def _reconstruct(kind: object, shape: object, code: object) -> PlainArray:
    if kind is not NDARRAY:
        refuse("a numpy array of an unknown kind")
    return PlainArray()


def _frombuffer(raw: object, kind: object, shape: object, order: object) -> PlainArray:
    array = PlainArray()
    array.fill(kind, shape, raw)
    if _text(order) != "C" and not (_text(order) == "F" and array.is_column):  # for one column they are the same
        refuse("a numpy array of another layout")
    return array


def _scalar(kind: object, raw: object) -> bool:
    if not isinstance(kind, Dtype) or kind.name != BOOL or raw not in (b"\0", b"\1"):
        refuse("a numpy number")
    return raw == b"\1"


def _ndarray(*given: object) -> NoReturn:
    refuse("a call of numpy.ndarray")


NDARRAY = Known("numpy.ndarray", _ndarray)
KNOWN = {
    "_codecs.encode": Known("_codecs.encode", _encode),
    "__builtin__.bytes": Known("bytes", _empty),
    "numpy.ndarray": NDARRAY,
    "numpy.dtype": Known("numpy.dtype", _dtype),
}
for _core in ("numpy.core", "numpy._core"):  # before numpy 2, and since
    KNOWN[f"{_core}.multiarray._reconstruct"] = Known("_reconstruct", _reconstruct)
    KNOWN[f"{_core}.multiarray.scalar"] = Known("scalar", _scalar)
    KNOWN[f"{_core}.numeric._frombuffer"] = Known("_frombuffer", _frombuffer)
