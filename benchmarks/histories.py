"""Cases for propagation.py from two releases of a file, which are real, and from edits of them.

A statement that both releases have once, in functions of the same name, is taken out of the older
one and has to come back. Variants rename its variables in the older release; negatives take its
function or its block out of the older release, or let it read what only the newer one has.
"""

from __future__ import annotations

import ast
import functools
import itertools
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import edits

LONGEST = 8  # lines of a statement that is taken out
AT_ONCE = 3  # of a pair of files, before the next pair's turn
TURNS = 4
SIZES = ("≤ 250 lines", "251–999 lines", "≥ 1,000 lines")
BARRED = (
    *(*edits.DEFINITION, ast.Import, ast.ImportFrom, ast.Return, ast.Raise, ast.Pass),
    *(ast.Break, ast.Continue, ast.Global, ast.Nonlocal),
)
BLOCK = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try)
SCOPE, SPAN, UNBOUND = "missing scope", "missing block", "unbound name"
NEGATIVE = (SCOPE, SPAN, UNBOUND)


@dataclass(frozen=True)
class Case:
    kind: str
    new: str
    old: str
    line: int  # where the statement begins in the newer source
    bare: str  # the newer source without it
    expected: str | None  # the older source with it; None: it has to be refused
    origin: dict[str, str] = field(default_factory=dict)

    @property
    def size(self) -> str:
        lines = self.old.count("\n")
        return SIZES[(lines > 250) + (lines >= 1000)]


@dataclass(frozen=True, eq=False)
class Found:
    """A statement and where it stands."""

    node: ast.stmt
    scopes: tuple[ast.stmt, ...]  # definitions around it, the outermost first
    block: ast.stmt | None  # the innermost compound statement around it in its function
    branch: list[ast.stmt]

    @property
    def name(self) -> tuple[str, ...]:
        """The qualified name of its function; empty outside of functions."""
        if not self.scopes or not isinstance(self.scopes[-1], edits.FUNCTION):
            return ()
        return tuple(scope.name for scope in self.scopes)


class Release:
    """One release of a file."""

    def __init__(self, text: str) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in old files
            self.tree = ast.parse(text)
        self.text = text
        self.lines = text.split("\n")
        keys: dict[str, list[Found]] = {}
        for found in self._walk(self.tree, (), None):
            if found.node.end_lineno - found.node.lineno < LONGEST:
                keys.setdefault(ast.dump(found.node), []).append(found)
        self.once = {key: one[0] for key, one in keys.items() if len(one) == 1}

    def _walk(self, node: ast.AST, scopes: tuple, block: ast.stmt | None) -> Iterator[Found]:
        for branch in edits.branches(node):
            for statement in branch:
                yield Found(statement, scopes, block, branch)
                inside = (*scopes, statement) if isinstance(statement, edits.DEFINITION) else scopes
                around = statement if isinstance(statement, BLOCK) else block
                yield from self._walk(statement, inside, None if inside is not scopes else around)

    def can_go(self, found: Found) -> bool:
        """Whether the statement can be taken out by its lines."""
        node = found.node
        if isinstance(node, BARRED) or len(found.branch) < 2 or not found.name:
            return False
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return False
        before = self.lines[node.lineno - 1][: node.col_offset]
        behind = self.lines[node.end_lineno - 1].encode()[node.end_col_offset :].strip()
        return not before.strip() and (not behind or behind.startswith(b"#"))


@functools.lru_cache(maxsize=64)
def release(path: Path) -> Release | None:
    text = _text(path)
    try:
        return Release(text)
    except (SyntaxError, ValueError, RecursionError):
        return None


def _text(path: Path) -> str:
    try:
        text = path.read_bytes().decode()
    except UnicodeDecodeError:
        return ""
    return "" if "\f" in text or re.search(r"\r(?!\n)", text) else text


@dataclass(frozen=True)
class Pair:
    package: str
    new: Path
    old: Path
    path: str
    size: str

    @property
    def origin(self) -> dict[str, str]:
        depth = len(Path(self.path).parts) - 1
        newer, older = (p.parents[depth].name for p in (self.new, self.old))
        return {"package": self.package, "new": newer, "old": older, "path": self.path}


def pairs(releases: dict[str, list[Path]]) -> Iterator[Pair]:
    """Training code that changed from one version to the next one, or the one after that."""
    for package, folders in releases.items():
        for (i, older), (j, newer) in itertools.combinations(enumerate(folders), 2):
            if j - i > 2:
                continue
            for new in sorted(newer.rglob("*.py")):
                path = new.relative_to(newer)
                old = older / path
                if "test" in str(path) or not old.is_file():
                    continue
                text, before = _text(new), _text(old)
                if text == before or not before or not re.search("torch|keras|tensorflow", text):
                    continue
                if re.search("loss|optim|train|epoch", text):
                    size = Case("", "", before, 0, "", None).size
                    yield Pair(package, new, old, str(path), size)


def statements(pair: Pair) -> list[tuple[Found, Found]]:
    """What can be taken out of the older file, in random order; every other one is a call."""
    new, old = release(pair.new), release(pair.old)
    if new is None or old is None:
        return []
    found = [
        (new.once[key], one)
        for key, one in old.once.items()
        if key in new.once and new.once[key].name == one.name
        if new.can_go(new.once[key]) and old.can_go(one)
    ]
    Random(str(pair.origin)).shuffle(found)
    calls = [one for one in found if isinstance(one[0].node, ast.Expr)]
    others = [one for one in found if not isinstance(one[0].node, ast.Expr)]
    mixed = itertools.chain.from_iterable(itertools.zip_longest(calls, others))
    return [one for one in mixed if one is not None]


def cases(releases: dict[str, list[Path]], count: int, rng: Random) -> list[Case]:
    """So many real ones, as many of each size as there are, and their variants."""
    by_size: dict[str, list[Pair]] = {size: [] for size in SIZES}
    for pair in pairs(releases):
        by_size[pair.size].append(pair)
    found: list[Case] = []
    left = count
    for done, size in enumerate(sorted(SIZES, key=lambda size: len(by_size[size]))):
        one = _of_size(_in_turns(by_size[size], rng), size, left // (len(SIZES) - done), rng)
        left -= sum(case.kind == "real" for case in one)
        found += one
    return found


def _of_size(ordered: list[Pair], size: str, count: int, rng: Random) -> list[Case]:
    found: list[Case] = []
    limits = {"renamed": count // 3} | dict.fromkeys(NEGATIVE, count // 5)
    made: Counter[str] = Counter()
    for turn in range(TURNS):
        for pair in ordered:
            for both in statements(pair)[turn * AT_ONCE : (turn + 1) * AT_ONCE]:
                case = real(pair, *both)
                if case is None or case.size != size or made["real"] >= count:
                    continue
                wanted = {kind for kind, limit in limits.items() if made[kind] < limit}
                some = [case, *variants(case, *both, wanted, rng)]
                made.update(one.kind for one in some)
                found += some
            if made["real"] >= count:
                return found
    return found


def _in_turns(found: list[Pair], rng: Random) -> list[Pair]:
    """In random order, the packages in turns."""
    by_package: dict[str, list[Pair]] = {}
    for pair in found:
        by_package.setdefault(pair.package, []).append(pair)
    for own in by_package.values():
        rng.shuffle(own)
    mixed = itertools.chain.from_iterable(itertools.zip_longest(*by_package.values()))
    return [pair for pair in mixed if pair is not None]


def real(pair: Pair, new: Found, old: Found) -> Case | None:
    newer, older = release(pair.new), release(pair.old)
    case = Case(
        "real",
        newer.text,
        edits.without(older.text, old.node),
        new.node.lineno,
        edits.without(newer.text, new.node),
        older.text,
        pair.origin,
    )
    return case if edits.parses(case.old) else None


def variants(case: Case, new: Found, old: Found, kinds: set[str], rng: Random) -> Iterator[Case]:
    """The same with other names, and those that have to be refused."""
    if not kinds:
        return
    tree = ast.parse(case.expected)
    ways: dict[str, Callable[[], Case | None]] = {
        "renamed": lambda: renamed(case, tree, new, old, rng),
        SCOPE: lambda: missing_scope(case, tree, old),
        SPAN: lambda: missing_block(case, old),
        UNBOUND: lambda: unbound(case, new, rng),
    }
    for kind, way in ways.items():
        made = way() if kind in kinds else None
        if made is not None and edits.parses(made.old):
            yield made


def renamed(case: Case, tree: ast.Module, new: Found, old: Found, rng: Random) -> Case | None:
    """Two to four of the names in the statement are others in its function or class.

    Only those that both versions have elsewhere in it too: nothing else tells their older names.
    """
    function = old.scopes[-1]
    names = (
        edits.locals_of(function, tree)
        & _elsewhere(function, old)
        & _elsewhere(new.scopes[-1], new)
    )
    picked = [(edits.rename_local, function, name) for name in sorted(names)]
    owner, newer = (
        next((s for s in reversed(one.scopes) if isinstance(s, ast.ClassDef)), None)
        for one in (old, new)
    )
    if owner is not None:
        paths = _elsewhere(owner, old) & _elsewhere(newer, new)
        attributes = {n for n in edits.attributes_of(owner) if f"self.{n}" in paths}
        picked += [(edits.rename_attribute, owner, name) for name in sorted(attributes)]
    if len(picked) < 2:
        return None
    picked = rng.sample(picked, min(len(picked), rng.randint(2, 4)))
    changes = [
        edit
        for (how, where, name), other in zip(
            picked, edits.fresh(rng, (case.new, case.expected), len(picked)), strict=True
        )
        for edit in how(where, name, other)
    ]
    text = edits.apply(case.expected, changes)
    if not edits.parses(text):
        return None
    return replace(case, kind="renamed", old=edits.without(text, old.node), expected=text)


def _elsewhere(around: ast.AST, found: Found) -> set[str]:
    """Names and paths that occur both in the statement and elsewhere in what is around it."""
    inside = Counter(_names(found.node))
    everywhere = Counter(_names(around))
    return {name for name, count in inside.items() if everywhere[name] > count}


def _names(node: ast.AST) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.arg):
            yield part.arg
        elif isinstance(part, (ast.Name, ast.Attribute)):
            yield edits.path_of(part) or ""


def missing_scope(case: Case, tree: ast.Module, old: Found) -> Case | None:
    """The older version does not have the function."""
    function = old.scopes[-1]
    named = [n for n in ast.walk(tree) if isinstance(n, edits.FUNCTION) and n.name == function.name]
    if len(named) > 1:
        return None
    text = edits.without(case.expected, function)
    return replace(case, kind=SCOPE, old=text, expected=None)


def missing_block(case: Case, old: Found) -> Case | None:
    """The older version does not have the block."""
    if old.block is None:
        return None
    others = [n for n in ast.walk(old.block) if isinstance(n, ast.stmt)]
    inside = sum(1 for _ in ast.walk(old.node) if isinstance(_, ast.stmt))
    if len(others) - 1 - inside < 2:
        return None
    text = edits.without(case.expected, old.block)
    return replace(case, kind=SPAN, old=text, expected=None)


def unbound(case: Case, new: Found, rng: Random) -> Case | None:
    """The statement reads a parameter that only the newer version has."""
    arguments = new.scopes[-1].args
    if arguments.vararg or arguments.kwonlyargs or not (arguments.args or arguments.posonlyargs):
        return None
    called = {id(n.func) for n in ast.walk(new.node) if isinstance(n, ast.Call)}
    shown = {
        id(inner)
        for n in ast.walk(new.node)
        if isinstance(n, ast.JoinedStr)
        for inner in ast.walk(n)
    }
    read = [
        n
        for n in ast.walk(new.node)
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load) and n.id not in {"self", "cls"}
        if id(n) not in called | shown
    ]
    if not read:
        return None
    name = edits.fresh(rng, (case.new, case.old), 1)[0]
    use = rng.choice(read)
    last = [*arguments.posonlyargs, *arguments.args, *arguments.defaults]
    end = max((node.end_lineno, node.end_col_offset) for node in last)
    changes = [
        edits.Edit(use.lineno, use.col_offset, len(use.id.encode()), name),
        edits.Edit(*end, 0, f", {name}=None"),
    ]
    text = edits.apply(case.new, changes)
    if not edits.parses(text) or text.count(name) != 2:
        return None
    bare = edits.without(text, new.node)
    return replace(case, kind=UNBOUND, new=text, bare=bare, expected=None)
