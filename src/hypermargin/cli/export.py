"""`hypermargin export`: a run's network as one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hypermargin.cli._app import ALLOW_OLDER, app, plain_errors


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="A run's folder.")],
    format: Annotated[str, typer.Option(help="onnx, torch (.pt2) or safetensors (weights alone).")] = "onnx",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Default RUN/model.onnx (.pt2, …).")] = None,
    with_head: Annotated[
        bool, typer.Option("--with-head", help="Also the probabilities of the training classes.")
    ] = False,
    dtype: Annotated[str, typer.Option(help="Of the embedding: float32 or float16.")] = "float32",
    which: Annotated[str, typer.Option(help="best or last checkpoint.")] = "best",
    trust: Annotated[bool, typer.Option("--trust", help="Import the code that MODULE:FUNCTION names.")] = False,
    allow_older: Annotated[bool, typer.Option("--allow-older", help=ALLOW_OLDER)] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """A run's network as one file that takes raw samples and needs no hypermargin; checked against torch.

    \b
    Examples:
      hypermargin export runs/first
      hypermargin export runs/first --with-head -o first.onnx
      hypermargin export runs/first --format torch --dtype float16
      hypermargin export runs/first --format safetensors
    """
    from hypermargin.common.text import say
    from hypermargin.deploy.formats import ENDINGS
    from hypermargin.deploy.formats import export as write
    from hypermargin.deploy.metadata import flat
    from hypermargin.training import RunError

    options: Any = {"format": format, "dtype": dtype, "which": which, "allow_older": allow_older}
    with plain_errors():
        if not run.is_dir():
            raise ValueError(f"there is no folder {run}.")
        path = out or run / f"model{ENDINGS.get(format, '')}"
        try:
            done = write(run, path, with_head=with_head, trust=trust, replace=force, **options)
        except (RunError, OSError) as error:
            raise ValueError(str(error)) from None
    for note in done.about["notes"]:
        say(note)
    takes = done.about["input"]
    typer.echo(f"{'written':<12} {done.path} ({done.path.stat().st_size:,} bytes)")
    if takes["images"]:
        typer.echo(f"{'images':<12} {flat(done.about)['resize']}")
    if not done.differences:
        typer.echo(f"{'holds':<12} the weights alone; scale samples by (value − mean)/std as its metadata say")
        return
    channels = f" {takes['channels']}" if takes["channels"] else ""
    typer.echo(f"{'takes':<12} {takes['name']}: {takes['dtype']} ({', '.join(map(str, takes['shape']))}){channels}")
    for name, output in done.about["outputs"].items():
        shape = f"({', '.join(map(str, output['shape']))}{',' * (len(output['shape']) == 1)})"
        typer.echo(f"{'gives':<12} {name}: {output['dtype']} {shape}, within {done.differences[name]:.1g} of torch")
