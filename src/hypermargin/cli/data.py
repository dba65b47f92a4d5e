"""`hypermargin data`: look at data before training on it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hypermargin.cli._app import app, plain_errors

MOST_LISTED = 20  # unreadable samples, of which a folder may hold thousands


@app.command()
def data(
    what: Annotated[
        str, typer.Argument(help="glyphs, digits, mnist, fashion-mnist, cifar10, or a file or folder.")
    ],
    script: Annotated[
        str | None, typer.Option(help="With glyphs: whole scripts, in all installed typefaces: han, han+hangul, …")
    ] = None,
    size: Annotated[int | None, typer.Option(help="Side of the images; default the first image's.")] = None,
    color: Annotated[str, typer.Option(help="auto, gray or rgb.")] = "auto",
    samples_key: Annotated[str | None, typer.Option(help="Name of the samples in an npz file.")] = None,
    labels_key: Annotated[str | None, typer.Option(help="Name of the labels in an npz file.")] = None,
    levels: Annotated[int | None, typer.Option(help="How many folders name an identity.", min=1)] = None,
    on_bad: Annotated[str, typer.Option(help="error, or skip to list unreadable samples instead.")] = "error",
    check: Annotated[
        bool, typer.Option("--check", help="Decode every image and list all that are unreadable.")
    ] = False,
    bad_list: Annotated[
        Path | None, typer.Option(help=f"With --check: write all of them as .csv, not the first {MOST_LISTED}.")
    ] = None,
    picture: Annotated[Path | None, typer.Option(help="Write a picture of some samples (png, jpg).")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write everything as one .npz file, or scripts as .glyphs.")
    ] = None,
    workers: Annotated[int, typer.Option(help="Processes that decode.", min=0)] = 2,
) -> None:
    """What is in a data set; as a picture, or as one .npz file for a machine without image libraries.

    \b
    Examples:
      hypermargin data glyphs --picture glyphs.png
      hypermargin data glyphs --script han --picture han.png
      hypermargin data photos/ --check
      hypermargin data photos/ --check --bad-list unreadable.csv
      hypermargin data faces/train.rec --size 112 --out faces.npz
    """
    from hypermargin.common.text import say
    from hypermargin.data import decode_once, open_data
    from hypermargin.data.describe import montage, save_npz, summary, write_bad
    from hypermargin.data.drawn import ENDING
    from hypermargin.data.glyphs import draw_named
    from hypermargin.data.scripts import glyphs_named
    from hypermargin.files import free_path, replacing

    with plain_errors():
        if script is not None:
            if what.partition(":")[0] != "glyphs":
                raise ValueError(f"--script is for glyphs; got {what}.")
            names, folder = glyphs_named(what)
            what = f"glyphs:{script if not names else names + '+' + script}{':' if folder else ''}{folder}"
        drawn = bool(glyphs_named(what)[0]) and what.startswith("glyphs")
        if out is not None and out.suffix not in ((".npz", ENDING) if drawn else (".npz",)):
            raise ValueError(f"--out must end in .npz{' or ' + ENDING if drawn else ''}; got {out}.")
        if picture is not None and picture.suffix.lower() not in (".png", ".jpg", ".jpeg"):
            raise ValueError(f"--picture must end in .png or .jpg; got {picture}.")
        if bad_list is not None:
            free_path("--bad-list", bad_list, (".csv",), replace=True)
            check = True
        strict = check and on_bad == "error"
        on_bad = "skip" if check else on_bad  # the first must not hide the others
        found = open_data(
            what, size=size, color=color, samples_key=samples_key, labels_key=labels_key, levels=levels,
            on_bad=on_bad, say=say,
        )  # fmt: skip
        if check or out is not None:
            found = decode_once(found, memory=float("inf"), workers=workers, on_bad=on_bad, say=say)
        refused = strict and bool(found.bad)
        written = []
        try:
            if bad_list is not None:
                write_bad(found.bad, bad_list)
                written.append(bad_list)
            if picture is not None and not refused:
                from PIL import Image

                with replacing(picture) as temporary:
                    Image.fromarray(montage(found)).save(temporary)
                written.append(picture)
            if out is not None and not refused:
                if out.suffix == ENDING:
                    draw_named(what, size=size, say=say).save(out)
                else:
                    save_npz(found, out)
                written.append(out)
        except OSError as error:
            raise ValueError(str(error)) from None
    for name, text in [("data", found.name), *summary(found, MOST_LISTED)]:
        typer.echo(f"{name:<12} {text}")
    for path in written:
        typer.echo(f"{'written':<12} {path}")
    if check and not found.bad:
        typer.echo(f"{'checked':<12} all {len(found):,} samples can be read")
    if refused:
        stops = "Training stops at them, and nothing else was written; --on-bad skip leaves them out."
        typer.echo(f"hypermargin: error: {len(found.bad):,} samples cannot be read. {stops}", err=True)
        raise typer.Exit(1)
