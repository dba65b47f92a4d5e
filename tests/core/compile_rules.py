"""Compile the kernel of every rule for GPUs that are not there; test_fused_rules.py runs it as a process."""

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from hypermargin import rules
from hypermargin.backends.fused.rule_kernels import ruled_scores
from hypermargin.backends.fused.ruled import AGGREGATES
from hypermargin.backends.fused.rules import in_tiles

# Compute capability, and the tile of the scores there: rows, classes, step, warps, stages (`tiles.py`).
TARGETS = {80: (128, 128, 32, 8, 3), 90: (128, 128, 64, 4, 3)}
FLOATS = ("bias", "shift", "sums", "tops", "more", "factor", "columns", "length", "numbers")

for capability, (M, B, D, warps, stages) in TARGETS.items():
    for name in rules.names():
        rule = rules.get(name)()
        if rule.is_softmax:
            continue
        tile = in_tiles(rule)
        given = {
            "f": f"tensordesc<bf16[{M},{D}]>", "w": f"tensordesc<bf16[{B},{D}]>", "labels": "*i32", "redo": "*i32",
            "out": f"tensordesc<bf16[{M},{B // 4}]>", "K": 1, "MODE": 0, "KEEP": True, "BIAS": True, "REDO": False,
            "RULE": tile.function, "NUMBERS": rule.row_numbers, "STRAIGHT": tile.straight, "LIMIT": 3e38,
            "AGGREGATE": AGGREGATES[rule.aggregate.name], "MORE": True, "PRECISION": "tf32x3", "M": M, "B": B,
            "D": D,
            **dict.fromkeys(FLOATS, "*fp32"), **dict.fromkeys(("p0", "p1", "p2", "p3", "up"), "fp32"),
            **dict.fromkeys(("N", "padded", "C", "start", "d", "tiles"), "i32"),
        }  # fmt: skip
        params = ruled_scores.params
        source = ASTSource(
            ruled_scores,
            {p.name: "constexpr" if p.is_constexpr else given[p.name] for p in params},
            {(p.num,): given[p.name] for p in params if p.is_constexpr},
        )
        options = {"num_warps": warps, "num_stages": stages}
        made = compile(source, target=GPUTarget("cuda", capability, 32), options=options)
        print("compiled", name, capability, made.metadata.shared, flush=True)
