"""The command line as a user runs it."""

import os
import subprocess
import sys
from pathlib import Path


def shell(*arguments, script=False, **environment):
    """Run in a fresh process without a terminal: exit code, stdout, stderr."""
    program = (
        [str(Path(sys.executable).with_name("hypermargin"))]
        if script
        else [sys.executable, "-m", "hypermargin.cli"]
    )
    done = subprocess.run(
        [*program, *map(str, arguments)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=300,
        check=False,
        env={**os.environ, **environment},
    )
    return done.returncode, done.stdout, done.stderr
