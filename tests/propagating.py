"""Two versions of a program as pictures."""

from __future__ import annotations

import textwrap

import pytest

from flor.errors import NoPlace
from flor.source.propagate import Propagation, propagate_all
from flor.source.syntax import Source


def picture(text: str) -> tuple[str, str, list[int]]:
    """A text, the text without its marked lines, and their numbers.

    A marked line begins with `> ` or `+ `, and the others then with two spaces.
    """
    lines = textwrap.dedent(text).strip("\n").split("\n")
    marked = [n for n, line in enumerate(lines, 1) if line[:1] in (">", "+")]
    if marked:
        lines = [line[2:] for line in lines]
    rest = [line for n, line in enumerate(lines, 1) if n not in marked]
    return "\n".join(lines) + "\n", "".join(line + "\n" for line in rest), marked


def put(new: str, old: str, base: str | None = None) -> Propagation:
    """Propagate what `>` marks in `new` to `old` without what `+` marks."""
    text, _, lines = picture(new)
    ground = Source(picture(base)[0]) if base is not None else None
    return propagate_all(Source(text), Source(picture(old)[1]), lines, ground)


def check(new: str, old: str, base: str | None = None) -> Propagation:
    """What `>` marks in `new` becomes what `+` marks in `old`."""
    found = put(new, old, base)
    assert found.text == picture(old)[0]
    return found


def check_refused(new: str, old: str, why: str, base: str | None = None) -> None:
    with pytest.raises(NoPlace, match=why):
        put(new, old, base)
