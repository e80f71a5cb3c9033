"""Cases for propagation.py from the scripts in `scripts/`, with older versions edited at random.

A record is right behind the statement that it stood behind, or anywhere else in the same block from
where only statements lie in between that assign nothing it reads and always go on.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import edits
from histories import Case

SCRIPTS = Path(__file__).with_name("scripts")
NOISE = (
    "unused_{n} = {n}",
    'print("reached {n}")',
    "# a note, number {n}",
    "spare_{n} = [0] * {n}",
    'label_{n} = "{n}"',
)
SWAPS = 60


def cases(count: int, rng: Random) -> Iterator[Case]:
    """So many of each kind of edit, and of all together."""
    kinds: dict[str, tuple[Callable[[str, Random], str], ...]] = {
        "generated: renamed": (rename,),
        "generated: noise": (noise,),
        "generated: permuted": (permute,),
        "generated: together": (permute, noise, rename),
    }
    scripts = sorted(SCRIPTS.glob("*.py"))
    records = [(path, name) for path in scripts for name in _names(path.read_text())]
    for kind, ways in kinds.items():
        for number in range(count):
            path, name = records[number % len(records)]
            yield one(kind, path, name, ways, rng)


def one(
    kind: str, path: Path, name: str, ways: tuple[Callable[[str, Random], str], ...], rng: Random
) -> Case:
    new = path.read_text()
    probe = _record(new, name)
    expected = new
    for other in _names(new):
        if other != name:
            expected = edits.without(expected, _record(expected, other))
    for way in ways:
        expected = way(expected, rng)
    old = edits.without(expected, _record(expected, name))
    origin = {"path": path.name, "record": name}
    return Case(kind, new, old, probe.lineno, edits.without(new, probe), expected, origin)


def _names(text: str) -> list[str]:
    return re.findall(r'flor\.log\("(\w+)"', text)


def _record(text: str, name: str) -> ast.stmt:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and ast.unparse(node).startswith(f"flor.log('{name}'"):
            return node
    raise LookupError(name)


def rename(text: str, rng: Random) -> str:
    """A third of the variables of each function, and of the attributes of each class."""
    tree = ast.parse(text)
    changes: list[edits.Edit] = []
    for node in ast.walk(tree):
        if isinstance(node, edits.FUNCTION):
            names, how = edits.locals_of(node, tree), edits.rename_local
        elif isinstance(node, ast.ClassDef):
            names, how = edits.attributes_of(node), edits.rename_attribute
        else:
            continue
        picked = [name for name in sorted(names) if rng.random() < 1 / 3]
        for name, other in zip(picked, edits.fresh(rng, (text,), len(picked)), strict=True):
            changes += how(node, name, other)
    return edits.apply(text, changes)


def noise(text: str, rng: Random) -> str:
    """Five to ten lines that nothing else depends on."""
    for number in rng.sample(range(100, 1000), rng.randint(5, 10)):
        branch = rng.choice(_branches(text))
        at = rng.choice([s for i, s in enumerate(branch) if i or not _is_docstring(s)] or branch)
        lines = text.split("\n")
        line = " " * at.col_offset + rng.choice(NOISE).format(n=number)
        lines.insert(edits.first_line(at) - 1, line)
        changed = "\n".join(lines)
        text = changed if edits.parses(changed) else text
    return text


def permute(text: str, rng: Random) -> str:
    """Neighbours that are independent change places, again and again."""
    branches = _branches(text)
    for _ in range(SWAPS):
        branch = rng.choice([b for b in branches if len(b) > 1])
        i = rng.randrange(len(branch) - 1)
        first, second = branch[i], branch[i + 1]
        if _is_docstring(first) or not edits.independent(first, second):
            continue
        lines = text.split("\n")
        begin, middle, end = edits.first_line(first) - 1, first.end_lineno, second.end_lineno
        lines[begin:end] = lines[middle:end] + lines[begin:middle]
        text = "\n".join(lines)
        branches = _branches(text)
    return text


def _branches(text: str) -> list[list[ast.stmt]]:
    found: list[list[ast.stmt]] = []
    left: list[ast.AST] = [ast.parse(text)]
    while left:
        for branch in edits.branches(left.pop()):
            found.append(branch)
            left += branch
    return found


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def is_equivalent(case: Case, text: str) -> bool:
    """Whether the record is where it was, or where it reads the same."""
    name = case.origin["record"]
    try:
        wanted, found = _place(case.expected, name), _place(text, name)
    except LookupError:
        return False
    if ast.dump(_record(case.expected, name)) != ast.dump(_record(text, name)):
        return False
    if wanted[0] != found[0] or ast.dump(ast.parse(_bare(text, name))) != ast.dump(
        ast.parse(case.old)
    ):
        return False
    return not any(
        edits.leaves(between) or edits.binds(between) & edits.reads(_record(text, name))
        for between in _between(case.expected, name, wanted[1], found[1])
    )


def _bare(text: str, name: str) -> str:
    return edits.without(text, _record(text, name))


def _between(text: str, name: str, *places: int) -> list[ast.stmt]:
    """The block's statements, the record left out, from one place to the other."""
    block = _block(text, name)
    others = [s for s in block if ast.dump(s) != ast.dump(_record(text, name))]
    return others[min(places) : max(places)]


def _block(text: str, name: str) -> list[ast.stmt]:
    wanted = _record(text, name).lineno
    return next(b for b in _branches(text) if any(s.lineno == wanted for s in b))


def _place(text: str, name: str) -> tuple[tuple[int, ...], int]:
    """The record's block, by the way to it, and its index there."""
    wanted = ast.dump(_record(text, name))

    def search(node: ast.AST, way: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], int]]:
        for number, branch in enumerate(edits.branches(node)):
            for index, statement in enumerate(branch):
                if ast.dump(statement) == wanted:
                    yield (*way, number), index
                yield from search(statement, (*way, number, index))

    found = list(search(ast.parse(text), ()))
    if len(found) != 1:
        raise LookupError(name)
    return found[0]
