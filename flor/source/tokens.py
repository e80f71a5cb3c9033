"""Code as words: what formatting changes is left out. Pure."""

from __future__ import annotations

import re

Tokens = tuple[str, ...]

NEWLINE = re.compile(r"\r\n|\r|\n")
TOKEN = re.compile(
    r"(?P<string>(?:\b[rRbBuUfFtT]{1,2})?(?:\"{3}(?:\\.|[^\\])*?\"{3}|'{3}(?:\\.|[^\\])*?'{3}"
    r"|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'))"
    r"|(?P<name>[^\W\d]\w*)|(?P<number>\.?\d[\w.]*)|(?P<comment>\#[^\r\n]*)|(?P<space>\s+|\\\r?\n)"
    r"|(?P<operator>\*\*=?|//=?|>>=?|<<=?|->|:=|[=!<>+\-*/%&|^@]=|.)",
    re.DOTALL,
)


def tokens(text: str) -> Tokens:
    """Of a piece of code, as they are compared. An attribute has its dot: `.x` is no `x`."""
    found: list[str] = []
    for match in TOKEN.finditer(text):
        group, word = match.lastgroup, match[0]
        if group in ("space", "comment"):
            continue
        if group == "string":
            word = _canonical(word)
        elif group == "name" and found and found[-1] == ".":
            found[-1] = "." + word
            continue
        elif word in ")]}" and found and found[-1] == ",":
            found.pop()
        found.append(word)
    return tuple(found)


def _canonical(token: str) -> str:
    """A string with the quotes that most have."""
    begin = min(place for place in (token.find('"'), token.find("'")) if place >= 0)
    prefix, rest = token[:begin].lower(), token[begin:]
    quote = rest[:3] if rest[:3] in ('"""', "'''") and len(rest) >= 6 else rest[0]
    inside = rest[len(quote) : len(rest) - len(quote)]
    return f'"{prefix}{inside}"'
