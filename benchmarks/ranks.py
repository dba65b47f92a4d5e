"""`python -m benchmarks.ranks`: the same as `hypermargin bench ranks`, writing into benchmarks/results."""

import sys

from hypermargin.cli import main

if __name__ == "__main__":
    sys.argv[1:1] = ["bench", "ranks"] + ([] if "--out" in sys.argv else ["--out", "benchmarks/results"])
    main()
