"""The Chinese documents say what the English ones say: the same sections, the same code, the same numbers."""

import re

import pytest

from docs.site.pages import ROOT

PAIRS = sorted((path.with_name(path.name.replace(".zh.md", ".md")), path) for path in ROOT.glob("docs/*.zh.md"))
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
NUMBER = re.compile(r"(?<![\w.])\d+(?:[.,]\d+)*(?:e[-−]?\d+)?(?!\d| 月)")  # 12 月 is December


# Chinese counts in ten thousands where English does in millions.
LARGE = re.compile(r"(\d[\d,.]*) ?(k\b|million|万|亿)")
WORTH = {"k": 10**3, "million": 10**6, "万": 10**4, "亿": 10**8}


def sections(path):
    """(level of the heading, text below it) of every section."""
    text = re.sub(r"<!--.*?-->", "", FENCE.sub("", path.read_text(encoding="utf-8")), flags=re.S)
    found = re.split(r"^(#+) .*$", text, flags=re.M)
    return list(zip([len(marks) for marks in found[1::2]], found[2::2], strict=True))


def numbers(text):
    """The numbers of a text in any order; those in links and between backquotes are names."""
    text = re.sub(r"`[^`]*`|\]\([^)]*\)", "", text)
    text = LARGE.sub(lambda found: f"{float(found[1].replace(',', '')) * WORTH[found[2]]:.0f}", text)
    return sorted(NUMBER.findall(text))


@pytest.mark.parametrize(("english", "chinese"), PAIRS, ids=lambda path: path.name)
def test_the_two_languages_say_the_same(english, chinese):
    assert [level for level, _ in sections(english)] == [level for level, _ in sections(chinese)]
    code, other = (FENCE.findall(path.read_text(encoding="utf-8")) for path in (english, chinese))
    assert code == other, "copy the blocks of the English page, output included"
    for k, ((_, one), (_, two)) in enumerate(zip(sections(english), sections(chinese), strict=True)):
        assert numbers(one) == numbers(two), f"section {k}, counted from 0"
        assert sorted(names(one)) == sorted(names(two)), f"section {k}"
        assert pictures(one) == pictures(two), f"section {k}"
        assert links(one) == links(two), f"section {k}"


def names(text):
    """What stands between backquotes, wherever a line breaks within it."""
    return [re.sub(r"\s+", " ", each) for each in re.findall(r"`([^`]+)`", re.sub(r"\]\([^)]*\)", "]", text))]


def pictures(text):
    """The pictures, those with Chinese words in them by the name of the others."""
    return [name.replace("-zh.", ".") for name in re.findall(r"!\[[^]]*\]\(([^)]+)\)", text)]


def links(text):
    """The pages linked to in any order, a Chinese one by the name of its twin; headings differ."""
    targets = [each for each in re.findall(r"\]\(([^)#]+)", text) if "pictures/" not in each]
    return sorted(re.sub(r"\.zh(-CN)?\.md$", ".md", target) for target in targets)


@pytest.mark.parametrize(("english", "chinese"), PAIRS, ids=lambda path: path.name)
def test_each_language_links_to_the_other(english, chinese):
    assert f"[中文]({chinese.name})" in english.read_text(encoding="utf-8").split("\n## ")[0]
    assert f"[English]({english.name})" in chinese.read_text(encoding="utf-8").split("\n## ")[0]


def test_what_is_written_in_chinese():
    names = {path.name for _, path in PAIRS}
    pages = "derivation", "snippets", "questions", "errata", "findings", "family"
    assert names >= {f"{page}.zh.md" for page in pages}


def test_a_number_that_differs_is_seen():
    assert numbers("s = 30 of 1,000 (`m = 3`), [q](x3.md) 3e-4") == ["1,000", "30", "3e-4"]
    assert numbers("用 30 和 1,000，3e-4") == ["1,000", "30", "3e-4"]
    assert numbers("87 million pairs") == numbers("8,700 万个样本对")
    assert numbers("m 为 0.35") != numbers("m 为 0.5")
