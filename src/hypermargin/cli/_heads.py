"""What the commands of `hypermargin head` share: the end of each, and how it speaks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from hypermargin.cli._tables import Section

if TYPE_CHECKING:
    from torch import Tensor

    from hypermargin.life import Pair, Weights
    from hypermargin.life.writing import Output


def finish(
    weights: Weights,
    before: int,
    ids: Tensor,
    out: Path,
    ids_out: Path | None,
    rows_only: bool,
    dry_run: bool,
    force: bool,
) -> None:
    """The end of resize and merge."""
    from hypermargin.life.lists import write_ids
    from hypermargin.life.writing import plan_outputs
    from hypermargin.shipping.formats import free_path

    # A .pt file keeps the names that its source had.
    keeps = weights.format in ("linear", "metric-learning") and out.suffix in (".pt", ".pth")
    same = weights.format if keeps else None
    outputs = plan_outputs(weights, out, format=same, rows_only=rows_only, replace=force)
    if ids_out is not None:
        free_path("--ids-out", ids_out, (".csv",), force)
    say("classes", f"{before:,} to {weights.classes:,}")
    if ids_out is not None and not dry_run:
        write_ids(ids_out, ids)
    put(outputs, dry_run)
    if ids_out is not None:
        say("would write" if dry_run else "written", f"{ids_out}: the new id of {before:,} classes")


def put(outputs: list[Output], dry_run: bool) -> None:
    """Write the files, or say what they would be."""
    from hypermargin.life.writing import save

    if not dry_run:
        try:
            save(outputs)
        except OSError as error:
            raise ValueError(f"--out: {outputs[0].path} cannot be written ({error}).") from None
    for output in outputs:
        parts = [
            f"{name} {'×'.join(map(str, t.shape)) or 'number'} {str(t.dtype).removeprefix('torch.')}"
            for name, t in output.entries.items()
        ]
        say("would write" if dry_run else "written", f"{output.path} ({output.format}): {', '.join(parts)}")


def say(name: str, text: str) -> None:
    """One line."""
    typer.echo(f"{name:<12} {text}")


def listed(numbers: list[int]) -> str:
    """The first twenty."""
    return ", ".join(map(str, numbers[:20])) + (", …" if len(numbers) > 20 else "")


def rows_of(ids: Tensor) -> str:
    """How many, and which."""
    return f"{len(ids):,}: {listed(ids.tolist())}" if len(ids) else "none"


def table(title: str, pairs: list[Pair]) -> Section:
    """Pairs of classes, to be shown."""
    rows = [(str(pair.first), str(pair.second), f"{pair.cosine:.4f}") for pair in pairs]
    return Section(title, ("class", "class", "cosine"), rows)
