"""`python -m benchmarks.slices`: a rank's share of the work on one GPU, into benchmarks/results.

It needs torch and numpy alone, as a GPU machine may not have the command line's packages.
"""

from pathlib import Path

from benchmarks.suite.slices import run

if __name__ == "__main__":
    run(Path("benchmarks/results"))
