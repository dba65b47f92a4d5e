"""The tables of the estimator's benchmark, for people."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

from benchmarks.record import in_words
from benchmarks.shallow_folds import BINS, KERNELS, RIVAL, WITHOUT, settings

TITLES = {
    "a-softmax": "a-softmax = sphereface",
    "cosface": "cosface = am-softmax",
    "angle": "angle only",
    "magnitude": "magnitude only",
}
VERDICTS = ("helps", "hurts", "not told apart")


def as_markdown(result: dict[str, Any]) -> str:
    """The parts there are, for people."""
    parts = result["parts"]
    device = next(iter(parts.values()))["environment"]["device"] if parts else ""
    lines = [
        f"# Softmax with a margin as a shallow classifier, {device}",
        "",
        "`MarginSoftmaxClassifier` beside scikit-learn's LogisticRegression, LinearSVC and SVC on the data sets "
        "that come with it, standardised inside each fold. Machines are noisy: compare times within a table.",
    ]
    if result["quick"]:
        lines += ["", "A quick run on a part of the data, to see that it works. Its numbers mean nothing."]
    sections = {
        "accuracy": _accuracy,
        "margin": _margin,
        "search": _search,
        "angle": _angle,
        "import": _import,
        "time": _time,
    }
    for name, section in sections.items():
        if name in parts:
            part = parts[name]
            lines += ["", *section(part), "", f"{part['seconds']:,.0f} s; {in_words(part['environment'])}"]
    return "\n".join(lines) + "\n"


def _accuracy(part: dict[str, Any]) -> Iterator[str]:
    yield from ("## Accuracy at defaults", "")
    yield (
        f"{part['folds']} stratified folds × {part['repeats']} repeats, the same for all. Accuracy in per cent, ± "
        "its standard deviation over all folds; log-loss, the mean of the folds; calibration, the expected error "
        f"of the top label's probability, {BINS} bins over the held-out samples of a repeat, in per cent; "
        "fit, the median of the folds, scaler included, one thread, one contender after the other, so it is rough. "
        "LinearSVC and SVC have no probabilities. "
        "The margins: " + ", ".join(f"{head} {_values([m])}" for head, m in part["margins"].items()) + "."
    )
    yield from _contenders(part)
    yield from _verdicts(part)


def _margin(part: dict[str, Any]) -> Iterator[str]:
    yield from ("## No margin, a chosen one, and the default of 0.1", "")
    yield (
        f"{part['folds']} stratified folds, once; of letter the first alone. With a kernel the three small sets. "
        'ArcFace; m="auto" takes one of 0, 0.05, 0.1, 0.2 and 0.4 by three folds inside each training part, and '
        "its time is that of all 16 fits. letter is UCI's Letter Recognition, standardised; sms the SMS Spam "
        "Collection as TfidfVectorizer() has it."
    )
    named = {one["data"]: f"{one['data']} {one['samples']:,} in {one['classes']} classes" for one in part["tables"]}
    yield f"\nSamples: {', '.join(named.values())}."
    yield from _contenders(part)


def _search(part: dict[str, Any]) -> Iterator[str]:
    yield from ("## With a search", "")
    yield (
        f"Six settings for everybody, chosen by the accuracy of {part['inner_folds']} inner folds of each training "
        f"part; {part['folds']} folds × {part['repeats']} repeats outside. Fit: the whole search and the last fit. "
        "With a kernel not digits, which would take too long. Of equally good settings the first is taken:"
    )
    yield ""
    for kernel in KERNELS:
        named = [RIVAL[kernel], *(["LinearSVC"] if kernel == "linear" else []), "softmax", "normface", *WITHOUT]
        for who in named:
            wanted = settings(who, kernel, 1)
            text = "; ".join(f"{key} {_values([s[key] for s in wanted])}" for key in wanted[0])
            yield f"- {kernel}, {TITLES.get(who, who)}: {text}{' (divided by d)' if who == 'SVC' else ''}"
    yield "- modified-softmax: as softmax"
    yield from _contenders(part)
    yield from _verdicts(part)


def _values(values: list[Any]) -> str:
    values = [tuple(v) if isinstance(v, list) else v for v in values]  # JSON has no tuples
    shown = [
        "(" + ", ".join(f"{x:g}" for x in v) + ")"
        if isinstance(v, tuple)
        else v
        if isinstance(v, str)
        else f"{v:g}"
        for v in values
    ]
    return ", ".join(dict.fromkeys(shown))


def _contenders(part: dict[str, Any]) -> Iterator[str]:
    for one in part["tables"]:
        searched = any("chosen" in row for row in one["rows"].values())
        more = " most often chosen |" if searched else ""
        yield from ("", f"### {one['data']}, {one['kernel']}", "")
        yield "| | accuracy | log-loss | calibration | fit ms |" + more
        yield "|---|---:|---:|---:|---:|" + ("---|" if searched else "")
        for who, row in one["rows"].items():
            spread = "" if row["spread"] is None else f" ± {100 * row['spread']:.2f}"
            cells = [f"{100 * row['accuracy']:.2f}{spread}", _or_dash(row["log_loss"], ".4f")]
            cells += [_or_dash(row["calibration"], ".2f", 100), f"{1e3 * row['fit_seconds']:,.1f}"]
            if searched:
                best, times = next(iter(row.get("chosen", {"": 0}).items()))
                cells.append(f"{best} ({times} of {sum(row['chosen'].values())})" if times else "")
            yield f"| {TITLES.get(who, who)} | " + " | ".join(cells) + " |"
        yield from _unfinished((who, row["unfinished"]) for who, row in one["rows"].items())


def _unfinished(counted: Any) -> Iterator[str]:
    found = [f"{TITLES.get(who, who)} {count}" for who, count in counted if count]
    if found:
        yield from ("", f"Fits that stopped before their tolerance, inner ones counted: {', '.join(found)}.")


def _or_dash(value: float | None, form: str, times: float = 1.0) -> str:
    return "–" if value is None else f"{times * value:{form}}"


def _verdicts(part: dict[str, Any]) -> Iterator[str]:
    yield from ("", "### What the margin does to accuracy", "")
    bound = part["tables"][0]["verdicts"][0]["bound"] if part["tables"] else float("nan")
    yield (
        "Points of accuracy against the same head without a margin, and against scikit-learn's, fold by fold, with "
        "the corrected resampled t-test of Nadeau and Bengio (variance times 1/n + n_test/n_train): told apart "
        f"where |t| > {bound:.2f}, Student's at 95 %. Of twenty comparisons of equals one is, by chance."
    )
    total: dict[str, Counter[str]] = {}
    for kernel in KERNELS:
        tables = [one for one in part["tables"] if one["kernel"] == kernel]
        if not tables:
            continue
        yield from ("", f"| {kernel} | against | " + " | ".join(one["data"] for one in tables) + " |")
        yield "|---|---|" + "---|" * len(tables)
        for place, first in enumerate(tables[0]["verdicts"]):
            tests = [one["verdicts"][place] for one in tables]
            rival = first["against"] == RIVAL[kernel]
            kind = f"{kernel}, against " + (RIVAL[kernel] if rival else "the same head without a margin")
            total.setdefault(kind, Counter()).update(test["verdict"] for test in tests)
            cells = " | ".join(_test(test, rival) for test in tests)
            yield f"| {TITLES.get(first['head'], first['head'])} | {first['against']} | {cells} |"
    yield from ("", "In sum:", "")
    for kind, counted in total.items():
        words = "better", "worse", "not told apart"
        rival = not kind.endswith("margin")
        shown = zip(words if rival else VERDICTS, VERDICTS, strict=True)
        yield f"- {kind}: " + ", ".join(f"{word} {counted[verdict]}" for word, verdict in shown)


def _test(test: dict[str, Any], rival: bool) -> str:
    verdict = test["verdict"]
    if rival:  # another method, not the margin alone
        verdict = {"helps": "better", "hurts": "worse"}.get(verdict, verdict)
    t = "no spread" if test["t"] is None else f"t = {_rounded(test['t'], 1):.1f}"
    return f"{verdict}, {_rounded(100 * test['difference'], 2):+.2f} ({t})".replace("-", "−")


def _rounded(value: float, digits: int) -> float:
    return round(value, digits) + 0.0  # no −0.0


def _angle(part: dict[str, Any]) -> Iterator[str]:
    m = part["m"]
    yield from ("## Angle, magnitude, both, or in turn", "")
    yield (
        f"Linear, ArcFace with m = {m:g} ({math.degrees(m):.1f}°); {part['folds']} folds × {part['repeats']} "
        f"repeats, means. Angle only: `unit_weight=True, scale={part['scale']:g}`, divided by √d where features "
        "are not unit; magnitude only: no margin, `unit_weight=False` (W is free, so its angles move too, but "
        "nothing asks them to keep a distance); both: `unit_weight=False`; alternated: `unit_weight=False, "
        "alternate=True`. In degrees: own, of held-out samples to their own class vector; between, of class "
        "vectors, mean and smallest; margin, of held-out samples, the angle to the nearest other class vector less "
        "that to their own. Met: the share of training samples whose margin is at least m. With neither a margin "
        "nor unit features the model has a bias, which no angle sees. ± is over the classes of a fit."
    )
    yield (
        "\nThe last two columns are of the data, not of the class vectors: between class means, and of samples to "
        "the mean of their class. They are the same in all rows, because the inputs are given: the boundary "
        "moves, the data cannot."
    )
    for one in part["tables"]:
        kind = "unit features" if one["unit_features"] else "features with their lengths"
        yield from ("", f"### {one['data']}, {kind}", "")
        yield (
            "| | accuracy | log-loss | own | between, mean | smallest | mean \\|W_j\\| | margin | met | "
            "class means | to own mean |"
        )
        yield "|---|" + "---:|" * 10
        for way, row in one["rows"].items():
            cells = [f"{100 * row['accuracy']:.2f}", f"{row['log_loss']:.4f}"]
            cells += [f"{row[key]:.1f}" for key in ("intra", "inter", "inter_least")]
            cells += [f"{row['magnitude']:.2f} ± {row['magnitude_spread']:.2f}", f"{row['margin']:.1f}"]
            cells += [f"{100 * row['margin_met']:.1f} %", f"{row['means_apart']:.2f}", f"{row['to_own_mean']:.2f}"]
            yield f"| {TITLES.get(way, way)} | " + " | ".join(cells) + " |"
        yield from _unfinished((way, row["unfinished"]) for way, row in one["rows"].items())


def _import(part: dict[str, Any]) -> Iterator[str]:
    yield from ("## Import vectors", "")
    yield (
        f"Rbf kernel, {part['folds']} folds; Nyström's is the mean of {part['states']} random states. Points: how "
        "many training points a prediction needs, SVC's support vectors. Fit: the median of the folds; predict: a "
        "sample of the held-out part, taken at once, best of three, median of the folds. One thread."
    )
    for one in part["tables"]:
        yield from ("", f"### {one['data']}", "", "| | | points | accuracy | log-loss | fit ms | predict µs |")
        yield "|---|---|---:|---:|---:|---:|---:|"
        for row in one["rows"]:
            yield (
                f"| {row['model']} | {row['how']} | {row['points']:.0f} | {100 * row['accuracy']:.2f} | "
                f"{_or_dash(row['log_loss'], '.4f')} | {1e3 * row['fit_seconds']:,.1f} | "
                f"{1e6 * row['predict_seconds']:.1f} |"
            )
        yield from _unfinished((f"{r['model']} {r['how']} {r['points']:.0f}", r["unfinished"]) for r in one["rows"])


def _time(part: dict[str, Any]) -> Iterator[str]:
    yield from ("## Time of a fit", "")
    yield (
        f"All of standardised digits ({part['samples']:,} × {part['features']}), linear, best of {part['rounds']} "
        "interleaved rounds, at equal tol, the largest entry of the gradient of the mean loss. Ratios are to "
        "LogisticRegression in the same table. With default threads LogisticRegression itself is slowed where "
        "numpy's and scipy's OpenBLAS wait for work on the same few cores; the estimator takes one thread for "
        "products this small. The tables with one thread are the fair ones."
    )
    for one in part["tables"]:
        threads = "one thread" if one["threads"] == "one" else "default threads"
        yield from ("", f"### {threads}, tol {one['tol']:g}", "")
        yield f"Pools: {', '.join(one['pools'])}."
        yield from ("", "| | ms | × LogisticRegression | aim | | iterations |", "|---|---:|---:|---:|---|---:|")
        for row in one["rows"]:
            aim = "" if row["aim"] is None else f"≤ {row['aim']:g}"
            reached = "" if row["aim"] is None else "reached" if row["ratio"] <= row["aim"] else "missed"
            yield (
                f"| {row['name']} | {1e3 * row['seconds']:.1f} | {row['ratio']:.2f} | {aim} | {reached} | "
                f"{row['iterations']} |"
            )
        yield from _unfinished([("fits", one["unfinished"])])
