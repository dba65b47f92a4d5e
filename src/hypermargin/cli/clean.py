"""`hypermargin head clean`: from several centers per class to one, and the samples to leave out."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from hypermargin.cli._app import ALLOW_OLDER, progress
from hypermargin.cli._heads import complaints, rows_of, say
from hypermargin.cli.head import head


@head.command()
def clean(
    run: Annotated[Path, typer.Argument(help="The folder of a run with several centers per class.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The head with one center: .safetensors, .pt or .npy.")],
    drop: Annotated[Path, typer.Option(help="The .csv list of samples to leave out: file,label,center,angle.")],
    angle: Annotated[
        float, typer.Option(help="Degrees from its class's dominant center beyond which a sample is left out.")
    ] = 75.0,
    data: Annotated[str | None, typer.Option(help="Where the training data lie now, if they have moved.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
    which: Annotated[str, typer.Option(help="best or last checkpoint.")] = "best",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be written, and write nothing.")] = (
        False
    ),
    trust: Annotated[bool, typer.Option("--trust", help="Import the code that MODULE:FUNCTION names.")] = False,
    allow_older: Annotated[bool, typer.Option("--allow-older", help=ALLOW_OLDER)] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Keep the dominant center of every class, and list the samples far from it: wrong labels, mostly.

    A class's dominant center is the one that is nearest for most of its training samples. Train again without the
    listed ones, and with one center: train --exclude.

    \b
    Examples:
      hypermargin train --data photos/ --head subcenter-arcface --out runs/noisy
      hypermargin head clean runs/noisy -o clean.safetensors --drop drop.csv
      hypermargin head clean runs/noisy -o clean.safetensors --drop drop.csv --angle 70 --dry-run
      hypermargin train --data photos/ --head arcface --exclude drop.csv --out runs/clean
    """
    from hypermargin import heads
    from hypermargin.common.environment import find_device
    from hypermargin.files import free_path
    from hypermargin.heads.run_cleaning import clean_run
    from hypermargin.heads.writing import BY_ENDING
    from hypermargin.training import RunError

    loading: Any = {"which": which, "trust": trust, "allow_older": allow_older}
    with complaints():
        if not 0 <= angle <= 180:
            raise ValueError(f"--angle must lie in [0, 180] degrees; got {angle:g}.")
        if not run.is_dir():
            raise ValueError(f"{run} is not the folder of a run, which has the training data and the network too.")
        free_path("--out", out, tuple(BY_ENDING), force)  # now, and not after hours
        free_path("--drop", drop, (".csv",), force)
        try:
            with progress() as show:
                found = clean_run(
                    run, math.radians(angle), data=data, progress=show, device=find_device(device), **loading
                )
        except RunError as error:
            raise ValueError(str(error)) from None
        cleaned = found.cleaned
        gone = int((~cleaned.keep).sum())
        if not dry_run:
            found.write(drop)
        outputs = heads.write(cleaned.head, out, replace=force, dry_run=dry_run)
    total = len(cleaned.keep)
    elsewhere = int((cleaned.nearest != cleaned.dominant[found.targets]).sum())
    say("samples", f"{total:,} of {len(found.classes):,} classes")
    say("elsewhere", f"{elsewhere:,} are nearest to another center than their class's dominant one")
    say("left out", f"{gone:,} ({100 * gone / total:.2f} %) are farther than {angle:g}° from it")
    if len(cleaned.unseen):
        say("unseen", f"classes without a sample, which keep their first center: {rows_of(cleaned.unseen)}")
    written = "would write" if dry_run else "written"
    say(written, f"{drop}: {gone:,} samples")
    for path, kind, entries in outputs:
        weight = entries["weight"]
        say(written, f"{path} ({kind}): {len(weight):,} classes of {weight.shape[1]:,} dimensions")
