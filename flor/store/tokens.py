"""SQL text as tokens: enough to know which names a query mentions, and whether it is one piece.

Pure. Not a parser: DuckDB judges the SQL. Strings, quoted names and (nested) comments are
understood, so that what they hold is never mistaken for SQL.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

_TOKEN = re.compile(
    r"""
    (?P<gap>\s+|--[^\n]*)
  | (?P<string>[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|\$(?P<tag>(?:[^\W\d]\w*)?)\$.*?\$(?P=tag)\$)
  | (?P<quoted>"(?:[^"]|"")*")
  | (?P<open>[eE]')
  | (?P<number>\d[\w.]*)
  | (?P<word>[^\W\d]\w*)
  | (?P<symbol>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_COMMENT_EDGE = re.compile(r"/\*|\*/")


class Token(NamedTuple):
    kind: str  # word, quoted (a name), string, number, symbol
    text: str  # of a quoted name: without its quotes


class Unclosed(ValueError):
    """A quote or a comment that does not end."""


def tokens(sql: str) -> list[Token]:
    """The tokens of a text, without blanks and comments. Raises Unclosed."""
    found = []
    position = 0
    while position < len(sql):
        if sql.startswith("/*", position):
            position = _after_comment(sql, position)
            continue
        match = _TOKEN.match(sql, position)
        assert match is not None  # any character at all is a symbol
        kind, text = match.lastgroup or "symbol", match[0]
        if kind == "open" or (kind == "symbol" and text in "'\""):
            raise Unclosed(f"the quote {text} is not closed")
        if kind == "quoted":
            text = text[1:-1].replace('""', '"')
        if kind != "gap":
            found.append(Token(kind, text))
        position = match.end()
    return found


def _after_comment(sql: str, start: int) -> int:
    depth, position = 1, start + 2
    while depth:
        edge = _COMMENT_EDGE.search(sql, position)
        if edge is None:
            raise Unclosed("a comment /* is not closed")
        depth += 1 if edge[0] == "/*" else -1
        position = edge.end()
    return position


def is_balanced(found: Sequence[Token]) -> bool:
    """Whether every bracket closes one that was opened before it."""
    closes = {")": "(", "]": "[", "}": "{"}
    opened: list[str] = []
    for kind, text in found:
        if kind == "symbol" and text in "([{":
            opened.append(text)
        elif kind == "symbol" and text in closes and (not opened or opened.pop() != closes[text]):
            return False
    return not opened


def words(found: Sequence[Token]) -> set[str]:
    """All unquoted words, in lower case."""
    return {text.lower() for kind, text in found if kind == "word"}


def mentions(found: Sequence[Token], other_tables: frozenset[str] = frozenset()) -> list[str]:
    """The names that may be columns, in order: not functions, not new names after AS.

    A column of one of the `other_tables` (`runs.seconds`) does not count.
    """
    names = []
    nothing = Token("symbol", "")
    for index, (kind, text) in enumerate(found):
        before = found[index - 1] if index else nothing
        after = found[index + 1] if index + 1 < len(found) else nothing
        table = found[index - 2].text.lower() if index > 1 and before.text == "." else ""
        if kind not in ("word", "quoted") or table in other_tables:
            continue
        is_call = kind == "word" and after == Token("symbol", "(")
        is_alias = before.kind == "word" and before.text.lower() == "as"
        if not is_call and not is_alias and text not in names:
            names.append(text)
    return names


def wants_all_columns(found: Sequence[Token]) -> bool:
    """Whether columns may be meant that are not mentioned: `*`, `FROM t`, `SUMMARIZE t`…"""
    plain = [text.lower() for kind, text in found if kind == "word"]
    for index, token in enumerate(found):
        if token == Token("symbol", "*") and (index == 0 or found[index - 1].text != "("):
            return True
    implied = {"columns", "natural", "summarize", "describe", "show", "table", "pivot", "unpivot"}
    return plain.count("select") < plain.count("from") or not implied.isdisjoint(plain)


RESERVED = frozenset(
    words(
        tokens(
            """all and any as asc between by case cast cross desc distinct else end exists false
            from full group having in inner intersect is join left like limit not null offset on
            or order outer over partition qualify right select then true union using when where
            window with
            """
        )
    )
)
"""Words that are a column's name only in quotes."""
