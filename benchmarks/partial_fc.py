"""`python -m benchmarks.partial_fc`: a sample of the classes against all of them, into benchmarks/results."""

from pathlib import Path

from benchmarks.suite.partial import run

if __name__ == "__main__":
    run(Path("benchmarks/results"))
