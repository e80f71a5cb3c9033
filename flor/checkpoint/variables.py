"""The Python variables that a loop carries on, read from the frames that run it.

Which they are, the analysis of the source tells (`flor.source`); what they hold, the frame. Nothing
is ever written, and no code of the user's runs: attributes are looked up, not asked for.
"""

from __future__ import annotations

import ast
import inspect
import os
import sys
import types
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from flor.checkpoint import arrays
from flor.checkpoint.capturable import UNFIT, identity
from flor.checkpoint.encoding import OPAQUE, Encoder
from flor.checkpoint.manifest import Frame, Missing, Node
from flor.source.changeset import Change, How, LoopChanges, code_matches, loop_changes
from flor.source.liveness import live_after, live_at, live_at_head

FAINT_BYTES = 64 * 1024  # of a value that nobody reads again; a larger one is left out
FAINT_ITEMS = 1000
GUESSED_BYTES = 1024 * 1024  # of what was only passed to a call that may change it
REPORTERS = (  # they carry values outwards; what they are does not decide how training goes on
    *("torch.utils.tensorboard", "tensorboardX", "wandb", "mlflow", "tqdm", "logging", "_io"),
    *("io", "comet_ml", "neptune", "aim", "matplotlib", "rich", "flor", "dvclive", "clearml"),
    *("threading", "_thread", "queue", "subprocess", "socket", "IPython", "ipykernel"),
)
SEES_LOCALS = {"locals", "vars", "eval", "exec", "dir"}
CONTAINERS = (list, dict, set, deque, Counter, bytearray)


@dataclass(frozen=True)
class Place:
    """A loop of a frame: `line` is in its header."""

    frame: FrameType
    line: int


class Sources:
    """Syntax trees of the files whose code runs, as far as they are still what runs."""

    def __init__(self) -> None:
        self._trees: dict[str, ast.Module | None] = {}
        self._matching: dict[CodeType, bool] = {}
        self._texts: dict[str, str] = {}
        self._changes: dict[tuple[CodeType, int], LoopChanges | None] = {}
        self._live: dict[tuple[CodeType, int, str], frozenset[str]] = {}

    def prepare(self, code: CodeType, line: int) -> Iterator[None]:
        """Analyse a loop ahead of time, in the background."""
        yield
        self.changes(code, line)

    def tree(self, code: CodeType) -> ast.Module | None:
        """The tree of the file that the code was compiled from; None if it has changed since."""
        name = code.co_filename
        if name not in self._trees:
            self._texts[name] = text = _source(name)
            try:
                self._trees[name] = ast.parse(text) if text else None
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                self._trees[name] = None
        tree = self._trees[name]
        if tree is None:
            return None
        if code not in self._matching:
            self._matching[code] = code_matches(self._texts[name], name, code)
        return tree if self._matching[code] else None

    def changes(self, code: CodeType, line: int) -> LoopChanges | None:
        key = (code, line)
        if key not in self._changes:
            tree = self.tree(code)
            self._changes[key] = loop_changes(tree, line) if tree is not None else None
        return self._changes[key]

    def live(self, code: CodeType, line: int, where: str) -> frozenset[str]:
        """What is read again: after a loop, at a statement, or at the head of a loop."""
        key = (code, line, where)
        if key not in self._live:
            tree = self.tree(code)
            look = {"after": live_after, "at": live_at, "head": live_at_head}[where]
            self._live[key] = look(tree, line) if tree is not None else frozenset()
        return self._live[key]

    def breaks(self, code: CodeType, line: int) -> frozenset[int]:
        """The lines of the `break` statements of the loop at `line`."""
        tree = self.tree(code)
        loops = () if tree is None else _loops_at(tree, line)
        return frozenset(
            inner.lineno for loop in loops for inner in _own_statements(loop, ast.Break)
        )


def read(
    encoder: Encoder, sources: Sources, place: Place, where: str, at: int, loop: str, root: str
) -> Frame | None:
    """The variables that the loop at `place` changes, as they are at line `at` of its frame.

    `where` tells what that line is: the loop that has just ended (`after`), the statement that runs
    (`at`), the loop that is about to go on (`head`). None if the source is not to be had.
    """
    code = place.frame.f_code
    changes = sources.changes(code, place.line)
    if changes is None:
        encoder.missing.append(
            Missing(f"variables of {code.co_name}", "the source of the loop is not what runs")
        )
        return None
    if not _may_look(code):
        encoder.missing.append(
            Missing(f"variables of {code.co_name}", "it reads its own locals(), which are left be")
        )
        return None
    live = sources.live(code, at, where)
    block: tuple[str, ...] = ()
    if where == "after" and at != place.line:
        inner = sources.changes(code, at)
        block = tuple(_key(change) for change in inner.changes) if inner is not None else ()
    values = {}
    local = place.frame.f_locals
    try:
        for change in changes.changes:
            node = _capture(encoder, change, live, local, place.frame.f_globals)
            if node is not NOTHING:
                values[_key(change)] = node
    finally:
        _let_go(code, local)
    file = code.co_filename.removeprefix(f"{root}{os.sep}")
    return Frame(file, code.co_name, changes.line, loop, values, block)


NOTHING = UNFIT


def _capture(
    encoder: Encoder,
    change: Change,
    live: frozenset[str],
    local: Any,
    module: dict[str, Any],
) -> Node:
    """The node of what stands at a path; NOTHING if there is nothing to keep."""
    value = _look_up(change.path, module if change.scope == "global" else local)
    if value is NOTHING or isinstance(value, OPAQUE) or _is_reporter(value):
        return NOTHING
    if identity(value) in encoder._declared:
        return NOTHING  # it goes with the checkpoint anyway
    is_live = change.path.partition(".")[0] in live or change.scope != "local"
    name = _key(change)
    if change.how is How.PASSED:
        return _guessed(encoder, value, name)
    if not is_live:
        return encoder.tentative(value, name) if _is_faint(value) else NOTHING
    if _is_consumed(value):
        encoder.missing.append(Missing(name, "is an iterator in mid-course"))
        return {"t": "missing", "why": "is an iterator in mid-course"}
    return encoder.encode(value, name)


def _guessed(encoder: Encoder, value: Any, name: str) -> Node:
    """What was passed to a call: kept if it is of a kind that is changed by calls, and small."""
    if hasattr(value, "load_state_dict") and hasattr(value, "state_dict"):
        return encoder.encode(value, name)
    if not (isinstance(value, CONTAINERS) or arrays.is_block(value)):
        return NOTHING
    small = arrays.size_of(value) <= GUESSED_BYTES if arrays.is_block(value) else _is_faint(value)
    if small:
        return encoder.tentative(value, name)
    encoder.missing.append(
        Missing(name, "was passed to a call and is too large to keep on a guess")
    )
    return NOTHING


def _is_faint(value: Any) -> bool:
    """Whether it is small plain data, which may be asked for though the script reads it no more."""
    if isinstance(value, (bool, int, float, complex, type(None))):
        return True
    if isinstance(value, (str, bytes, bytearray)):
        return len(value) <= FAINT_BYTES
    if arrays.is_block(value):
        return arrays.size_of(value) <= FAINT_BYTES
    if type(value) in (list, tuple, dict, set, frozenset, deque, Counter):
        return len(value) <= FAINT_ITEMS
    return type(value).__module__ == "numpy" and hasattr(value, "dtype")


def _is_consumed(value: Any) -> bool:
    return isinstance(value, (Iterator, types.GeneratorType)) and not hasattr(value, "state_dict")


def _is_reporter(value: Any) -> bool:
    module = type(value).__module__
    return any(module == name or module.startswith(f"{name}.") for name in REPORTERS)


def _look_up(path: str, names: Any) -> Any:
    """What a dotted path leads to, without running descriptors or `__getattr__`."""
    first, *rest = path.split(".")
    value = names.get(first, NOTHING)
    for attribute in rest:
        attributes = getattr(value, "__dict__", None) if value is not NOTHING else None
        if not isinstance(attributes, dict):
            return NOTHING
        found = attributes.get(attribute, NOTHING)
        for table in ("_parameters", "_buffers", "_modules"):  # of torch modules
            if found is NOTHING and isinstance(attributes.get(table), dict):
                found = attributes[table].get(attribute, NOTHING)
        value = found
    return value


def _key(change: Change) -> str:
    return change.path if change.scope == "local" else f"{change.scope} {change.path}"


def _may_look(code: CodeType) -> bool:
    """Whether reading the frame's locals changes nothing that the script could see.

    Before Python 3.13 a function has one dictionary of its locals, which a look brings up to date:
    a script that holds it would see it change.
    """
    if sys.version_info >= (3, 13) or not code.co_flags & inspect.CO_OPTIMIZED:
        return True
    return not SEES_LOCALS & set(code.co_names)


def _let_go(code: CodeType, local: Any) -> None:
    """Empty that dictionary again, or it would keep batches alive until the next look."""
    if sys.version_info < (3, 13) and code.co_flags & inspect.CO_OPTIMIZED:
        local.clear()


def user_frame(frame: FrameType | None) -> FrameType | None:
    """The nearest frame of the user's own code: progress bars stand between him and a loop."""
    while frame is not None and is_library(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def is_library(file: str) -> bool:
    return (
        "site-packages" in file
        or "dist-packages" in file
        or file.startswith((_STANDARD, _OWN, "<frozen"))
    )


_STANDARD = os.path.dirname(os.__file__) + os.sep
_OWN = str(Path(__file__).parents[1]) + os.sep


def _source(name: str) -> str:
    """The text of a file or, in a notebook, of a cell."""
    try:
        import tokenize

        with tokenize.open(name) as file:
            return file.read()
    except (OSError, SyntaxError, UnicodeDecodeError):
        import linecache

        return "".join(linecache.getlines(name))


def _loops_at(tree: ast.Module, line: int) -> Sequence[ast.AST]:
    kinds = (ast.For, ast.AsyncFor, ast.While)
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, kinds) and node.lineno <= line < node.body[0].lineno
    ]
    return found[-1:]


def _own_statements(loop: Any, kind: type[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements of a kind that belong to the loop itself, not to loops or functions in it."""
    waiting: list[ast.AST] = list(loop.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, kind):
            yield node
        if isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
            waiting.extend(node.orelse)  # a `break` there is of the loop around
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            waiting.extend(ast.iter_child_nodes(node))
