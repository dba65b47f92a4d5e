"""`hypermargin bench`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hypermargin.cli._app import app, plain_errors

bench = typer.Typer(help="Measure: time, memory and exactness beside the peers.", no_args_is_help=True)
app.add_typer(bench, name="bench")


@bench.callback()
def _bench() -> None:
    """Measure: time, memory and exactness beside the peers."""


@bench.command()
def head(
    rows: Annotated[int, typer.Option(help="Rows of the batch, N.", min=1)] = 256,
    classes: Annotated[int, typer.Option(help="Classes, C.", min=2)] = 100_000,
    dim: Annotated[int, typer.Option(help="Dimension of the features, d.", min=1)] = 512,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    precision: Annotated[str, typer.Option(help="float32, or bfloat16 or float16 by autocast.")] = "float32",
    rounds: Annotated[int, typer.Option(help="Interleaved rounds to time.", min=1)] = 5,
    only: Annotated[str, typer.Option(help="Only contenders whose name contains this; several: a,b,c.")] = "",
    growth_to: Annotated[int, typer.Option(help="Also our cost a class up to so many classes; 0: no.")] = 0,
    sweep_to: Annotated[int, typer.Option(help="Also all against C up to so many classes, with a picture.")] = 0,
    out: Annotated[Path | None, typer.Option(help="A folder for the JSON, the Markdown and the picture.")] = None,
) -> None:
    """One training step of the head, ours beside the peers and the floor of the three matrix products.

    \b
    Examples:
      hypermargin bench head --rows 256 --classes 20000
      hypermargin bench head --classes 100000 --growth-to 400000 --sweep-to 100000 --out results
      hypermargin bench head --device cuda --precision bfloat16 --rows 1024 --classes 1000000
      hypermargin bench head --only "chunked,textbook"
    """
    from benchmarks.suite.head import as_markdown, run
    from hypermargin import checks

    with plain_errors():
        checks.one_of("--device", device, ("cpu", "cuda"))
        checks.one_of("--precision", precision, ("float32", "bfloat16", "float16"))
    with _saying() as say:
        result = run(
            rows, classes, dim, device=device, precision=precision, rounds=rounds,
            only=only, growth_to=growth_to, sweep_to=sweep_to, out=out, say=say,
        )  # fmt: skip
    typer.echo(as_markdown(result))


@bench.command()
def fused(
    rounds: Annotated[int, typer.Option(help="Interleaved rounds to time.", min=1)] = 20,
    out: Annotated[Path | None, typer.Option(help="A folder for the JSON and the Markdown.")] = None,
) -> None:
    """The fused backend on this GPU beside what the GPU can do: routes, kernels, growth, memory, precision.

    \b
    Examples:
      hypermargin bench fused
      hypermargin bench fused --out results
    """
    from benchmarks.suite.fused import run
    from benchmarks.suite.fused_tables import as_markdown

    with plain_errors(), _saying() as say:
        result = run(out, say, rounds=rounds)
    typer.echo(as_markdown(result))


@bench.command()
def loader(
    images: Annotated[int, typer.Option(help="Images of each format.", min=1)] = 4000,
    size: Annotated[int, typer.Option(help="Side of the images.", min=8)] = 112,
    workers: Annotated[int, typer.Option(help="Processes that decode.", min=0)] = 2,
    threads: Annotated[int, typer.Option(help="CPU threads of torch.", min=1)] = 1,
    rounds: Annotated[int, typer.Option(help="Interleaved rounds to time.", min=1)] = 3,
    out: Annotated[Path | None, typer.Option(help="A folder for the JSON and the Markdown.")] = None,
) -> None:
    """Images a second from JPEGs, .rec and .npz, ours beside a plain PIL loop, torch's DataLoader and the floor.

    \b
    Examples:
      hypermargin bench loader
      hypermargin bench loader --images 20000 --workers 8 --out results
    """
    from benchmarks.suite.loader import as_markdown, run

    with plain_errors(), _saying() as say:
        result = run(images, size, workers, threads=threads, rounds=rounds, out=out, say=say)
    typer.echo(as_markdown(result))


@bench.command()
def step(
    threads: Annotated[int, typer.Option(help="CPU threads of torch.", min=1)] = 1,
    rounds: Annotated[int, typer.Option(help="Interleaved rounds to time.", min=1)] = 7,
    only: Annotated[str, typer.Option(help="Only the cases whose name contains this.")] = "",
    out: Annotated[Path | None, typer.Option(help="A folder for the JSON and the Markdown.")] = None,
) -> None:
    """What the trainer adds to a training step, beside a bare loop with the same network, head and batches.

    \b
    Examples:
      hypermargin bench step
      hypermargin bench step --only mlp --rounds 20
      hypermargin bench step --out results
    """
    from benchmarks.suite.step import CASES, as_markdown, run

    with plain_errors(), _saying() as say:
        cases = tuple(case for case in CASES if only in case.name)
        if not cases:
            raise ValueError(f"--only {only!r} is in no case's name: {'; '.join(case.name for case in CASES)}.")
        result = run(cases, threads=threads, rounds=rounds, out=out, say=say)
    typer.echo(as_markdown(result))


@bench.command()
def evaluate(
    samples: Annotated[int, typer.Option(help="Embeddings, ten an identity.", min=20)] = 50_000,
    dim: Annotated[int, typer.Option(help="Their dimension.", min=2)] = 512,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    threads: Annotated[int, typer.Option(help="CPU threads of torch.", min=1)] = 2,
    rounds: Annotated[int, typer.Option(help="Interleaved rounds to time.", min=1)] = 3,
    out: Annotated[Path | None, typer.Option(help="A folder for the JSON and the Markdown.")] = None,
) -> None:
    """All pairs of many embeddings, beside the bare matrix product and scikit-learn: time and memory.

    \b
    Examples:
      hypermargin bench evaluate --samples 10000
      hypermargin bench evaluate --out results
    """
    from benchmarks.suite.evaluate import as_markdown, run

    with plain_errors(), _saying() as say:
        result = run(samples, dim, device=device, threads=threads, rounds=rounds, out=out, say=say)
    typer.echo(as_markdown(result))


@bench.command()
def ranks(
    rows: Annotated[int, typer.Option(help="Rows of the batch in all; each number of ranks must divide it.")] = 240,
    classes: Annotated[int, typer.Option(help="Classes in all, C.")] = 100_000,
    dim: Annotated[int, typer.Option(help="Dimension of the features, d.")] = 512,
    worlds: Annotated[str, typer.Option(help="Numbers of ranks, with commas.")] = "1,2,3,4",
    rate: Annotated[float, typer.Option(help="Share of the classes in a step of Partial FC.")] = 0.1,
    rounds: Annotated[int, typer.Option(help="Interleaved rounds to time.")] = 7,
    out: Annotated[Path | None, typer.Option(help="A folder for the JSON and the Markdown.")] = None,
) -> None:
    """A training step with the classes on several processes (gloo, CPU): time, CPU time, messages, memory per rank.

    \b
    Examples:
      hypermargin bench ranks
      hypermargin bench ranks --classes 20000 --worlds 1,2 --rows 64
      hypermargin bench ranks --out results
    """
    from benchmarks.suite.crew import RankError
    from benchmarks.suite.ranks import run
    from benchmarks.suite.ranks_tables import as_markdown

    with plain_errors(), _saying() as say:
        try:
            numbers = tuple(int(word) for word in worlds.split(","))
        except ValueError:
            raise ValueError(
                f"--worlds must be whole numbers with commas, such as 1,2,4; got {worlds!r}."
            ) from None
        try:
            result = run(rows, classes, dim, worlds=numbers, rate=rate, rounds=rounds, out=out, say=say)
        except RankError as error:
            typer.echo(f"Error: {error}", err=True)
            raise typer.Exit(1) from None
    typer.echo(as_markdown(result))


@bench.command()
def shallow(
    part: Annotated[
        list[str] | None, typer.Option(help="accuracy, search, angle, import or time; repeatable. Without it: all.")
    ] = None,
    data: Annotated[
        list[str] | None, typer.Option(help="iris, wine, breast-cancer or digits; repeatable. Without it: all.")
    ] = None,
    repeats: Annotated[int, typer.Option(help="Of the five folds.", min=1)] = 4,
    quick: Annotated[bool, typer.Option("--quick", help="Little of everything, to see that it works.")] = False,
    out: Annotated[Path | None, typer.Option(help="A folder for the JSON and the Markdown.")] = None,
) -> None:
    """The scikit-learn estimator beside LogisticRegression, LinearSVC and SVC: accuracy, angles, time.

    Parts already in the folder are kept, so that one can be measured again by itself.

    \b
    Examples:
      hypermargin bench shallow --quick --data iris
      hypermargin bench shallow --out results
      hypermargin bench shallow --part time --out results
    """
    from benchmarks.suite.shallow import run
    from benchmarks.suite.shallow_tables import as_markdown

    with plain_errors(), _saying() as say:
        result = run(part or (), data or (), repeats=repeats, quick=quick, out=out, say=say)
    typer.echo(as_markdown(result))


@contextmanager
def _saying() -> Iterator[Callable[[str], None]]:
    """Say what is being done: one changing line in a terminal, else line after line; on stderr."""
    console = Console(stderr=True, highlight=False)
    with console.status("") as status:

        def say(text: str) -> None:
            status.update(text)
            if not console.is_terminal:
                console.print(text)

        yield say
