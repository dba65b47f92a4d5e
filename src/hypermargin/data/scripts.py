"""Scripts whose characters can be identities, and where the typefaces for them come from."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

from hypermargin import checks
from hypermargin.data.fonts import VISIBLE

CHINESE = (
    "fonts-arphic-bkai00mp fonts-arphic-bsmi00lp fonts-arphic-gbsn00lp fonts-arphic-gkai00mp fonts-arphic-ukai "
    "fonts-arphic-uming fonts-babelstone-han fonts-cns11643-kai fonts-cns11643-sung fonts-cwtex-fs "
    "fonts-cwtex-heib fonts-cwtex-kai fonts-cwtex-ming fonts-cwtex-yen fonts-droid-fallback fonts-lxgw-wenkai "
    "fonts-noto-cjk fonts-smiley-sans fonts-wqy-microhei fonts-wqy-zenhei"
)
JAPANESE = (
    "fonts-aoyagi-kouzan-t fonts-aoyagi-soseki fonts-dejima-mincho fonts-dotgothic16 fonts-hanazono "
    "fonts-horai-umefont fonts-ipaexfont fonts-ipafont fonts-ipamj-mincho fonts-kanjistrokeorders fonts-kiloji "
    "fonts-klee fonts-konatu fonts-kouzan-mouhitsu fonts-migmix fonts-misaki fonts-mona fonts-monapo "
    "fonts-morisawa-bizud-gothic fonts-morisawa-bizud-mincho fonts-motoya-l-cedar fonts-motoya-l-maruberi "
    "fonts-mplus fonts-oradano-mincho-gsrr fonts-reggae fonts-rocknroll fonts-sawarabi-gothic "
    "fonts-sawarabi-mincho fonts-seto fonts-stick fonts-takao fonts-train fonts-umeplus fonts-vlgothic "
    "fonts-yozvox-yozfont fonts-yusei-magic"
)
KOREAN = (
    "fonts-alee fonts-baekmuk fonts-lexi-gulim fonts-lexi-saebom fonts-nanum fonts-nanum-eco fonts-nanum-extra "
    "fonts-naver-d2coding fonts-unfonts-core fonts-unfonts-extra fonts-woowa-bm"
)
EUROPEAN = "fonts-dejavu fonts-freefont-ttf fonts-liberation fonts-linuxlibertine fonts-noto-core fonts-urw-base35"


@dataclass(frozen=True)
class Script:
    """A name, first and last code points, and the Debian packages with typefaces, of which a few may do."""

    name: str
    ranges: tuple[tuple[int, int], ...]
    packages: tuple[str, ...]

    def characters(self) -> list[str]:
        """List the visible characters, in the order of their code points."""
        codes = (code for first, last in self.ranges for code in range(first, last + 1))
        return [c for c in map(chr, codes) if unicodedata.category(c)[0] in VISIBLE]


SCRIPTS = {
    script.name: script
    for script in (
        Script("latin", ((0x21, 0x24F), (0x1E00, 0x1EFF)), tuple(EUROPEAN.split())),
        Script("greek", ((0x370, 0x3FF), (0x1F00, 0x1FFF)), tuple(EUROPEAN.split())),
        Script("cyrillic", ((0x400, 0x52F),), tuple(EUROPEAN.split())),
        Script("kana", ((0x3041, 0x30FF), (0x31F0, 0x31FF)), tuple(JAPANESE.split())),
        Script("hangul", ((0xAC00, 0xD7A3),), (*KOREAN.split(), "fonts-noto-cjk")),
        Script("han", ((0x4E00, 0x9FFF),), tuple((CHINESE + " " + JAPANESE).split())),
        Script("han-a", ((0x3400, 0x4DBF),), tuple((CHINESE + " " + JAPANESE).split())),
    )
}


def scripts_named(names: str) -> tuple[Script, ...]:
    """Find the scripts in a text such as "han" or "han+hangul", each once, in the order of SCRIPTS."""
    wanted = names.split("+")
    for name in wanted:
        checks.one_of("script", name, tuple(SCRIPTS))
    return tuple(script for name, script in SCRIPTS.items() if name in wanted)


def glyphs_named(name: str) -> tuple[str, str]:
    """Read glyphs, glyphs:SCRIPTS, glyphs:FOLDER or glyphs:SCRIPTS:FOLDER as scripts and folder, "" for none."""
    rest = name.removeprefix("glyphs").removeprefix(":")
    scripts, _, folder = rest.partition(":")
    known = bool(scripts) and all(each in SCRIPTS for each in scripts.split("+"))
    return (scripts, folder) if known else ("", rest)
