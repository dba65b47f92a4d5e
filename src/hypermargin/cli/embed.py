"""`hypermargin embed`: images, or anything that can be read, to embeddings in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hypermargin.cli._app import ALLOW_OLDER, app, plain_errors, progress


@app.command()
def embed(
    run: Annotated[Path, typer.Argument(help="A run's folder, or an exported .onnx file.")],
    source: Annotated[str, typer.Argument(help="An image, a folder, or what `hypermargin data` reads.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="A .npz file, or .npy for the embeddings alone.")],
    batch: Annotated[int, typer.Option(help="Samples at a time.", min=1)] = 256,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
    workers: Annotated[int, typer.Option(help="Processes that decode.", min=0)] = 2,
    levels: Annotated[int | None, typer.Option(help="How many folders name an identity.", min=1)] = None,
    on_bad: Annotated[str, typer.Option(help="error, or skip to list unreadable samples instead.")] = "error",
    raw: Annotated[bool, typer.Option("--raw", help="Features as they are, not of unit length.")] = False,
    which: Annotated[str, typer.Option(help="best or last checkpoint.")] = "best",
    trust: Annotated[bool, typer.Option("--trust", help="Import the code that MODULE:FUNCTION names.")] = False,
    allow_older: Annotated[bool, typer.Option("--allow-older", help=ALLOW_OLDER)] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """The embedding of every sample, with its norm, its file and its identity if known.

    \b
    Examples:
      hypermargin embed runs/first photos/ -o photos.npz
      hypermargin embed runs/first face.jpg -o face.npy
      hypermargin embed first.onnx photos/ -o photos.npz --on-bad skip
    """
    from hypermargin.common.text import say
    from hypermargin.deploy import embed as compute
    from hypermargin.deploy import open_model
    from hypermargin.deploy.embedding import ENDINGS
    from hypermargin.files import free_path
    from hypermargin.training import RunError

    options: Any = {"which": which, "device": device, "trust": trust, "allow_older": allow_older}
    with plain_errors():
        free_path("--out", out, ENDINGS, force)  # now, and not after hours
        try:
            model = open_model(run, **options)
            for note in model.about.get("passed_over", ()):
                say(note)
            with progress() as show:
                found = compute(
                    model, source, batch=batch, workers=workers, levels=levels, on_bad=on_bad, raw=raw, say=say,
                    progress=show,
                )  # fmt: skip
            found.save(out, replace=force)
        except (RunError, OSError) as error:
            raise ValueError(str(error)) from None
    for bad in found.bad:
        say(f"left out: {bad}")
    labelled = "" if found.labels is None else f" of {len(set(found.labels.tolist())):,} identities"
    typer.echo(f"{'embedded':<12} {len(found.embeddings):,} samples{labelled}, {len(found.bad):,} left out")
    typer.echo(f"{'written':<12} {out}")
