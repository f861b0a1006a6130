"""What the pages tell a newcomer to type works, and prints what they say, on a machine where nothing is set up."""

import re
from pathlib import Path

import pytest

from tests.examples.newcomer import Command, commands_of, newcomer, pattern

ROOT = Path(__file__).resolve().parents[2]
# The Chinese README has the same blocks, which is proved below; following it again would prove nothing more.
PAGES = [
    path
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if "\n```console\n" in path.read_text(encoding="utf-8")
]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_newcomer_can_follow_the_page(page: Path, tmp_path: Path) -> None:
    """Every command of a page does what the page says, in its order, from an empty folder and an empty home."""
    with newcomer(tmp_path) as person:
        assert person.follow(page) > 0


def test_the_quick_start_is_followed() -> None:
    """The README is among the pages that are followed."""
    assert ROOT / "README.md" in PAGES


def test_both_readmes_show_the_same() -> None:
    """Code, commands and outputs of the Chinese README are those of the English one, and so are its sections."""
    english, chinese = (
        (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh-CN.md")
    )
    runnable = {"python", "console", "output", "sh"}
    blocks = [[block for block in BLOCK.findall(text) if block[0] in runnable] for text in (english, chinese)]
    assert blocks[0] == blocks[1]
    sections = [
        [len(mark) for mark in re.findall(r"^(#+) ", text, re.MULTILINE)] for text in (english, chinese)
    ]
    assert sections[0] == sections[1]


def test_a_console_block_is_read_as_commands_and_outputs() -> None:
    """The reader of pages itself: what is typed, what is printed, and what may differ."""
    block = "$ reach ps\n$ reach call a b=c\none\ntwo rch_…\n"
    assert [Command("reach ps", ""), Command("reach call a b=c", "one\ntwo rch_…")] == commands_of(block)
    assert pattern("one\ntwo rch_…").fullmatch("one\ntwo rch_abc")
    assert not pattern("one\ntwo rch_…").fullmatch("one\nthree rch_abc")
