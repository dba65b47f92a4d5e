"""The benchmark of `MarginSoftmaxClassifier` beside scikit-learn's own: accuracy, angles, import vectors, time.

`shallow_folds.py` has the cross-validation, `shallow_parts.py` the rest, `shallow_tables.py` the tables. Each part
is run by itself and put in its place in shallow.json, so that one can be repeated without the others.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from benchmarks import command
from benchmarks.record import Say, store, surroundings
from benchmarks.shallow_folds import DATA, QUICK, Plan, accuracy, search
from benchmarks.shallow_margin import FILES, margin
from benchmarks.shallow_parts import angle, fit_time, importing
from benchmarks.shallow_tables import as_markdown
from hypermargin import checks

PARTS: dict[str, Callable[[Plan, Say], dict[str, Any]]] = {
    "accuracy": accuracy,
    "margin": margin,
    "search": search,
    "angle": angle,
    "import": importing,
    "time": fit_time,
}


def run(
    parts: Sequence[str] = (),
    data: Sequence[str] = (),
    *,
    repeats: int = 4,
    quick: bool = False,
    files: Path | None = None,
    out: Path | None = None,
    say: Say = print,
) -> dict[str, Any]:
    """The parts asked for, all if none; writes shallow.json and .md into `out`, keeping the parts found there.

    A quick run, or one of some data only, has a file name of its own.
    """
    for part in parts:
        checks.one_of("--part", part, tuple(PARTS))
    for name in data:
        checks.one_of("--data", name, tuple(DATA))
    missing = [] if files is None else [file for file in FILES.values() if not (files / file).is_file()]
    if missing:
        raise ValueError(f"--files must be a folder with {', '.join(FILES.values())}; {files} has no {missing[0]}.")
    wanted = [part for part in PARTS if part in parts or not parts]
    chosen = tuple(name for name in DATA if name in data or not data)
    plan = replace(QUICK, data=chosen, files=files) if quick else Plan(chosen, repeats=repeats, files=files)
    stem = "-".join(["shallow", *(["quick"] if quick else []), *(chosen if len(chosen) < len(DATA) else [])])
    result: dict[str, Any] = {"quick": quick, "parts": _stored(out, stem)}
    for part in wanted:
        start = time.perf_counter()
        environment = _environment()
        # numpy and scipy bring a BLAS each, whose threads are in each other's way; `time` shows that.
        with nullcontext() if part == "time" else threadpool_limits(1):
            found = PARTS[part](plan, say)
        found |= {"environment": environment, "seconds": time.perf_counter() - start}
        result["parts"] = {name: (result["parts"] | {part: found}).get(name) for name in PARTS}
        result["parts"] = {name: kept for name, kept in result["parts"].items() if kept is not None}
        store(result, as_markdown(result), stem, out, say)
    return result


def _environment() -> dict[str, str]:
    found = {key: value for key, value in surroundings().items() if key not in ("pillow", "threads")}
    return found | {name: version(name) for name in ("scikit-learn", "scipy")}


def _stored(out: Path | None, stem: str) -> dict[str, Any]:
    """The parts that were measured before."""
    path = None if out is None else out / f"{stem}.json"
    if path is None or not path.exists():
        return {}
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["parts"]
    except (json.JSONDecodeError, KeyError, TypeError):
        raise ValueError(
            f"--out has a {path.name} that this benchmark did not write; move it away or give another folder."
        ) from None
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command.flags(
        "shallow",
        "The scikit-learn estimator beside LogisticRegression, LinearSVC and SVC: accuracy, angles, time.\n"
        "Parts already in the folder are kept, so that one can be measured again by itself.",
        "--quick --data iris",
        "--out results",
        "--part time --out results",
    )
    parser.add_argument("--part", action="append", help=f"{', '.join(PARTS)}; repeatable. Without it: all")
    parser.add_argument("--data", action="append", help=f"{', '.join(DATA)}; repeatable. Without it: all")
    parser.add_argument("--repeats", type=command.at_least(1), default=4, help="of the five folds")
    parser.add_argument("--files", type=Path, help=f"a folder with {' and '.join(FILES.values())}, for margin")
    parser.add_argument("--quick", action="store_true", help="little of everything, to see that it works")
    given = parser.parse_args(arguments)
    with command.plain_errors(parser):
        result = run(
            given.part or (),
            given.data or (),
            repeats=given.repeats,
            quick=given.quick,
            files=given.files,
            out=given.out,
            say=command.say,
        )
    print(as_markdown(result))


if __name__ == "__main__":
    main()
