"""Two versions of a program as pictures."""

from __future__ import annotations

import textwrap

import pytest

from flor.errors import NoPlace
from flor.source.propagate import Propagation, propagate_all
from flor.source.syntax import Source


def picture(text: str) -> tuple[str, str, list[int]]:
    """A program, the program without its marked lines, and the numbers of those marked by `>`.

    Marks are `> ` (the statement) and `+ ` (what comes with it); other lines then begin with two
    spaces.
    """
    lines = textwrap.dedent(text).strip("\n").split("\n")
    marks = [line[:1] if line[:1] in (">", "+") else "" for line in lines]
    if any(marks):
        lines = [line[2:] for line in lines]
    rest = [line for line, mark in zip(lines, marks, strict=True) if not mark]
    whole, without = ("".join(f"{line}\n" for line in part) for part in (lines, rest))
    return whole, without, [n for n, mark in enumerate(marks, 1) if mark == ">"]


def put(new: str, old: str, base: str | None = None) -> Propagation:
    """Propagate what `>` marks in `new` to `old` without what is marked there."""
    text, _, lines = picture(new)
    ground = Source(picture(base)[1]) if base is not None else None
    return propagate_all(Source(text), Source(picture(old)[1]), lines, ground)


def check(new: str, old: str | None = None, base: str | None = None) -> Propagation:
    """Then `old` is as in the picture; without it, `new` without the marked lines is the old one."""
    expected = old if old is not None else new
    found = put(new, expected, base)
    assert found.text == picture(expected)[0]
    return found


def check_refused(new: str, old: str, why: str, base: str | None = None) -> None:
    with pytest.raises(NoPlace, match=why):
        put(new, old, base)
