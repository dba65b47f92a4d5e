"""The command line: in a fresh process as a user runs it, or in this one, which saves two seconds of imports."""

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

from hypermargin import cli


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


def here(*arguments):
    """The same in this process, for fixtures of any scope; a test takes the fixture `run`."""
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["hypermargin", *map(str, arguments)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            cli.main()
        except SystemExit as end:
            return end.code or 0, out.getvalue(), err.getvalue()
    raise AssertionError("the command did not end with an exit code")
