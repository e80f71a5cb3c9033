"""Edits of Python source that keep its meaning or change it in a known way, for propagation.py."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from random import Random
from typing import NamedTuple

FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
DEFINITION = (*FUNCTION, ast.ClassDef)
LEAVES = (ast.Return, ast.Raise, ast.Break, ast.Continue, ast.Yield, ast.YieldFrom, ast.Await)
PURE = {"abs", "dict", "enumerate", "float", "int", "len", "list", "max", "min", "range", "round"}
PURE |= {"set", "sorted", "str", "sum", "tuple", "zip"}
MODULES = {"flor", "np", "nn", "random", "torch"}  # which a call on them does not change
WORDS = re.findall(
    r"\w+",
    """
amount answer bundle carrier chunk coeff collected config_map courier current data_in delta_sum
element_list engine factor feed field_map found_items fraction gathered guess handle_obj holder
inner_state item_set kept_part lookup magnitude material measure_val model_ref network_ref
numbers objective outcome packet payload pending piece portion previous product quantity
received record_set reference_set relation remainder report_map sample_set selected shared_ref
signal_in source_set spread_val storage subject_ref target_set temp_val term total_sum tracked
unit_list update_val value_set vector_in weight_set working_set
""",
)


class Edit(NamedTuple):
    """Bytes of a line, counted from 0, and what comes in their place."""

    line: int
    column: int
    length: int
    text: str


def apply(text: str, edits: Iterable[Edit]) -> str:
    lines = [line.encode() for line in text.split("\n")]
    for line, column, length, new in sorted(set(edits), reverse=True):
        found = lines[line - 1]
        lines[line - 1] = found[:column] + new.encode() + found[column + length :]
    return b"\n".join(lines).decode()


def parses(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    return True


def without(text: str, node: ast.stmt) -> str:
    """The text without a statement's lines, decorators included."""
    lines = text.split("\n")
    return "\n".join(lines[: first_line(node) - 1] + lines[node.end_lineno :])


def first_line(node: ast.stmt) -> int:
    return min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])


def branches(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """The statement lists directly in a node."""
    for field in ("body", "orelse", "finalbody"):
        found = getattr(node, field, None)
        if isinstance(found, list) and found:
            yield found
    for part in getattr(node, "handlers", None) or getattr(node, "cases", None) or ():
        yield part.body


# Names


def locals_of(function: ast.AST, tree: ast.AST) -> set[str]:
    """Parameters and variables of a function that can be renamed by their tokens."""
    arguments = function.args
    found = {a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    barred = {"self", "cls"} | _shown(function)
    barred |= {a.arg for a in (arguments.vararg, arguments.kwarg) if a is not None}
    barred |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg}
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            barred.update(node.names)
        elif isinstance(node, ast.alias):
            barred.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
            barred.add(node.name)
        elif isinstance(node, DEFINITION):
            barred.add(node.name)
            if isinstance(node, ast.ClassDef):
                return set()
    return {name for name in found - barred if not name.startswith("_")}


def attributes_of(owner: ast.ClassDef) -> set[str]:
    """Attributes that a class sets on `self`, and that nothing else in it has."""
    found, barred = set(), _shown(owner)
    for node in ast.walk(owner):
        if isinstance(node, ast.Attribute):
            on_self = isinstance(node.value, ast.Name) and node.value.id == "self"
            if not on_self:
                barred.add(node.attr)
            elif isinstance(node.ctx, ast.Store):
                found.add(node.attr)
        elif isinstance(node, DEFINITION):
            barred.add(node.name)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            barred.add(node.value)  # for getattr
    for statement in owner.body:
        if not isinstance(statement, FUNCTION):
            barred |= {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
    return {name for name in found - barred if not name.startswith("_")}


def _shown(node: ast.AST) -> set[str]:
    """Names in f-strings and in other strings that a call may fill in."""
    found: set[str] = set()
    for part in ast.walk(node):
        if isinstance(part, ast.JoinedStr):
            for inner in ast.walk(part):
                found |= {getattr(inner, "id", ""), getattr(inner, "attr", "")}
        elif isinstance(part, ast.Constant) and isinstance(part.value, str):
            found.update(re.findall(r"(?:\{|%\()(\w+)", part.value))
    return found


def rename_local(function: ast.AST, old: str, new: str) -> Iterator[Edit]:
    """Everywhere in the function; its defaults and decorators belong to the scope around it."""
    arguments = function.args
    own = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    for root in (*own, *function.body):
        for node in ast.walk(root):
            name = getattr(node, "id" if isinstance(node, ast.Name) else "arg", None)
            if name == old and isinstance(node, (ast.Name, ast.arg)):
                yield Edit(node.lineno, node.col_offset, len(old.encode()), new)


def rename_attribute(owner: ast.ClassDef, old: str, new: str) -> Iterator[Edit]:
    """`self.old` everywhere in the class."""
    for node in ast.walk(owner):
        if path_of(node) == f"self.{old}" and isinstance(node, ast.Attribute):
            size = len(old.encode())
            yield Edit(node.end_lineno, node.end_col_offset - size, size, new)


def fresh(rng: Random, texts: Iterable[str], count: int) -> list[str]:
    """Names that occur in none of the texts."""
    taken = {word for text in texts for word in re.findall(r"\w+", text)}
    names = [name for word in WORDS for name in (word, f"{word}_2") if name not in taken]
    return rng.sample(names, count)


# Data flow: names are dotted paths, `self.loss` is one


def path_of(node: ast.AST | None) -> str | None:
    """`a.b.c` of an attribute of an attribute of a name; the array's of an element."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = path_of(node.value)
        return base and f"{base}.{node.attr}"
    if isinstance(node, (ast.Subscript, ast.Starred)):
        return path_of(node.value)
    return None


def binds(statement: ast.AST) -> set[str]:
    """What a statement assigns, and objects whose methods it calls for their effect."""
    found: set[str | None] = set()
    for node in ast.walk(statement):
        if isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del)):
            found.add(path_of(node))
        elif isinstance(node, DEFINITION):
            found.add(node.name)
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, ast.ExceptHandler):
            found.add(node.name)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            receiver = path_of(getattr(node.value.func, "value", None)) or ""
            if receiver.split(".")[0] not in MODULES:
                found.add(receiver)
    return {name for name in found if name}


def reads(statement: ast.AST) -> set[str]:
    """Names and paths that a statement looks at, with the beginnings of each path."""
    found: set[str] = set()
    for node in ast.walk(statement):
        if isinstance(getattr(node, "ctx", None), ast.Load):
            found.add(path_of(node) or "")
        elif isinstance(node, ast.AugAssign):
            found.add(path_of(node.target) or "")
    return found - {""}


def has_effect(statement: ast.AST) -> bool:
    """Whether it calls anything but a class or a built-in function without effects."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else path_of(node.func)
            if not name or not (name in PURE or name[0].isupper()):
                return True
    return False


def leaves(statement: ast.AST) -> bool:
    """Whether what stands behind it may not be reached."""
    return any(isinstance(node, LEAVES) for node in ast.walk(statement))


def independent(a: ast.stmt, b: ast.stmt) -> bool:
    """Whether two neighbours may change places."""
    binds_a, binds_b = binds(a), binds(b)
    if binds_a & (reads(b) | binds_b) or binds_b & reads(a):
        return False
    return not (leaves(a) or leaves(b) or (has_effect(a) and has_effect(b)))
