"""What an older version called things, by what stands in the same places. Pure.

Statements that correspond vote: where one has a name that only the new version knows, and the other
one, in the same place, a name that only the old version knows, that is a vote for a rename.
Variables, attributes and keywords are told apart.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from keyword import iskeyword
from typing import Literal

from flor.source.match import Matcher
from flor.source.syntax import TOKEN, Statement, Tokens

Role = Literal["name", "attribute", "keyword"]
SHARE = 0.6  # of the votes that the winner needs
IDENTIFIER = re.compile(r"[^\W\d]\w*\Z")


@dataclass(frozen=True)
class Renames:
    """New name → old name."""

    names: Mapping[str, str] = field(default_factory=dict)
    attributes: Mapping[str, str] = field(default_factory=dict)
    keywords: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.names or self.attributes or self.keywords)


class Votes:
    """Counts what corresponds to what, in pairs of statements."""

    def __init__(self, matcher: Matcher, pairs: Iterable[tuple[Statement, Statement]]) -> None:
        self.matcher = matcher
        self._for: defaultdict[tuple[Role, str], Counter[str]] = defaultdict(Counter)
        self._from: defaultdict[tuple[Role, str], Counter[str]] = defaultdict(Counter)
        seen: set[tuple[Statement, Statement]] = set()
        for new, old in pairs:
            self._count(new, old, seen)

    def winner(self, role: Role, name: str) -> str | None:
        """What the old version calls it, if the votes agree."""
        votes = self._for.get((role, name))
        if not votes:
            return None
        (best, count), *_ = votes.most_common(1)
        back = self._from[role, best]
        if count < SHARE * votes.total() or back.most_common(1)[0][0] != name:
            return None
        return best

    def _count(
        self, new: Statement, old: Statement, seen: set[tuple[Statement, Statement]]
    ) -> None:
        if (new, old) in seen or new.tokens == old.tokens:
            return
        seen.add((new, old))
        self._compare(new.head, old.head, is_def=new.is_definition)
        if not (new.is_compound and old.is_compound):
            return
        for branch in new.branches:
            partner = self.matcher.branch(branch, old)
            if partner is not None:
                self._compare(branch.head, partner.head, is_def=False)
                ours, theirs = branch.statements, partner.statements
                for i, j in self.matcher.align(ours, theirs).items():
                    self._count(ours[i], theirs[j], seen)

    def _compare(self, new: Tokens, old: Tokens, *, is_def: bool) -> None:
        only_new, only_old = self.matcher.only_new, self.matcher.only_old
        plain_new = [("·" if token in only_new else token) for token in new]
        plain_old = [("·" if token in only_old else token) for token in old]
        whole = plain_new == plain_old
        if whole:
            spans = [(0, 0, len(new))]
        else:
            found = SequenceMatcher(None, plain_new, plain_old, autojunk=False).get_opcodes()
            spans = [
                (i1, j1, i2 - i1)
                for tag, i1, i2, j1, j2 in found
                if tag in ("equal", "replace") and i2 - i1 == j2 - j1
            ]
        for i0, j0, length in spans:
            for offset in range(length):
                i, j = i0 + offset, j0 + offset
                if new[i] not in only_new or old[j] not in only_old:
                    continue
                if iskeyword(new[i]) or iskeyword(old[j]):  # None, True: no names
                    continue
                role = role_of(new, i, is_def=is_def)
                if role == role_of(old, j, is_def=is_def):
                    weight = 3 if whole else 1
                    self._for[role, new[i]][old[j]] += weight
                    self._from[role, old[j]][new[i]] += weight


def role_of(tokens: Tokens | list[str], index: int, *, is_def: bool = False) -> Role:
    """What a name at an index of tokens is."""
    before = tokens[index - 1] if index else ""
    if before == ".":
        return "attribute"
    after = tokens[index + 1] if index + 1 < len(tokens) else ""
    if after == "=" and before in ("(", ",") and not is_def and _in_brackets(tokens, index):
        return "keyword"
    return "name"


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
    solid = [m for m in found if m.lastgroup not in ("space", "comment")]
    words = [m[0] for m in solid]
    is_def = words[:1] in (["def"], ["class"]) or words[:2] == ["async", "def"]
    pieces: list[str] = []
    number = {id(m): n for n, m in enumerate(solid)}
    for match in found:
        token = match[0]
        if match.lastgroup == "name":
            role = role_of(words, number[id(match)], is_def=is_def)
            names = {
                "name": renames.names,
                "attribute": renames.attributes,
                "keyword": renames.keywords,
            }[role]
            token = names.get(token, token)
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
