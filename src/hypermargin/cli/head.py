"""`hypermargin head`: look at the classes in a file, change them, and carry them between libraries."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hypermargin.cli import _heads
from hypermargin.cli._app import ALLOW_OLDER, app
from hypermargin.cli._heads import Shared, complaints, finish, listed, put, read, rows_of, say, table, with_shared
from hypermargin.cli._help import App
from hypermargin.cli._tables import show

if TYPE_CHECKING:
    from hypermargin.heads import Weights

ABOUT = "Heads in files: look at their classes, add, remove and merge them, carry them between libraries."
ALL_PAIRS = 50_000  # classes, up to which comparing all with all takes some ten seconds
head = App(invoke_without_command=True, help=ABOUT)
app.add_typer(head, name="head")

Files = Annotated[
    list[Path], typer.Argument(help="A file (.pt, .safetensors, .npy), shards, their folder, or a run's folder.")
]
Centers = Annotated[
    int | None, typer.Option(help="Rows per class, for files that do not say how many centers a class has.", min=1)
]
Prefix = Annotated[str, typer.Option(help='Where the head is a layer of a model: its name, as "fc.".')]
Out = Annotated[Path, typer.Option("--out", "-o", help="The file to write: .safetensors, .pt or .npy.")]
IdsOut = Annotated[Path | None, typer.Option(help="Also a .csv file old,new of the ids; −1: removed.")]


@head.callback()
def _head(context: typer.Context) -> None:
    """Heads in files: look at their classes, add, remove and merge them, carry them between libraries."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@head.command()
def info(
    files: Files,
    nearest: Annotated[
        int | None, typer.Option(help=f"Nearest pairs of classes to list; default 5 up to {ALL_PAIRS:,} classes.")
    ] = None,
    prefix: Prefix = "",
    centers: Centers = None,
    allow_older: Annotated[bool, typer.Option("--allow-older", help=ALLOW_OLDER)] = False,
) -> None:
    """Classes, dim, lengths, rows that are zero or NaN, nearest pairs of classes, missing shards.

    \b
    Examples:
      hypermargin head info head.safetensors
      hypermargin head info work_dirs/ms1mv3_r50 --nearest 20
      hypermargin head info model.pt --prefix fc.
      hypermargin head info rows.npy --centers 3
    """
    import torch

    from hypermargin.heads import Pair, join, nearest_pairs
    from hypermargin.heads.look import lengths
    from hypermargin.heads.reading import find, read_one

    with complaints():
        found = find(files)
        parts = sorted((read_one(path, prefix, allow_older, centers) for path in found.paths), key=_first)
        held = [part.rest.pop("classes_held").tolist() for part in parts if "classes_held" in part.rest]
        weights = join(parts) if len(parts) > 1 else parts[0]
        ids = torch.arange(weights.classes)
        if len(held) == len(parts):
            ids = torch.cat([torch.arange(start, stop) for start, stop, *_ in held])
        size = lengths(weights.weight)
        zero = (size == 0).view(-1, weights.centers).any(1)
        by_class = [t.reshape(weights.classes, -1) for t in weights.rows().values()]
        bad = torch.stack([~t.isfinite().all(1) for t in by_class]).any(0)
        top = nearest if nearest is not None else 5 if weights.classes <= ALL_PAIRS else 0
        pairs = [
            Pair(int(ids[a]), int(ids[b]), c)
            for a, b, c in nearest_pairs(weights.weight, top, centers=weights.centers)
        ]
    sizes = sum(path.stat().st_size for path in found.paths if path.is_file())
    say("format", f"{weights.format}, {sizes:,} bytes" if sizes else weights.format)
    if found.ranks:
        say("shards", f"{len(found.ranks)}, ranks {listed(found.ranks)}")
        say("missing", f"ranks {listed(found.missing)}" if found.missing else "none up to the last rank given")
    for start, stop, total, rank, world in held:
        say("slice", f"classes {start}:{stop} of {total:,}, rank {rank} of {world}")
    say("classes", f"{weights.classes:,}" + (" in these shards" if found.missing else ""))
    if weights.centers > 1:
        say("centers", f"{weights.centers} per class")
    say("dim", f"{weights.dim:,}")
    say("dtype", str(weights.weight.dtype).removeprefix("torch."))
    say("holds", ", ".join(weights.entries()))
    good = size[size.isfinite()]
    if len(good):
        say("lengths", f"{good.min():.4g} least, {good.median():.4g} median, {good.max():.4g} largest")
    say("zero rows", rows_of(ids[zero]))
    say("NaN or inf", rows_of(ids[bad]))
    if pairs:
        show([table("nearest pairs of classes", pairs)])
    elif nearest is None and weights.classes > ALL_PAIRS:
        minutes = len(weights.weight) ** 2 * weights.dim / 6e12  # at 100 GFLOP/s, each pair once
        say("nearest", f"not compared; --nearest 5 takes {minutes:,.0f} minutes or so")


def _first(part: Weights) -> int:
    """Return the first class of a slice that says what it is."""
    held = part.rest.get("classes_held")
    return 0 if held is None else int(held[0])


@head.command()
@with_shared
def resize(
    files: Files,
    out: Out,
    add: Annotated[int | None, typer.Option(help="Add so many classes, with random rows.")] = None,
    from_embeddings: Annotated[
        tuple[Path, Path] | None,
        typer.Option(help="Add a class for every label: (N, dim) embeddings and (N,) labels, .npy.", metavar="E L"),
    ] = None,
    remove: Annotated[str | None, typer.Option(help="Remove classes: 3,5,8-12 or a file of ids.")] = None,
    reorder: Annotated[Path | None, typer.Option(help="A .csv file of old,new ids; others stay.")] = None,
    m: Annotated[
        str | None,
        typer.Option(help="Margin of added classes, where the file has one per class: 0.5 or 1,0.3,0.2."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of random rows.")] = 0,
    ids_out: IdsOut = None,
    *,
    shared: Shared,
) -> None:
    """Add, remove or reorder classes: one of the three at a time.

    \b
    Examples:
      hypermargin head resize head.safetensors --add 100 -o larger.safetensors
      hypermargin head resize head.pt --from-embeddings new.npy labels.npy -o larger.pt
      hypermargin head resize head.npy --remove 3,5,8-12 -o smaller.npy --ids-out ids.csv
      hypermargin head resize head.pt --reorder map.csv -o ordered.pt --dry-run
    """
    from hypermargin import heads

    adding = add is not None or from_embeddings is not None
    asked = {"--add": adding, "--remove": remove is not None, "--reorder": reorder is not None}
    if sum(asked.values()) != 1:
        got = " and ".join(name for name, given in asked.items() if given) or "none"
        raise ValueError(f"give one of {', '.join(asked)}; got {got}.")
    if m is not None and not adding:
        raise ValueError("--m is the margin of added classes; give it with --add or --from-embeddings.")
    weights = read(files, shared)
    before = weights.classes
    if remove is not None:
        ids = heads.remove_classes(weights, _heads.read_ids("--remove", remove))
    elif reorder is not None:
        ids = heads.reorder_classes(weights, _heads.read_map(reorder))
    elif from_embeddings is not None:
        x, y = _heads.read_embeddings(*from_embeddings)
        ids = heads.add_classes(weights, add, embeddings=x, labels=y, m=_heads.read_numbers("--m", m))
    else:
        ids = heads.add_classes(weights, add, m=_heads.read_numbers("--m", m), seed=seed)
    finish(weights, before, ids, out, ids_out, shared)


@head.command()
@with_shared
def merge(
    files: Files,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The file to write; not needed for --dry-run.")
    ] = None,
    groups: Annotated[Path | None, typer.Option(help="A .csv file, the ids of one group per line.")] = None,
    above: Annotated[float | None, typer.Option(help="Merge classes with a cosine of at least this.")] = None,
    counts: Annotated[Path | None, typer.Option(help="Samples of every class, .npy, to weigh the means.")] = None,
    ids_out: IdsOut = None,
    *,
    shared: Shared,
) -> None:
    """Make one class of several that are one identity: those listed, or those that are nearly parallel.

    Classes that are near by way of a third fall into one group: look at --dry-run first.

    \b
    Examples:
      hypermargin head merge head.safetensors --above 0.9 --dry-run
      hypermargin head merge head.safetensors --above 0.9 -o merged.safetensors --ids-out ids.csv
      hypermargin head merge head.pt --groups same.csv --counts samples.npy -o merged.pt
    """
    from hypermargin import heads

    if (groups is None) == (above is None):
        raise ValueError("give one of --groups and --above.")
    if out is None and not shared.dry_run:
        raise ValueError("--out is missing: the file to write. To look only, add --dry-run.")
    weights = read(files, shared)
    before, pairs = weights.classes, []
    if groups is not None:
        found = _heads.read_groups(groups)
    else:
        pairs = heads.nearest_pairs(weights.weight, above=above, centers=weights.centers)
        found = heads.groups_of(pairs)
        if not found:
            raise ValueError(f"no two classes have a cosine of {above:g} or more; nothing to merge.")
    samples = None if counts is None else _heads.read_counts(counts)
    ids = heads.merge_classes(weights, found, counts=samples)
    if pairs and shared.dry_run:
        show([table(f"{len(pairs):,} pairs with a cosine of {above:g} or more", pairs[:1000])])
    for group in found[:1000] if shared.dry_run else ():
        say("would merge", f"{', '.join(map(str, group))} into {int(ids[group[0]])}")
    if out is None:
        say("classes", f"{before:,} to {weights.classes:,}")
    else:
        finish(weights, before, ids, out, ids_out, shared)


@head.command("import")
@with_shared
def import_(files: Files, out: Out, *, shared: Shared) -> None:
    """A head of insightface, pytorch-metric-learning, an nn.Linear or a run as one file of ours.

    \b
    Examples:
      hypermargin head import work_dirs/ms1mv3_r50 --classes 93431 -o head.safetensors
      hypermargin head import softmax_fc_gpu_0.pt softmax_fc_gpu_1.pt -o head.safetensors
      hypermargin head import arcface_loss.pt -o head.pt
      hypermargin head import model.pt --prefix fc. -o head.safetensors
    """
    weights = read(files, shared)
    say("read", f"{weights.format}, {weights.classes:,} classes of {weights.dim:,} dimensions")
    put(weights, out, shared)


@head.command()
@with_shared
def export(
    files: Files,
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write; for insightface, a folder.")],
    to: Annotated[str, typer.Option(help="insightface, metric-learning, linear, hypermargin, safetensors or npy.")],
    shards: Annotated[int, typer.Option(help="Files of insightface: the GPUs to go on with.", min=1)] = 1,
    *,
    shared: Shared,
) -> None:
    """A head as other libraries keep it; insightface's also from one number of shards to another.

    \b
    Examples:
      hypermargin head export head.safetensors --to insightface --shards 4 -o resumed/
      hypermargin head export work_dirs/on8gpus --to insightface --shards 3 -o work_dirs/on3gpus
      hypermargin head export head.safetensors --to metric-learning -o arcface_loss.pt
      hypermargin head export head.pt --to linear -o fc.pt
    """
    put(read(files, shared), out, shared, format=to, shards=shards)
