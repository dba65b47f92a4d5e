"""Write the table of verdicts into docs/diagnose.md, from real runs of the doctor: some twenty seconds.

`make docs` runs it; tests compare.
"""

import sys
from pathlib import Path

from write_tables import replaced

DOCS = Path(__file__).resolve().parent

if __name__ == "__main__":
    sys.path.insert(0, str(DOCS.parent))  # the cases are those of the tests
    from tests.diagnose.verdicts import as_markdown

    table, file = as_markdown(), DOCS / "diagnose.md"  # read after the runs, in which somebody may have edited it
    file.write_text(replaced(file.read_text(encoding="utf-8"), "verdicts", table), encoding="utf-8")
