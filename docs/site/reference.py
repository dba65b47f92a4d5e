"""The API reference as Markdown pages: every public name of every package, with its signature and its docstring.

Public is what `hypermargin.__all__` and the `__all__` of a package name, and in a module without one what it
defines without a leading underscore. Signatures and docstrings are read from the running package, so a page holds
what Python itself would say; the fields of margins and rules come with the interval that they are checked against.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, ForwardRef

import hypermargin
from docs.site.pages import ROOT

# Packages without a page here: the command line, what several packages share, the integrations. Their frameworks
# need not be installed. Those have pages of their own in docs/integrations, with all of their names (a test).
NOT_PUBLIC = frozenset({"cli", "common", "integrations"})
INTEGRATIONS = ROOT / "docs" / "integrations"
WIDTH = 100  # of a signature, before it is broken into one parameter per line


def public_modules() -> list[str]:
    """List the modules whose names are public: those in `hypermargin.__all__`, and packages with an `__all__`."""
    found = {name for name in hypermargin.__all__ if inspect.ismodule(getattr(hypermargin, name))} - NOT_PUBLIC
    for entry in pkgutil.iter_modules(hypermargin.__path__):
        if entry.ispkg and not entry.name.startswith("_") and entry.name not in NOT_PUBLIC:
            source = Path(hypermargin.__path__[0]) / entry.name / "__init__.py"
            if re.search(r"^__all__\b", source.read_text(encoding="utf-8"), flags=re.M):
                found.add(entry.name)
    return sorted(found)


def public_names(module: ModuleType) -> list[str]:
    """List the public names of a module."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    own = (name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__)
    return [name for name in own if not name.startswith("_")]


def reference() -> dict[str, str]:
    """Return the pages by file name: one for the package itself, one for each public module."""
    modules = {name: importlib.import_module(f"hypermargin.{name}") for name in public_modules()}
    places = {
        name: f"{where}.md#{anchor(module, name)}"
        for where, module in {**modules, "index": hypermargin}.items()  # the package itself last: its names win
        for name in public_names(module)
        if not inspect.ismodule(getattr(module, name))
    }
    places |= {f"hypermargin.{name}": f"{name}.md" for name in modules}
    pages = {f"{name}.md": _page(module, places) for name, module in modules.items()}
    lines = [f"- [`hypermargin.{name}`]({name}.md): {_first_line(module)}" for name, module in modules.items()]
    frameworks = (f"[{path.stem}](../integrations/{path.name})" for path in sorted(INTEGRATIONS.glob("*.md")))
    lines.append(f"- `hypermargin.integrations`, a page for each framework: {', '.join(frameworks)}")
    listed = "\n".join(["## Packages and modules\n", *lines, ""])
    pages["index.md"] = _page(hypermargin, places, listed)
    return pages


def undocumented() -> list[str]:
    """List the public modules, classes and functions that say nothing of themselves."""
    found = []
    for name in ["hypermargin", *(f"hypermargin.{name}" for name in public_modules())]:
        module = importlib.import_module(name)
        found += [] if module.__doc__ else [name]
        for each in public_names(module):
            value = getattr(module, each)
            if (inspect.isclass(value) or inspect.isfunction(value)) and not _own_doc(value):
                found.append(anchor(module, each))
    return found


def anchor(module: ModuleType, name: str) -> str:
    """Return the anchor of a name: its full path."""
    return f"{module.__name__}.{name}"


def _page(module: ModuleType, places: dict[str, str], after_the_names: str = "") -> str:
    named = [(name, getattr(module, name)) for name in public_names(module)]
    named = [(name, value) for name, value in named if not inspect.ismodule(value)]
    rows = [f"| [`{name}`](#{anchor(module, name)}) | {_summary(value, places)} |" for name, value in named]
    parts = [f"# {module.__name__}\n", _prose(inspect.getdoc(module) or "", places)]
    parts += ["\n".join(["| name | what it is |", "|---|---|", *rows, ""]), after_the_names]
    for name, value in named:
        parts += _entry(module, name, value, places)
    return "\n".join(parts)


def _summary(value: Any, places: dict[str, str]) -> str:
    """Return the first paragraph of a docstring as a cell of a table; of a constant, its type."""
    if not (inspect.isclass(value) or inspect.isroutine(value)):
        return f"`{type(value).__name__}`"
    first = re.split(r"\n\s*\n", _own_doc(value))[0]
    return _prose(" ".join(first.split()), places).strip().replace("|", "\\|")


def _entry(module: ModuleType, name: str, value: Any, places: dict[str, str]) -> Iterator[str]:
    """The heading of a public name and what there is to say about it."""
    yield f"## {name} {{ #{anchor(module, name)} }}\n"
    if inspect.isclass(value):
        yield from _class(anchor(module, name), name, value, places)
    elif callable(value):
        yield _code(_signature(name, value))
        yield _prose(inspect.getdoc(value) or "", places)
    else:
        yield _code(f"{name} = {_default(value, longest=300)}")
        if type(value).__module__.startswith("hypermargin."):
            yield f"A `{type(value).__name__}`.\n"


def _class(path: str, name: str, kind: type, places: dict[str, str]) -> Iterator[str]:
    yield _code(f"class {_signature(name, kind)}")
    bases = [base.__name__ for base in kind.__bases__ if base.__module__.startswith("hypermargin.")]
    if bases:
        yield "Inherits from " + ", ".join(_linked(f"`{base}`", places) for base in bases) + ".\n"
    yield _prose(_own_doc(kind), places)
    yield _fields(kind, places)
    for member, value in vars(kind).items():
        call = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        text = inspect.getdoc(call.fget if isinstance(call, property) else call)
        if member.startswith("_") or not text or not (inspect.isfunction(call) or isinstance(call, property)):
            continue
        yield f"### {member} {{ #{path}.{member} }}\n"
        yield _code(f"property {member}" if isinstance(call, property) else _signature(member, call))
        yield _prose(text, places)


def _own_doc(value: Any) -> str:
    """Return its docstring, and not the signature that dataclasses put where there is none."""
    text = inspect.cleandoc(value.__doc__ or "")
    return "" if text.startswith(f"{value.__name__}(") else text


def _fields(kind: type, places: dict[str, str]) -> str:
    """Return a table of the fields that say which values they allow."""
    fields = [field for field in dataclasses.fields(kind) if "help" in field.metadata] if _is_data(kind) else []
    if not fields:
        return ""
    rows = [f"| `{f.name}` | {_allowed(f)} | {_prose(f.metadata['help'], places).strip()} |" for f in fields]
    return "\n".join(["| field | allowed | meaning |", "|---|---|---|", *rows]) + "\n"


def _is_data(kind: type) -> bool:
    return dataclasses.is_dataclass(kind)


def _allowed(field: dataclasses.Field[Any]) -> str:
    meta = field.metadata
    if "choices" in meta:
        return ", ".join(f"`{choice}`" for choice in meta["choices"])
    if "low" not in meta:
        return ""
    ends = "(" if meta["open_low"] else "[", "]" if meta["closed_high"] else ")"
    return f"{ends[0]}{meta['low']:.4g}, {meta['high']:.4g}{ends[1]}".replace("inf", "∞")


def _signature(name: str, value: Any) -> str:
    """Return the signature as it is written in the source, on one line or with a line per parameter."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):  # a class of an extension
        return name
    parameters = list(_parameters(signature))
    back = signature.return_annotation
    end = "" if back is signature.empty or inspect.isclass(value) else f" -> {_annotation(back)}"
    line = f"{name}({', '.join(parameters)}){end}"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"{name}(", *(f"    {each}," for each in parameters), f"){end}"])


def _parameters(signature: inspect.Signature) -> Iterator[str]:
    """Yield the parameters without self, with the bare star before those that need their name."""
    kinds = inspect.Parameter
    star = False
    for each in signature.parameters.values():
        if each.name == "self":
            continue
        if each.kind is kinds.KEYWORD_ONLY and not star:
            yield "*"
        star = star or each.kind in (kinds.VAR_POSITIONAL, kinds.KEYWORD_ONLY)
        text = {kinds.VAR_POSITIONAL: "*", kinds.VAR_KEYWORD: "**"}.get(each.kind, "") + each.name
        annotated = each.annotation is not kinds.empty
        text += f": {_annotation(each.annotation)}" if annotated else ""
        if each.default is not kinds.empty:
            text += f"{' = ' if annotated else '='}{_default(each.default)}"
        yield text


def _default(value: Any, longest: int = 40) -> str:
    """Return a value as text: functions and classes by name, long ones by their class."""
    if inspect.isroutine(value) or inspect.isclass(value):
        return value.__name__
    shown = repr(value)
    return shown if len(shown) <= longest and " at 0x" not in shown else f"{type(value).__name__}(…)"


def _annotation(annotation: Any) -> str:
    if isinstance(annotation, ForwardRef):
        return annotation.__forward_arg__
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _first_line(module: ModuleType) -> str:
    return (module.__doc__ or "").strip().splitlines()[0].replace("<", "&lt;")


def _code(text: str) -> str:
    return f"```python\n{text}\n```\n"


def _prose(text: str, places: dict[str, str]) -> str:
    """Return a docstring as Markdown: what is indented or aligned in columns stays as it stands."""
    blocks = []
    for block in re.split(r"\n\s*\n", text):
        lines = block.splitlines()
        indented = all(line.startswith("    ") for line in lines if line.strip())
        aligned = any(re.search(r"\S {3,}\S|^\w+ {2,}\S", line) for line in lines)
        if lines and (indented or aligned) and not lines[0].startswith(("- ", "* ")):
            blocks.append("```text\n" + inspect.cleandoc("\n" + block) + "\n```")
        else:
            blocks.append(_linked(_listed(block).replace("<", "&lt;").replace("*", "\\*"), places))
    return "\n\n".join(blocks) + "\n"


def _listed(block: str) -> str:
    """Put an empty line before a list that follows text at once, which Markdown asks for."""
    return re.sub(r"^((?!- ).+)\n(?=- )", r"\1\n\n", block, count=1) if not block.startswith("- ") else block


def _linked(text: str, places: dict[str, str]) -> str:
    """Make links of public names between backquotes."""

    def link(found: re.Match[str]) -> str:
        place = places.get(found[1]) or places.get(found[1].rpartition(".")[2])
        return f"[`{found[1]}`]({place})" if place else found[0]

    return re.sub(r"`([A-Za-z_][\w.]*)`", link, text)
