"""`python -m benchmarks.fused`: the same as `hypermargin bench fused`, writing into benchmarks/results.

It needs torch and numpy alone, as a GPU machine may not have the command line's packages.
"""

from pathlib import Path

from benchmarks.suite.fused import run

if __name__ == "__main__":
    run(Path("benchmarks/results"))
