"""A piece of code with other names: what a name in it is, and text with the old one's. Pure.

Variables, attributes and keywords are told apart; in f-strings what stands in braces is code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from keyword import iskeyword
from typing import Literal

from flor.source.tokens import TOKEN, Tokens

Role = Literal["name", "own", "attribute", "keyword"]  # own: an attribute of self


@dataclass(frozen=True)
class Renames:
    """New name → old name. `own` are attributes of self, `attributes` those of others."""

    names: Mapping[str, str] = field(default_factory=dict)
    attributes: Mapping[str, str] = field(default_factory=dict)
    keywords: Mapping[str, str] = field(default_factory=dict)
    own: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.names or self.attributes or self.keywords or self.own)

    def of(self, role: Role, name: str) -> str:
        """The old name, or the same."""
        kinds = {"name": self.names, "attribute": self.attributes, "keyword": self.keywords}
        return kinds.get(role, self.own).get(name, name)


def role_of(tokens: Tokens | list[str], index: int, *, is_def: bool = False) -> Role:
    """What a name at an index of tokens is."""
    before = tokens[index - 1] if index else ""
    if tokens[index][0] == ".":
        return "own" if before in ("self", "cls") else "attribute"
    after = tokens[index + 1] if index + 1 < len(tokens) else ""
    if after == "=" and before in ("(", ",") and not is_def and _in_brackets(tokens, index):
        return "keyword"
    return "name"


def roles(tokens: Tokens, *, is_def: bool = False) -> Iterator[tuple[int, Role]]:
    """The names among tokens, by their indices, and what each of them is."""
    for index, token in enumerate(tokens):
        if token.removeprefix(".").isidentifier() and not iskeyword(token):
            yield index, role_of(tokens, index, is_def=is_def)


def _in_brackets(tokens: Tokens | list[str], index: int) -> bool:
    depth = 0
    for word in tokens[:index]:
        depth += (word in "([{") - (word in ")]}")
    return depth > 0


def apply(text: str, renames: Renames) -> str:
    """The text with the old version's names; formatting stays."""
    if not renames:
        return text
    found = list(TOKEN.finditer(text))
    words: list[str] = []  # as `tokens` has them
    number: dict[int, int] = {}  # of a name, by where it begins
    for match in found:
        if match.lastgroup not in ("space", "comment"):
            if match.lastgroup == "name" and words and words[-1] == ".":
                words[-1] = "." + match[0]
            else:
                words.append(match[0])
            number[match.start()] = len(words) - 1
    is_def = words[:1] in (["def"], ["class"]) or words[:2] == ["async", "def"]
    pieces: list[str] = []
    for match in found:
        token = match[0]
        if match.lastgroup == "name":
            role = role_of(words, number[match.start()], is_def=is_def)
            token = renames.of(role, token)
        elif match.lastgroup == "string" and _is_formatted(token):
            token = _in_format(token, renames)
        pieces.append(token)
    return "".join(pieces)


def _is_formatted(token: str) -> bool:
    quote = min(place for place in (token.find('"'), token.find("'")) if place >= 0)
    return "f" in token[:quote].lower()


def _in_format(token: str, renames: Renames) -> str:
    """An f-string with the names in its braces renamed; what follows `!` and `:` is left, but for
    braces in it."""
    pieces: list[str] = []
    place, depth, begin = 0, 0, 0
    while place < len(token):
        char = token[place]
        if depth == 0 and token[place : place + 2] in ("{{", "}}"):
            place += 2
            continue
        if char == "{" and depth == 0:
            pieces.append(token[begin : place + 1])
            depth, begin = 1, place + 1
        elif char in "([{" and depth:
            depth += 1
        elif char in ")]}" and depth:
            depth -= 1
            if depth == 0:
                pieces.append(_field(token[begin:place], renames))
                begin = place
        place += 1
    return "".join([*pieces, token[begin:]])


def _field(text: str, renames: Renames) -> str:
    depth = 0
    for place, char in enumerate(text):
        depth += (char in "([{") - (char in ")]}")
        if depth == 0 and (char == ":" or (char == "!" and text[place : place + 2] != "!=")):
            return apply(text[:place], renames) + _in_format(text[place:], renames)
    return apply(text, renames)
