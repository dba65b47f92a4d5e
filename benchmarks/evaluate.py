"""`python -m benchmarks.evaluate [samples] [dim] [device]`: all pairs beside the bare product."""

import sys
from pathlib import Path

from hypermargin.bench.evaluate import as_markdown, run

if __name__ == "__main__":
    numbers = [int(text) for text in sys.argv[1:3]]
    device = sys.argv[3] if len(sys.argv) > 3 else "cpu"
    print(as_markdown(run(*numbers, device=device, out=Path("benchmarks/results"))))
