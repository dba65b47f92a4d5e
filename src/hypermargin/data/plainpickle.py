"""Pickles of plain data, read without running anything.

pickle.load calls whatever the file names. This reader knows the instructions that make None, bool, int, float,
bytes, str, list, tuple and dict, and the few names of `plainarrays`; it refuses all others. Strings of Python 2 are
bytes; a numpy array of uint8 or bool is a `PlainArray`.
"""

from __future__ import annotations

import codecs
import pickletools
import struct
from collections.abc import Callable
from typing import Any

from hypermargin.data import plainarrays
from hypermargin.data.base import DataError
from hypermargin.data.plainarrays import KNOWN, Known

KEYS = (str, bytes, int, float, type(None))  # a tuple as key can take 2ⁿ steps to hash
MARK = object()


def loads(raw: bytes, where: str) -> object:
    """Read the plain object in a pickle; DataError, naming `where`, for anything else."""
    try:
        return _Reader(raw).read()
    except DataError as error:
        raise DataError(f"{where}: {error}") from None
    # All the ways an instruction can fail: no argument, an empty stack, no such memo, not a number.
    except (ValueError, IndexError, KeyError, TypeError) as error:
        raise DataError(f"{where}: the pickle is damaged ({type(error).__name__}: {error}).") from error


class _Reader:
    def __init__(self, raw: bytes) -> None:
        self.raw, self.at = raw, 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def read(self) -> object:
        while (code := self.take(1)) != b".":
            if code in PUSH:
                self.stack.append(PUSH[code](self))
            elif code in ACT:
                ACT[code](self)
            else:
                self.refuse(code)
        (result,) = self.stack
        if result is MARK:
            raise ValueError("it ends inside a list")
        return result

    def take(self, count: int) -> bytes:
        end = self.at + count
        if count < 0 or end > len(self.raw):
            raise ValueError(f"it ends at byte {len(self.raw)}, inside an instruction")
        piece, self.at = self.raw[self.at : end], end
        return piece

    def number(self, layout: str) -> Any:
        return struct.unpack(layout, self.take(struct.calcsize(layout)))[0]

    def counted(self, layout: str) -> bytes:
        return self.take(self.number(layout))

    def line(self) -> bytes:
        return self.take(self.raw.index(b"\n", self.at) + 1 - self.at)[:-1]

    def integer(self) -> int | bool:
        text = self.line()
        return {b"00": False, b"01": True}[text] if text in (b"00", b"01") else int(text)

    def quoted(self) -> bytes:
        text = self.line().strip()
        if len(text) < 2 or text[:1] != text[-1:] or text[:1] not in b"'\"":
            raise ValueError("a string without quotes")
        return codecs.escape_decode(text[1:-1])[0]

    def get(self, index: int) -> Any:
        return self.memo[index]

    def put(self, index: int) -> None:
        self.memo[index] = self.stack[-1]

    def pop(self) -> Any:
        value = self.stack.pop()
        if value is MARK:
            raise ValueError("a mark where a value should be")
        return value

    def some(self, count: int) -> list[Any]:
        return [self.pop() for _ in range(count)][::-1]

    def marked(self) -> list[Any]:
        found = []
        while (value := self.stack.pop()) is not MARK:
            found.append(value)
        return found[::-1]

    def extend(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, list):
            raise ValueError("it appends to something that is no list")
        target.extend(values)

    def update(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict):
            raise ValueError("it sets items of something that is no dict")
        target.update(_pairs(values))

    def name(self) -> Known:
        return self.known(self.line().decode(), self.line().decode())

    def stacked_name(self) -> Known:
        module, name = self.some(2)
        if not (isinstance(module, str) and isinstance(name, str)):
            raise ValueError("a name that is no string")
        return self.known(module, name)

    def known(self, module: str, name: str) -> Known:
        asked = f"{module}.{name}"
        if asked not in KNOWN:
            plainarrays.refuse(asked[:80])
        return KNOWN[asked]

    def call(self) -> object:
        called, given = self.some(2)
        if not isinstance(called, Known) or not isinstance(given, tuple):
            plainarrays.refuse("a call")
        return called.make(*given)

    def build(self) -> None:
        state = self.pop()
        plainarrays.build(self.stack[-1], state)

    def refuse(self, code: bytes) -> None:
        known = pickletools.code2op.get(code.decode("latin-1"))  # type: ignore[attr-defined]
        if known is None:
            raise DataError(f"not a pickle: byte {self.at - 1} is {code!r}, which is no instruction.")
        asked = known.name
        if asked == "INST":
            asked = f"{self.line().decode()}.{self.line().decode()}"
        plainarrays.refuse(asked[:80])


def _pairs(values: list[Any]) -> dict[Any, Any]:
    if len(values) % 2 or not all(isinstance(key, KEYS) for key in values[::2]):
        raise ValueError("a dict needs pairs, and plain strings or numbers as keys")
    return dict(zip(values[::2], values[1::2], strict=True))


def _signed(raw: bytes) -> int:
    return int.from_bytes(raw, "little", signed=True)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogatepass")


# Instructions that push what they return.
PUSH: dict[bytes, Callable[[_Reader], Any]] = {
    b"(": lambda r: MARK,
    b"2": lambda r: r.stack[-1],
    b"N": lambda r: None,
    b"\x88": lambda r: True,
    b"\x89": lambda r: False,
    b"I": _Reader.integer,
    b"L": lambda r: int(r.line().removesuffix(b"L")),
    b"J": lambda r: r.number("<i"),
    b"K": lambda r: r.number("<B"),
    b"M": lambda r: r.number("<H"),
    b"\x8a": lambda r: _signed(r.counted("<B")),
    b"\x8b": lambda r: _signed(r.counted("<i")),
    b"F": lambda r: float(r.line()),
    b"G": lambda r: r.number(">d"),
    b"S": _Reader.quoted,
    b"T": lambda r: r.counted("<i"),
    b"U": lambda r: r.counted("<B"),
    b"V": lambda r: r.line().decode("raw-unicode-escape"),
    b"X": lambda r: _text(r.counted("<I")),
    b"\x8c": lambda r: _text(r.counted("<B")),
    b"\x8d": lambda r: _text(r.counted("<Q")),
    b"B": lambda r: r.counted("<I"),
    b"C": lambda r: r.counted("<B"),
    b"\x8e": lambda r: r.counted("<Q"),
    b"\x96": lambda r: r.counted("<Q"),
    b"]": lambda r: [],
    b")": lambda r: (),
    b"}": lambda r: {},
    b"l": _Reader.marked,
    b"t": lambda r: tuple(r.marked()),
    b"d": lambda r: _pairs(r.marked()),
    b"\x85": lambda r: tuple(r.some(1)),
    b"\x86": lambda r: tuple(r.some(2)),
    b"\x87": lambda r: tuple(r.some(3)),
    b"g": lambda r: r.get(int(r.line())),
    b"h": lambda r: r.get(r.number("<B")),
    b"j": lambda r: r.get(r.number("<I")),
    b"c": _Reader.name,
    b"\x93": _Reader.stacked_name,
    b"R": _Reader.call,
}
# Instructions that change what is there.
ACT: dict[bytes, Callable[[_Reader], Any]] = {
    b"0": _Reader.pop,
    b"1": _Reader.marked,
    b"a": lambda r: r.extend(r.some(1)),
    b"e": lambda r: r.extend(r.marked()),
    b"s": lambda r: r.update(r.some(2)),
    b"u": lambda r: r.update(r.marked()),
    b"b": _Reader.build,
    b"p": lambda r: r.put(int(r.line())),
    b"q": lambda r: r.put(r.number("<B")),
    b"r": lambda r: r.put(r.number("<I")),
    b"\x94": lambda r: r.put(len(r.memo)),
    b"\x80": lambda r: r.take(1),
    b"\x95": lambda r: r.take(8),
}
