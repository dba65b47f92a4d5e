"""From the Markdown of a code host to that of the site: where links lead, and what one alone knows."""

from __future__ import annotations

import os.path
import re
from pathlib import PurePosixPath

from docs.site.pages import ROOT, address, sources

LINK = re.compile(r"(\]\(|<img [^>]*?src=\"|<a [^>]*?href=\")([^)\"\s#][^)\"\s#]*)(#[^)\"\s]*)?")
FENCE = re.compile(r"^([ ]*)(`{3,}).*?^\1\2[ ]*$", re.M | re.S)
CHINESE = "\u3001-\u303f\u4e00-\u9fff\uff00-\uffef"
EXPLORER = re.compile(r"^.*\]\([^)]*\).*<!-- the explorer -->$", re.M)
FRAME = '<iframe class="explorer" src="{}" title="Explorer" loading="lazy"></iframe>'


class BrokenLinkError(Exception):
    """A link of a page that leads nowhere."""


def page(text: str, source: str) -> tuple[str, set[str]]:
    """Return the text as the site needs it, and the other files of the repository that it shows or links to."""
    known, wanted = set(sources()), set[str]()
    here = PurePosixPath(address(source)).parent.as_posix()

    def moved(found: re.Match[str]) -> str:
        before, target, anchor = found[1], found[2], found[3] or ""
        if re.match(r"[a-z]+:", target):
            return found[0]
        aim = os.path.normpath(PurePosixPath(source).parent / target)
        if not (ROOT / aim).exists():
            raise BrokenLinkError(f"{source}: {target} leads nowhere.")
        if (ROOT / aim).is_dir():
            raise BrokenLinkError(f"{source}: {target} is a folder, not a page. Link to a file in it.")
        if aim not in known:
            wanted.add(aim)
        return f"{before}{os.path.relpath(address(aim), here)}{anchor}"

    def prose(part: str) -> str:
        name = "explorer.zh.html" if source.endswith(".zh.md") else "explorer.html"
        frame = FRAME.format(os.path.relpath(name, here))
        part = EXPLORER.sub(frame, part)
        part = re.sub(r"^<!--.*?-->[ ]*\n?", "", part, flags=re.M | re.S)
        part = re.sub(r"^(?![ ]*(?:[-*|#>]|\d+\.) )(.*\S.*)\n(?=(?:[-*]|\d+\.) )", r"\1\n\n", part, flags=re.M)
        # A line break is a space in HTML, which Chinese does not have between its characters.
        part = re.sub(rf"(?<=[{CHINESE}])\n(?=[{CHINESE}])", "", part)
        return LINK.sub(moved, part)

    parts, end = [], 0
    for fence in FENCE.finditer(text):
        parts += [prose(text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, prose(text[end:])]), wanted
