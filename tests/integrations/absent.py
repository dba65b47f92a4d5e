"""What is said where a framework is not installed: imports in a process that cannot find it."""

import subprocess
import sys

CODE = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name == {package!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
"""


def said_without(package, code):
    """Run code where `package` is not installed, and return what it wrote to stderr."""
    whole = CODE.format(package=package) + code
    return subprocess.run([sys.executable, "-c", whole], capture_output=True, text=True, check=False).stderr
