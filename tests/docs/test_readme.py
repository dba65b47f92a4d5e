"""The first page stays one page, and the two languages say the same."""

import re

import pytest
from test_docs import ROOT, fences

ENGLISH, CHINESE = (ROOT / name for name in ("README.md", "README.zh-CN.md"))
HAN = re.compile(r"[\u4e00-\u9fff]")


def test_it_is_read_in_three_minutes():
    """900 words; 900 English words are about 1,500 Chinese characters."""
    assert len(ENGLISH.read_text(encoding="utf-8").split()) <= 900
    assert len(HAN.findall(CHINESE.read_text(encoding="utf-8"))) <= 1500


def numbers(path):
    """The numbers of its tables and commands, code apart from comments."""
    text = re.sub(r"10 万", "100k", path.read_text(encoding="utf-8"))
    text = re.sub(r"100 万", "1M", text)
    rows = [line for line in text.splitlines() if line.startswith("|") and re.search(r"\d\.\d", line)]
    return [re.findall(r"\d+\.\d+", row) for row in rows]


def test_both_languages_have_the_same_numbers_headings_and_links():
    english, chinese = (path.read_text(encoding="utf-8") for path in (ENGLISH, CHINESE))
    assert numbers(ENGLISH) == numbers(CHINESE)
    assert len(re.findall(r"^## ", english, flags=re.M)) == len(re.findall(r"^## ", chinese, flags=re.M))
    links = [set(re.findall(r"\]\((docs/[\w.-]+md|benchmarks/[\w./-]+)\)", text)) for text in (english, chinese)]
    assert links[0] == {re.sub(r"\.zh(-CN)?\.md$", ".md", link) for link in links[1]}
    commands = [
        [line.split("  #")[0].rstrip() for language, _, code, *_ in fences(text) if language == "bash"
         for line in code.splitlines()]
        for text in (english, chinese)
    ]  # fmt: skip
    assert commands[0] == commands[1]


def test_the_example_is_as_short_as_its_heading_says():
    (code,) = [
        code for language, _, code, *_ in fences(ENGLISH.read_text(encoding="utf-8")) if language == "python"
    ]
    assert "## Twelve lines" in ENGLISH.read_text(encoding="utf-8")
    assert len([line for line in code.splitlines() if line.strip()]) == 12


@pytest.mark.parametrize("path", [ENGLISH, CHINESE], ids=["en", "zh"])
def test_each_shows_the_explorer_of_its_language(path):
    assert ("explorer-zh.png" in path.read_text(encoding="utf-8")) == (path == CHINESE)
