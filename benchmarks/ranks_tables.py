"""The tables of the benchmark of ranks, for people."""

from __future__ import annotations

from typing import Any

from benchmarks.record import in_words

MB = 2**20


def as_markdown(result: dict[str, Any]) -> str:
    """The tables, for people."""
    p, env = result["problem"], result["environment"]
    cores, most = env["cores"], max(p["worlds"])
    fewest = p["rows"] // most
    lines = [
        f"# Ranks: the class-parallel head on {cores} cores, C = {p['classes']:,}, d = {p['dim']}, {env['device']}",
        "",
        in_words(env),
        "ArcFace s = 64, m = 0.5, float32, blocks of classes, gloo on one machine; forward, backward and a step of "
        f"SGD with momentum. Medians of {p['rounds']} interleaved rounds.",
        "",
        "- Step: until the last rank has ended it. × plain: to one process with as many rows in all.",
        "- CPU s: process time of all threads of all ranks together. No thread waits by turning round "
        "(OMP_WAIT_POLICY=passive).",
        "- Messages: the share of the step, and of its CPU time, that is gone if every rank does the same on its "
        "classes and all rows and says nothing. It is waiting, copying and sending; noise can make it negative.",
        "- Peak: VmHWM (reset by /proc/self/clear_refs before the step) less the memory before the head was made, "
        "of the rank that has most. Tables: weight, gradient and momentum of its classes, computed.",
        "- Sent: by each rank in a step, by `hypermargin.parallel.traffic`. gloo sends the gradient twice.",
        "",
        f"**{cores} cores show the time of up to {cores} ranks.** More take turns. What counts then is CPU time: "
        "as far as it stays that of the plain head, as many cores as ranks would share it.",
        "",
        f"## The same rows in all: {p['rows']}",
        "",
        *_table([line for line in result["full"] if line["rows"] == p["rows"]]),
        "",
        f"## The same rows on every rank: {fewest}",
        "",
        f"The work grows with the ranks; plain is one process with all {fewest} to {fewest * most} rows.",
        "",
        *_table([line for line in result["full"] if line["world"] == 0 or line["rows_each"] == fewest]),
        "",
        f"## Partial FC: {p['rate']:.0%} of the classes, `SampledSGD`, {p['rows']} rows in all",
        "",
        "Plain is the plain head with the same sample. What does not shrink with the rate is drawing the sample, "
        "which looks at the number of every class held.",
        "",
        *_table(result["sampled"]),
    ]
    return "\n".join(lines) + "\n"


def _table(chosen: list[dict[str, Any]]) -> list[str]:
    names = ["ranks", "threads each", "rows each", "classes each", "step ms", "× plain", "CPU s in all", "× plain"]
    names += ["messages, of time", "of CPU", "peak MB a rank", "tables MB", "sent kB a rank"]
    lines = ["| " + " | ".join(names) + " |", "|" + "---:|" * len(names)]
    for line in sorted(chosen, key=lambda line: (line["world"], line["rows"])):
        cells = [str(line["world"] or "plain"), str(line["threads"]), f"{line['rows_each']:,}"]
        cells += [f"{line['classes_each']:,}", f"{1e3 * line['median']:.4g}", f"{line['to_plain']:.2f}"]
        cells += [f"{line['cpu_median']:.3g}", f"{line['cpu_to_plain']:.2f}"]
        cells += [f"{line[key]:.0%}" if key in line else "" for key in ("messages", "cpu_messages")]
        cells += [f"{line['peak'] / MB:,.0f}", f"{line['tables'] / MB:,.0f}", f"{line['sent'] / 1e3:,.1f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return lines
