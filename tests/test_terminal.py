"""What reaches the terminal."""

from __future__ import annotations

import json
import re

import pytest

from flor.cli import terminal

HOSTILE = "a\x1b[31m\x07\x00\x7f\x9b\u202e\u2066\u200f\u061c\u2028\ud800\r\tb\nc"
UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def test_clean_shows_escapes() -> None:
    assert terminal.clean("a\x1b[31mb\x9b\u202e\ud800") == r"a\x1b[31mb\x9b\u202e\ud800"
    assert terminal.clean("a\r\n\tb") == "a\\r\n\tb"
    assert terminal.clean("a\r\n\tb", keep="") == r"a\r\n\tb"
    assert not UNSAFE.search(terminal.clean(HOSTILE))


@pytest.mark.parametrize("text", ["", "plain", "é ▁▂ 😀", "日本語", "a\u200bb", "[bold]x[/]"])
def test_clean_leaves_letters_alone(text: str) -> None:
    assert terminal.clean(text) == text
    assert terminal.styled(text).plain == text


def test_clean_json_means_the_same() -> None:
    text = json.dumps({HOSTILE: [HOSTILE]}, ensure_ascii=False, indent=1)
    cleaned = terminal.clean_json(text)
    assert json.loads(cleaned) == {HOSTILE: [HOSTILE]}
    assert not UNSAFE.search(cleaned)
    cleaned.encode()


def test_one_line() -> None:
    assert terminal.one_line("first\n  second\r\n\x1b[0m\n") == r"first second \x1b[0m"


def test_text_for_rich() -> None:
    assert terminal.styled(HOSTILE).plain == terminal.clean(HOSTILE, keep="")
    assert terminal.line(("a\n", "bold"), ("\x1b", "")).plain == r"a\n\x1b"


def test_colored_diff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    diff = "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n--- gone\n+\x1b]0;title\x07\n same\n"
    lines = terminal.colored_diff(diff).split("\n")
    assert lines[1] == "\x1b[1m--- a/x\x1b[0m"
    assert lines[3] == "\x1b[36m@@ -1 +1 @@\x1b[0m"
    assert lines[4] == "\x1b[31m--- gone\x1b[0m"
    assert lines[5] == "\x1b[32m+\\x1b]0;title\\x07\x1b[0m"
    assert lines[6:] == [" same", ""]
    monkeypatch.setenv("NO_COLOR", "1")
    assert terminal.colored_diff(diff) == terminal.clean(diff)
