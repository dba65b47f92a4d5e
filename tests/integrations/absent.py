"""What is said where a framework is not installed: imports in a process that cannot find it."""

import subprocess
import sys
import tomllib
from pathlib import Path

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


def assert_told_what_to_install(module, package, extra, imported_as=None):
    """Fail unless an integration without its framework names the package, and the extra that has it."""
    said = said_without(imported_as or package, f"import hypermargin.integrations.{module}")
    assert f"Run: pip install {package} (in hypermargin's extra {extra!r})" in said, said
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert any(each.startswith(package) for each in project["optional-dependencies"][extra])
