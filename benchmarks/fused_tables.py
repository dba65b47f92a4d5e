"""The tables of the fused backend's benchmark, for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.record import in_words

DIM = 512
PROFILED = 5  # steps


def as_markdown(result: dict[str, Any]) -> str:
    """The tables, for people."""
    env = result["environment"]
    lines = [
        f"# The fused backend, {env['device']}",
        "",
        in_words(env),
        f"ArcFace s = 64, m = 0.5, d = {DIM}, weight in float32, bfloat16 by autocast; forward and both gradients. "
        "One pass keeps exp z for the backward (`Triton(memory=16384)`); recompute stays within 480 MB "
        "(`Triton(memory=480)`).",
    ]
    for section in (_ceilings_text, _routes_text, _kernels_text, _growth_text, _large_text, _precision_text):
        lines += ["", *section(result)]
    return "\n".join(lines) + "\n"


def _ceilings_text(result: dict[str, Any]) -> Iterator[str]:
    top = result["ceilings"]
    yield from ("## Ceilings, measured", "")
    yield f"- copy of {top['copied'] / 1e9:g} GB: {top['bytes_per_s'] / 1e9:,.0f} GB/s, read and written"
    yield f"- bfloat16 product {top['side']}³, random data: {top['flops_per_s'] / 1e12:,.0f} TFLOP/s"


def _routes_text(result: dict[str, Any]) -> Iterator[str]:
    yield from ("## Routes", "")
    yield (
        f"{result['rounds']} interleaved rounds, ratios of the minima. Memory is the peak beyond inputs, W and dW; "
        "of a graph, during its capture."
    )
    yield from ("", "| N | C | | min ms | median ms | × floor | GiB |", "|---:|---:|---|---:|---:|---:|---:|")
    for size in result["routes"]:
        for row in size["table"]:
            beyond = "" if row["beyond"] is None else f"{row['beyond'] / 2**30:.2f}"
            yield (
                f"| {size['rows']:,} | {size['classes']:,} | {row['name']} | {1e3 * row['min']:.3f} | "
                f"{1e3 * row['median']:.3f} | {row['to_floor']:.2f} | {beyond} |"
            )


def _kernels_text(result: dict[str, Any]) -> Iterator[str]:
    top = result["ceilings"]
    yield from ("## Kernels", "")
    yield (
        f"By torch's profiler, a mean of {PROFILED} steps. Operations: 2NCd for each pass over the classes. Bytes "
        "through device memory, by model: operands 4Cd + 2Cd and scores 2Cd for each pass, and 2NC for E or P "
        "written; feature_gradient 2NC + 2Cd; weight_gradient 2NC + 4Cd + 4Cd. In brackets: of the ceiling."
    )
    for route in result["kernels"]:
        head = f"{route['name']}, N = {route['rows']:,}, C = {route['classes']:,}, {route['kept']:,} classes kept"
        yield from ("", f"{head}:", "", "| kernel | launches | ms | TFLOP | GB | TFLOP/s | GB/s |")
        yield "|---|---:|---:|---:|---:|---:|---:|"
        for row in route["table"]:
            cells = [f"{row['launches']:g}", f"{1e3 * row['seconds']:.3f}"]
            cells += [f"{row['flops'] / 1e12:.2f}" if row["flops"] else ""]
            cells += [f"{row['bytes'] / 1e9:.2f}" if row["bytes"] else ""]
            cells += [_rate(row["flops"], row["seconds"], top["flops_per_s"], 1e12)]
            cells += [_rate(row["bytes"], row["seconds"], top["bytes_per_s"], 1e9)]
            yield f"| {row['name']} | " + " | ".join(cells) + " |"
        yield f"| all | | {1e3 * sum(row['seconds'] for row in route['table']):.3f} | | | | |"


def _rate(amount: float, seconds: float, ceiling: float, unit: float) -> str:
    if not amount or not seconds:
        return ""
    return f"{amount / seconds / unit:,.0f} ({amount / seconds / ceiling:.0%})"


def _growth_text(result: dict[str, Any]) -> Iterator[str]:
    yield from ("## Growth", "", f"N = {result['growth'][0]['rows']:,}, recompute, best of the rounds.", "")
    yield from ("| classes | ms | ns a class | GiB beyond W and dW |", "|---:|---:|---:|---:|")
    for row in result["growth"]:
        yield (
            f"| {row['classes']:,} | {1e3 * row['min']:.2f} | {1e9 * row['per_class']:.2f} | "
            f"{row['beyond'] / 2**30:.2f} |"
        )


def _large_text(result: dict[str, Any]) -> Iterator[str]:
    one = result["large"]
    first, *later = (f"{1e3 * each:,.0f}" for each in one["seconds"])
    yield from (f"## {one['classes'] / 1e6:g} million classes", "")
    yield f"`MarginHead` with `FusedSGD`, momentum 0.9, weight decay 5e-4, N = {one['rows']}:"
    yield ""
    yield f"- a step: {', '.join(later)} ms; the first {first} ms, momentum made and kernels compiled"
    yield f"- peak memory: {one['peak'] / 2**30:.1f} of {one['total'] / 2**30:.1f} GiB"
    losses = ", ".join(f"{loss:.4f}" for loss in one["losses"])
    yield f"- losses: {losses}; {'all finite' if one['finite'] else 'not all finite'}"
    yield f"- all {one['sampled']} sampled classes changed: {'yes' if one['changed'] else 'no'}"
    yield (
        f"- the third step against SGD in float64, largest relative error of a class, {one['labels_sampled']} of "
        f"{one['sampled']} being labels: change {one['change_error']:.1e} (rounding of the weight to float32 "
        f"included); gradient of labels {one['gradient_error_labels']:.1e}, of others "
        f"{one['gradient_error_others']:.1e}; loss {one['loss_error']:.1e}"
    )


def _precision_text(result: dict[str, Any]) -> Iterator[str]:
    one = result["precision"]
    yield from ("## Precision", "")
    yield (
        f"Relative errors against float64; N = {one['rows']}, C = {one['classes']:,}, random data, "
        f"seed {one['seed']} from the clock."
    )
    yield from ("", "| features | loss | | of the loss | of dX | of dW |", "|---|---:|---|---:|---:|---:|")
    for case in one["cases"]:
        for row in case["table"]:
            errors = " | ".join(f"{row[part]:.1e}" for part in ("loss", "dX", "dW"))
            yield f"| {case['name']} | {case['loss']:.3g} | {row['name']} | {errors} |"
