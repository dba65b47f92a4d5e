"""`hypermargin verify`: are two images of one identity?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hypermargin.cli._app import ALLOW_OLDER, app, plain_errors


@app.command()
def verify(
    run: Annotated[Path, typer.Argument(help="A run's folder, or an exported .onnx file.")],
    images: Annotated[list[str], typer.Argument(help="Two images or more: every one against the first.")],
    far: Annotated[
        float | None, typer.Option(help="The false-accept rate to decide at; default equal errors.")
    ] = None,
    threshold: Annotated[float | None, typer.Option(help="The cosine from which on they are the same.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    which: Annotated[str, typer.Option(help="best or last checkpoint.")] = "best",
    trust: Annotated[bool, typer.Option("--trust", help="Import the code that MODULE:FUNCTION names.")] = False,
    allow_older: Annotated[bool, typer.Option("--allow-older", help=ALLOW_OLDER)] = False,
) -> None:
    """Same or different, with the score and the threshold. The exit code is 0 for either, 2 for an error.

    \b
    Examples:
      hypermargin verify runs/first a.jpg b.jpg
      hypermargin verify runs/first a.jpg b.jpg c.jpg --far 1e-3
      hypermargin verify first.onnx a.jpg b.jpg --threshold 0.4 --json
    """
    import dataclasses
    import json

    from hypermargin.common.text import say
    from hypermargin.deploy import open_model
    from hypermargin.deploy import verify as compare
    from hypermargin.deploy.metadata import in_all_units
    from hypermargin.training import RunError

    options: Any = {"which": which, "trust": trust, "allow_older": allow_older}
    with plain_errors():
        try:
            model = open_model(run, **options)
            for note in model.about.get("passed_over", ()):
                say(note)
            verdict = compare(model, images, far=far, threshold=threshold)
        except (RunError, OSError) as error:
            raise ValueError(str(error)) from None
    support = verdict.support
    if support is not None and not support.enough:
        say(support.words())
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(verdict), indent=1))
        return
    for match in verdict.matches:
        decision = "same" if match.same else "different"
        typer.echo(f"{decision:<12} cosine {match.cosine:.4f}, angle {match.angle_degrees:.1f}°: {match.image}")
    angle = in_all_units(verdict.threshold)["angle_degrees"]
    typer.echo(f"{'threshold':<12} cosine {verdict.threshold:.4f}, angle {angle:.1f}°: {verdict.origin}")
