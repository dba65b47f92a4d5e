"""`python -m benchmarks.shallow`: the same as `hypermargin bench shallow`, writing into benchmarks/results."""

import sys

from hypermargin.cli import main

if __name__ == "__main__":
    sys.argv[1:1] = ["bench", "shallow"] + ([] if "--out" in sys.argv else ["--out", "benchmarks/results"])
    main()
