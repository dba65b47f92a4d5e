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

    file = DOCS / "diagnose.md"
    file.write_text(replaced(file.read_text(encoding="utf-8"), "verdicts", as_markdown()), encoding="utf-8")
