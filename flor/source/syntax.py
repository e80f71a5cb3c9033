"""A module's text as statements in branches, with the tokens of each. Pure.

A *branch* is a list of statements that run one after the other: a module, the body of a function,
one arm of an `if … elif … else`, one handler of a `try`. A compound statement has branches. Tokens
leave out what formatting changes: white space, comments, kinds of quotes, commas before a bracket.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from flor.source.names import SCOPED, TRY_STAR, WITHS, Scope, first_line, scopes
from flor.source.tokens import NEWLINE, Tokens, tokens
from flor.source.uses import Uses, uses

ANCHORS = ("loop", "log", "arg", "iteration")  # of flor: their first argument names them
ASSIGNS = ("=", "+=", "-=", "*=", "/=", "//=", "%=", "**=", "&=", "|=", "^=", ">>=", "<<=", "@=")
SIMPLE = "simple"
_GROUPS = {
    "AsyncFor": "For",
    "AsyncWith": "With",
    "AsyncFunctionDef": "FunctionDef",
    "TryStar": "Try",
    "ImportFrom": "Import",
}
COMPOUND = ("For", "While", "If", "With", "Try", "Match", "FunctionDef", "ClassDef")


@dataclass(eq=False)
class Branch:
    """Statements that run one after the other. `head` is what leads to them: `else`, `except …`."""

    owner: Statement | None  # None: the module
    kind: str  # body, if, else, try, except, finally, case
    head: Tokens
    nodes: list[ast.stmt]
    source: Source
    line: int  # of its head

    @cached_property
    def statements(self) -> list[Statement]:
        return [Statement(node, self, index) for index, node in enumerate(self.nodes)]

    @cached_property
    def bag(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for statement in self.statements:
            found.update(statement.bag)
        return found

    def around(self) -> Iterator[Branch]:
        """This branch and those around it, the module last."""
        branch: Branch | None = self
        while branch is not None:
            yield branch
            branch = branch.owner.branch if branch.owner is not None else None

    @property
    def home(self) -> Branch:
        """The body of the function or class that it is in, or the module."""
        return next(b for b in self.around() if b.owner is None or b.owner.is_definition)

    def title(self) -> str:
        """Its head as a person knows it."""
        if self.owner is None:
            return "the module"
        text = self.source.lines[self.line - 1].strip()
        return text if len(text) <= 60 else text[:59] + "…"


@dataclass(eq=False)
class Statement:
    """A statement in its branch. An `elif` is no statement of its own here, but a branch."""

    node: ast.stmt
    branch: Branch
    index: int

    @cached_property
    def kind(self) -> str:
        name = type(self.node).__name__
        name = _GROUPS.get(name, name)
        return name if name in COMPOUND or name == "Import" else SIMPLE

    @property
    def source(self) -> Source:
        return self.branch.source

    @property
    def first_line(self) -> int:
        return first_line(self.node)

    @property
    def last_line(self) -> int:
        return self.node.end_lineno or self.node.lineno

    @cached_property
    def start(self) -> int:
        """Where its text begins; a decorator's `@` belongs to it."""
        if isinstance(self.node, SCOPED) and self.node.decorator_list:
            first = self.node.decorator_list[0]
            return self.source.text.rindex(
                "@", 0, self.source.offset(first.lineno, first.col_offset)
            )
        return self.source.offset(self.node.lineno, self.node.col_offset)

    @cached_property
    def end(self) -> int:
        return self.source.offset(self.node.end_lineno or 0, self.node.end_col_offset or 0)

    @property
    def text(self) -> str:
        return self.source.text[self.start : self.end]

    @cached_property
    def branches(self) -> list[Branch]:
        return list(_branches(self))

    @property
    def is_compound(self) -> bool:
        return self.kind in COMPOUND

    @cached_property
    def is_definition(self) -> bool:
        return isinstance(self.node, SCOPED)

    @cached_property
    def head(self) -> Tokens:
        """Of a compound statement: what comes before its first branch; of a simple one, all."""
        if not self.is_compound:
            return tokens(self.text)
        inside = self.branches[0].nodes[0] if self.branches else None
        if isinstance(self.node, ast.Match):
            subject = self.node.subject
            stop = self.source.offset(subject.end_lineno or 0, subject.end_col_offset or 0)
        elif inside is None:
            stop = self.end
        else:
            line = first_line(inside)
            stop = (
                self.source.offset(inside.lineno, inside.col_offset)
                if line == inside.lineno
                else self.source.starts[line - 1]
            )
        found = tokens(self.source.text[self.start : stop])
        return found[:-1] if found[-1:] == (":",) else found

    @cached_property
    def tokens(self) -> Tokens:
        """All of its tokens, those of its branches included."""
        if not self.is_compound:
            return self.head
        found = list(self.head)
        for number, branch in enumerate(self.branches):
            found.append("{")
            if number:
                found += branch.head
            for statement in branch.statements:
                found += statement.tokens
                found.append(";")
        return tuple(found)

    @cached_property
    def key(self) -> int:
        return hash(self.tokens)

    @cached_property
    def bag(self) -> Counter[str]:
        """How often each word and string occurs in it."""
        words = [token for token in self.tokens if token[0].isalnum() or token[0] in "_.\"'"]
        return Counter([word for word in words if word not in ("self", "cls")])

    @cached_property
    def subject(self) -> Tokens:
        """What an assignment assigns to, what a call calls; of others nothing."""
        node, found = self.node, self.head
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            return found[: found.index("(")] if "(" in found else ()
        if not isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            return ()
        depth = 0
        for index, word in enumerate(found):
            depth += (word in "([{") - (word in ")]}")
            if depth == 0 and (word == ":" or word in ASSIGNS):
                return found[:index]
        return ()

    @cached_property
    def anchor(self) -> str | None:
        """`loop:epoch` over flor.loop("epoch", …), `log:loss` for flor.log("loss", …)."""
        node = self.node
        if isinstance(node, (ast.For, ast.AsyncFor)):
            return _flor_name(node.iter)
        if isinstance(node, (ast.Expr, ast.Assign, ast.AnnAssign)):
            return _flor_name(node.value)
        return None

    @cached_property
    def uses(self) -> Uses:
        """The names that it reads and binds, all that is in it included."""
        return uses(self.node)

    @cached_property
    def is_docstring(self) -> bool:
        node, owner = self.node, self.branch.owner
        return (
            self.index == 0
            and isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
            and (owner is None or owner.is_definition)
        )

    @property
    def name(self) -> str | None:
        """Of a definition."""
        return self.node.name if isinstance(self.node, SCOPED) else None

    def walk(self) -> Iterator[Statement]:
        """It and the statements below it."""
        yield self
        for branch in self.branches if self.is_compound else ():
            for statement in branch.statements:
                yield from statement.walk()


class Source:
    """A module that parses. Raises SyntaxError (or ValueError, for a null character); unless it is
    `known` to parse, which is then done when it is needed."""

    def __init__(self, text: str, *, known: bool = False) -> None:
        self.text = text
        self.mark = 1 if text[:1] == "\ufeff" else 0
        if not known:
            assert self.tree is not None
        self.lines: list[str] = []
        self.starts: list[int] = []
        begin = 0
        for match in NEWLINE.finditer(text):
            self.starts.append(begin)
            self.lines.append(text[begin : match.start()])
            begin = match.end()
        self.starts.append(begin)
        self.lines.append(text[begin:])
        self.starts[0] += self.mark
        self.lines[0] = self.lines[0][self.mark :]

    @cached_property
    def tree(self) -> ast.Module:
        return parse(self.text[self.mark :])

    @cached_property
    def module(self) -> Branch:
        return Branch(None, "body", (), self.tree.body, self, 1)

    @cached_property
    def newline(self) -> str:
        found = NEWLINE.search(self.text)
        return found[0] if found else "\n"

    @cached_property
    def scopes(self) -> dict[ast.AST, Scope]:
        return scopes(self.tree)

    @cached_property
    def bag(self) -> Counter[str]:
        """How often each word and string occurs."""
        return self.module.bag

    def offset(self, line: int, column: int) -> int:
        """Of a place as `ast` tells it: its columns count bytes of UTF-8."""
        text = self.lines[line - 1]
        if not text.isascii():
            column = len(text.encode()[:column].decode(errors="ignore"))
        return self.starts[line - 1] + column

    def at(self, line: int) -> Statement | None:
        """The statement that begins at a line; else the innermost one around it. Of several that
        begin there, the one that is a record of flor.log, else a bare call, else the first."""
        found: Statement | None = None
        branch: Branch | None = self.module
        while branch is not None:
            inside = [s for s in branch.statements if s.first_line <= line <= s.last_line]
            branch = None
            if not inside:
                break
            logs = [s for s in inside if (s.anchor or "").startswith("log:")]
            calls = [s for s in inside if isinstance(s.node, ast.Expr) and s.subject]
            here = (logs or (calls if len(inside) > 1 else []) or inside)[0]
            found = here
            if line in (here.first_line, here.node.lineno) or not here.is_compound:
                break
            for candidate in here.branches:
                first, last = candidate.nodes[0], candidate.nodes[-1]
                if first_line(first) <= line <= (last.end_lineno or 0):
                    branch = candidate
        return found

    def definitions(self) -> Iterator[Statement]:
        """Every function and class, outer ones first."""
        waiting = [self.module]
        while waiting:
            branch = waiting.pop()
            for statement in branch.statements:
                if statement.is_definition:
                    yield statement
                if statement.is_compound:
                    waiting += statement.branches


def _flor_name(value: ast.expr | None) -> str | None:
    if not isinstance(value, ast.Call) or not value.args:
        return None
    func, first = value.func, value.args[0]
    if (
        isinstance(func, ast.Attribute)
        and isinstance(func.value, ast.Name)
        and func.value.id == "flor"
        and func.attr in ANCHORS
        and isinstance(first, ast.Constant)
        and isinstance(first.value, str)
    ):
        return f"{func.attr}:{first.value}"
    return None


def parse(text: str) -> ast.Module:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of invalid escapes: not ours to tell
        return ast.parse(text)


def _branches(statement: Statement) -> Iterator[Branch]:
    node: Any = statement.node
    source = statement.source
    if isinstance(node, ast.If):
        yield from _arms(statement, node)
    elif isinstance(node, (ast.Try, TRY_STAR)):
        yield Branch(statement, "try", ("try",), node.body, source, node.lineno)
        for handler in node.handlers:
            head = _head(source, handler.lineno, handler.col_offset, handler.body[0])
            yield Branch(statement, "except", head, handler.body, source, handler.lineno)
        yield from _otherwise(statement, node.orelse)
        if node.finalbody:
            line = _line_before(source, node.finalbody[0], "finally")
            yield Branch(statement, "finally", ("finally",), node.finalbody, source, line)
    elif isinstance(node, ast.Match):
        for case in node.cases:
            pattern = case.pattern
            head = ("case", *_head(source, pattern.lineno, pattern.col_offset, case.body[0]))
            yield Branch(statement, "case", head, case.body, source, pattern.lineno)
    elif isinstance(node, (*SCOPED, *WITHS, ast.For, ast.AsyncFor, ast.While)):
        line = node.lineno
        yield Branch(statement, "body", (), node.body, source, line)
        if isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
            yield from _otherwise(statement, node.orelse)


def _arms(statement: Statement, node: ast.If) -> Iterator[Branch]:
    source = statement.source
    while True:
        test = node.test
        end = source.offset(test.end_lineno or 0, test.end_col_offset or 0)
        head = tokens(source.text[source.offset(test.lineno, test.col_offset) : end])
        yield Branch(statement, "if", head, node.body, source, node.lineno)
        below = node.orelse
        first = below[0] if len(below) == 1 else None
        if not isinstance(first, ast.If):
            break
        place = source.offset(first.lineno, first.col_offset)
        if not source.text.startswith("elif", place):
            break
        node = first
    yield from _otherwise(statement, node.orelse)


def _otherwise(statement: Statement, body: list[ast.stmt]) -> Iterator[Branch]:
    if body:
        line = _line_before(statement.source, body[0], "else")
        yield Branch(statement, "else", ("else",), body, statement.source, line)


def _line_before(source: Source, node: ast.stmt, word: str) -> int:
    """The line of the word that comes before a statement."""
    line = first_line(node)
    while line > 1 and not source.lines[line - 1].lstrip().startswith(word):
        line -= 1
    return line


def _head(source: Source, line: int, column: int, inside: ast.stmt) -> Tokens:
    stop = source.offset(inside.lineno, inside.col_offset)
    if first_line(inside) != inside.lineno:
        stop = source.starts[first_line(inside) - 1]
    found = tokens(source.text[source.offset(line, column) : stop])
    return found[:-1] if found[-1:] == (":",) else found


def decode(content: bytes) -> tuple[str, str]:
    """A file's text and its encoding, as Python reads it; newlines stay what they are.

    Raises SyntaxError for an encoding line that nobody knows, UnicodeDecodeError.
    """
    encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
    encoding = "utf-8" if encoding == "utf-8-sig" else encoding  # its mark stays in the text
    return content.decode(encoding), encoding
