"""What the benchmarks' command lines share. Plain argparse: a GPU machine may have torch and numpy alone."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

RESULTS = Path("benchmarks/results")


def flags(name: str, what: str, *examples: str) -> argparse.ArgumentParser:
    """A parser with `--out`, and the examples (what stands after `python -m benchmarks.NAME`) below the flags."""
    program = f"python -m benchmarks.{name}"
    lines = [f"  {program} {example}".rstrip() for example in examples]
    parser = argparse.ArgumentParser(
        prog=program,
        description=what,
        epilog="\n".join(["examples:", *lines]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help=f"folder for the JSON and the Markdown; {RESULTS} without it"
    )
    return parser


def at_least(least: int) -> Callable[[str], int]:
    """Read a whole number that is not too small; for argparse's `type`."""

    def whole(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be a whole number; got {text!r}.") from None
        if value < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}; got {value}.")
        return value

    return whole


def say(text: str) -> None:
    """Print progress on stderr: stdout has the tables alone."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def plain_errors(parser: argparse.ArgumentParser) -> Iterator[None]:
    """Turn complaints about input, which name the flag already, into usage errors with exit code 2.

    With HYPERMARGIN_DEBUG set, they keep their traceback, as in the command line of the library.
    """
    try:
        yield
    except (ValueError, TypeError) as error:
        if os.environ.get("HYPERMARGIN_DEBUG"):
            raise
        parser.error(str(error))
