"""`python -m hypermargin.cli`."""

from hypermargin.cli import main

main()
