"""Heads side by side: the same data, the same budget, several seeds, and a report.

plan        what is compared
worker      one run, in a process of its own
server      starts them
pool        several of them at a time
measure     what is kept of a run
numbers     the table, and which differences exceed the noise
reading     the table in plain words
results     all of that in one object
report      all of that in one HTML file
comparison  from the plan to the report
"""

from hypermargin.compare.comparison import compare
from hypermargin.compare.plan import HEADS, Plan
from hypermargin.compare.results import Comparison

__all__ = ["HEADS", "Comparison", "Plan", "compare"]
