"""The trials' results as Markdown."""

from __future__ import annotations

from typing import Any

from benchmarks.record import in_words
from benchmarks.trials.candidates import CANDIDATES

# Measured on an H200, as benchmarks/README.md has it: a bfloat16 product, and a copy, read and written.
FLOPS, BYTES = 760e12, 4.26e12


def as_markdown(result: dict[str, Any]) -> str:
    """A table per size, and what failed."""
    lines = [
        f"# Kernels on trial on {result['environment']['device']}",
        "",
        "Each candidate does one part of a step, in turns with the kernels that do it today and with cuBLAS's bare "
        "product of the same matrices, all as CUDA graphs: milliseconds, median, one by one / back to back. The "
        f"floor is the larger of operations at {FLOPS / 1e12:.0f} TFLOP/s and bytes at {BYTES / 1e12:.2f} TB/s. "
        "Errors are relative, against float64 on a sample of rows and classes, today's in brackets. Registers are "
        "per thread.",
    ]
    for size in result["sizes"]:
        if not size["table"]:
            continue
        lines += [
            "",
            f"## {size['rows']:,} rows × {size['classes']:,} classes, d = {size['dim']}",
            "",
            "| part | candidate | ms | today | cuBLAS | times today's | TFLOP/s | of the floor | errors | "
            "registers, spills, shared KiB |",
            "|---|---|---:|---:|---:|---:|---:|---:|---|---|",
        ]
        lines += [_row(int(number), seen) for number, seen in size["table"].items()]
    failed = {
        CANDIDATES[int(number)].name: seen["failed"]
        for number, seen in result["checks"].items()
        if "failed" in seen
    }
    if failed:
        lines += ["", "Not timed, since they failed at a small size:", ""]
        lines += [f"- {name}: {why}" for name, why in failed.items()]
    return "\n".join([*lines, "", in_words(result["environment"]), ""])


def _row(number: int, seen: dict[str, Any]) -> str:
    given = CANDIDATES[number]
    errors = ", ".join(f"{k} {v:.2e} ({seen['errors today'][k]:.2e})" for k, v in seen.get("errors", {}).items())
    kernels = "; ".join(
        f"{name} {regs}, {spills}, {shared / 1024:.0f}"
        for name, (regs, spills, shared) in seen.get("kernels", {}).items()
    )
    if "seconds" not in seen:
        return f"| {given.part} | {given.name} | {seen.get('failed', '')} | | | | | | {errors} | {kernels} |"
    times = seen["seconds"]
    mine, old = times["candidate"], times["today"]
    floor = max(seen["flops"] / FLOPS, seen["bytes"] / BYTES)
    cells = [
        given.part,
        given.name,
        _both(mine),
        _both(old),
        _both(times["cuBLAS"]) if "cuBLAS" in times else "",
        f"{mine['single'] / old['single']:.2f} / {mine['sustained'] / old['sustained']:.2f}",
        f"{1e-12 * seen['flops'] / mine['single']:.0f}" if seen["flops"] else "",
        f"{floor / mine['single']:.0%}",
        errors,
        kernels,
    ]
    return f"| {' | '.join(cells)} |"


def _both(times: dict[str, float]) -> str:
    return f"{1e3 * times['single']:.3f} / {1e3 * times['sustained']:.3f}"
