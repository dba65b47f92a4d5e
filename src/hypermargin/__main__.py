"""`python -m hypermargin`, and `torchrun -m hypermargin`: the same as the command."""

from __future__ import annotations

from hypermargin.cli import main

main()
