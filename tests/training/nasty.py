"""Values that a file may hold where something else belongs, and every place in a document to put them."""

import copy
import math

NUMBERS = [
    -1,
    0,
    1,
    2,
    3,
    -(2**63),
    2**63,
    99999999999999999999,
    10**400,
    -0.5,
    0.0,
    0.5,
    1e30,
    1e308,
    math.inf,
    -math.inf,
]
TEXTS = [
    "",
    " ",
    "x",
    "\0",
    "a\nb",
    "\x1b[2J",
    "a" * 5000,
    "../../x",
    "a:b",
    ":",
    "timm:x",
    "timm:",
    "{0}",
    "%s",
    "nan",
]
LISTS = [[], [1], ["x"], ["\0"], [math.nan], [10**400], [[]], [[[[[[1]]]]]], [1, 2], [2, 3, 4], ["x"] * 2000]
TABLES = [{}, {"x": 1}, {"": 1}, {"a\0": 1}, {"x": {"x": {"x": {"x": {"x": 1}}}}}, {"dim": 3}, {"x": 10**400}]
NASTY = [*NUMBERS, True, False, *TEXTS, *LISTS, *TABLES]


def places(document, before=()):
    """The path of everything in a document of tables and lists."""
    inner = document.items() if isinstance(document, dict) else enumerate(document[:2])
    for key, value in inner:
        yield (*before, key)
        if isinstance(value, dict | list):
            yield from places(value, (*before, key))


def mutations(document, third):
    """Every place with a third of the values, null, and the name missing: where it is, and the document."""
    for place in places(document):
        for value in (*NASTY[third::3], None, KeyError):
            changed = copy.deepcopy(document)
            inner = changed
            for key in place[:-1]:
                inner = inner[key]
            if value is KeyError:
                del inner[place[-1]]
            else:
                inner[place[-1]] = copy.deepcopy(value)
            yield place, changed
