"""The Python variables that a loop carries on, read from the frames that run it.

Which they are, the analysis of the source tells (`flor.source`); what they hold, the frame. Nothing
is ever written, and no code of the user's runs: attributes are looked up, not asked for.
"""

from __future__ import annotations

import ast
import os
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, TypeAlias

from flor.checkpoint import arrays
from flor.checkpoint.callables import Callables, Held, may_change
from flor.checkpoint.capturable import OPAQUE, has_state, identity, is_library
from flor.checkpoint.encoding import Encoder
from flor.checkpoint.frames import (
    NOTHING,
    is_generator,
    look_up,
    may_look,
    names_of,
    steps,
    user_frame,
)
from flor.checkpoint.manifest import Frame, Missing, Node
from flor.checkpoint.modules import rank
from flor.source.changeset import LoopChanges, function_changes, loop_changes
from flor.source.compiled import code_matches
from flor.source.effects import Change, How
from flor.source.gradients import Use, gradients_around
from flor.source.liveness import live_after, live_at, live_at_head
from flor.source.names import hands_on, loop_at

FAINT_BYTES = 64 * 1024  # of a value that nobody reads again; a larger one is left out
FAINT_ITEMS = 1000
GUESSED_BYTES = 1024 * 1024  # of what was only passed to a call that may change it
REPORTERS = (  # they carry values outwards; what they are does not decide how training goes on
    *("torch.utils.tensorboard", "tensorboardX", "wandb", "mlflow", "tqdm", "logging", "_io"),
    *("io", "comet_ml", "neptune", "aim", "matplotlib", "rich", "flor", "dvclive", "clearml"),
    *("threading", "_thread", "queue", "subprocess", "socket", "IPython", "ipykernel"),
    *("csv", "_csv"),
)
CODE = "is code rather than state"  # no loss where it is part of what is only called
Uses: TypeAlias = tuple[Use, ...]
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
        self._functions: dict[CodeType, tuple[Change, ...] | None] = {}
        self._around: dict[tuple[CodeType, int, CodeType, int], Uses | None] = {}
        self._live: dict[tuple[CodeType, int, str], frozenset[str]] = {}

    def prepare(
        self, code: CodeType, line: int, around: tuple[CodeType, int] | None = None
    ) -> Iterator[None]:
        """Analyse a loop ahead of time, and the one around it."""
        yield
        self.changes(code, line)
        if around is not None:
            yield
            self.gradients_around(*around, code, line)

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

    def has_text(self, code: CodeType) -> bool:
        self.tree(code)
        return bool(self._texts[code.co_filename])

    def changes(self, code: CodeType, line: int) -> LoopChanges | None:
        key = (code, line)
        if key not in self._changes:
            tree = self.tree(code)
            self._changes[key] = loop_changes(tree, line) if tree is not None else None
        return self._changes[key]

    def of_function(self, code: CodeType) -> tuple[Change, ...] | None:
        """What calls of a function change; None if its source cannot be read."""
        if code not in self._functions:
            tree = self.tree(code)
            name, line = code.co_name, code.co_firstlineno
            found = function_changes(tree, line, name) if tree is not None else None
            self._functions[code] = found
        return self._functions[code]

    def gradients_around(self, code: CodeType, line: int, inner: CodeType, at: int) -> Uses | None:
        """How a loop uses gradients outside of the loop at line `at` of `inner`; None if its source
        cannot be read."""
        key = (code, line, inner, at)
        if key not in self._around:
            tree = self.tree(code)
            boundary = at if inner.co_filename == code.co_filename else None
            found = gradients_around(tree, line, boundary) if tree is not None else None
            self._around[key] = found
        return self._around[key]

    def live(self, code: CodeType, line: int, where: str) -> frozenset[str]:
        """What is read again: after a loop, at a statement, or at the head of a loop."""
        key = (code, line, where)
        if key not in self._live:
            tree = self.tree(code)
            look = {"after": live_after, "at": live_at, "head": live_at_head}[where]
            self._live[key] = look(tree, line) if tree is not None else frozenset()
        return self._live[key]

    def runner(self, frame: FrameType) -> FrameType | None:
        """The user's frame that a loop runs in, which begins: not that of a generator around it
        that only hands its items on to another loop."""
        found = here = user_frame(frame)
        while here is not None and self._hands_on(here):
            here = user_frame(here.f_back)
        if here is None or (found is not here and self._steps(here)):
            return found
        return here

    def _steps(self, frame: FrameType) -> bool:
        """Whether it has no loop over the generators inside of it, but draws on them by `next`."""
        tree = self.tree(frame.f_code)
        return tree is not None and loop_at(tree, frame.f_lineno) is None

    def _hands_on(self, frame: FrameType) -> bool:
        code = frame.f_code
        if not is_generator(code) or code.co_name == "<genexpr>":
            return is_generator(code)
        tree = self.tree(code)
        return tree is None or hands_on(tree, frame.f_lineno)


@dataclass(frozen=True)
class Reader:
    """Reads frames for one checkpoint: `loop` is its main loop, `objects` are its nodes so far."""

    encoder: Encoder
    sources: Sources
    root: str
    loop: str
    objects: Mapping[str, Node]

    def changed(self, place: Place, where: str, at: int, but: Collection[str] = ()) -> list[Frame]:
        """The variables that the loop at `place` changes, as they are at line `at` of its frame;
        paths in `but` are left out.

        `where` tells what that line is: the loop that has just ended (`after`), the statement that
        runs (`at`), the loop that is about to go on (`head`). Nothing if they cannot be told.
        """
        code = place.frame.f_code
        changes = self.sources.changes(code, place.line)
        if changes is None or not may_look(code):
            self._give_up(code, place.line)
            return []
        live = self.sources.live(code, at, where)
        inner = self.sources.changes(code, at) if where == "after" and at != place.line else None
        values: dict[str, Node] = {}
        # What is called comes last: what it holds may be a variable of its own.
        ordered = sorted(changes.changes, key=lambda change: change.how is How.CALLED)
        with names_of(place.frame) as (local, module):
            for change in ordered:
                names = module if change.scope == "global" else local
                found = {} if change.path in but else self._capture(change, live, names)
                values |= {name: node for name, node in found.items() if node is not NOTHING}
        block = tuple(map(_key, inner.changes)) if inner is not None else ()
        return [Frame(self._file(code), code.co_name, changes.line, self.loop, values, block)]

    def passed(self, frame: FrameType) -> list[Frame]:
        """The variables of a function between the two loops that it reads again.

        No loop tells which of them change, so small plain data is kept whatever it is; what the
        function was given is its callers'.
        """
        code, line = frame.f_code, frame.f_lineno
        if self.sources.tree(code) is None or not may_look(code):
            self._give_up(code, line)
            return []
        given = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        values = {}
        with names_of(frame) as (local, _):
            for name in sorted(self.sources.live(code, line, "at") & set(local)):
                value = local[name]
                if self._is_left_out(value):
                    continue
                node = self.encoder.tentative(value, name) if _is_faint(value) else NOTHING
                if node is not NOTHING:
                    values[name] = node
                elif name not in given:
                    self._miss(
                        name, f"is a variable of {code.co_name}(), which runs no loop itself"
                    )
        if not values:
            return []
        return [Frame(self._file(code), code.co_name, line, self.loop, values)]

    def _capture(
        self, change: Change, live: frozenset[str], names: Mapping[str, Any]
    ) -> dict[str, Node]:
        """The nodes of what stands at a path, by name; NOTHING where there is nothing to keep."""
        value, name = look_up(change.path, names), _key(change)
        is_live = change.path.partition(".")[0] in live or change.scope != "local"
        if change.how is How.CALLED:
            if value is NOTHING or not is_live or self._is_inside(change.path, names):
                return {}
            held = Callables(self.sources.of_function).held(value, name)
            return {item.name: self._held(item) for item in held}
        if self._is_left_out(value) or self._is_inside(change.path, names):
            return {}
        return {name: self._plain(change.how, value, name, is_live)}

    def _plain(self, how: How, value: Any, name: str, is_live: bool) -> Node:
        if how is How.PASSED:
            return self._guess(value, name)
        if not is_live:
            return self.encoder.tentative(value, name) if _is_faint(value) else NOTHING
        if issubclass(type(value), Iterator) and not has_state(value):
            return self._miss(name, "is an iterator in mid-course")
        return self.encoder.encode(value, name)

    def _held(self, item: Held) -> Node:
        """The node of what a callable holds, unless it is held already."""
        value = item.value
        if self._is_left_out(value) or identity(value) in self.encoder._memo:
            return NOTHING
        if item.how is not How.CALLED:
            return self._plain(item.how, value, item.name, is_live=True)
        if has_state(value):
            return self.encoder.encode(value, item.name) if self._may_change(value) else NOTHING
        if is_library(type(value)):
            return self.encoder.tentative(value, item.name)
        missing = len(self.encoder.missing)
        node = self.encoder.encode(value, item.name)
        new = [lost for lost in self.encoder.missing[missing:] if not lost.reason.endswith(CODE)]
        self.encoder.missing[missing:] = new
        return node

    def _may_change(self, value: Any) -> bool:
        """Whether calls may change an object, and nothing that is declared has all of it."""
        if rank(value) != 0 or not may_change(value):
            return rank(value) != 0
        parts = [*value.parameters(), *value.buffers()]
        return not parts or not all(identity(item) in self.encoder.covered for item in parts)

    def _guess(self, value: Any, name: str) -> Node:
        """What was passed to a call: kept if it is of a kind that calls change, and small."""
        if has_state(value):
            return self.encoder.encode(value, name)
        is_block = arrays.is_block(value)
        if not (is_block or issubclass(type(value), CONTAINERS)):
            return NOTHING
        if arrays.size_of(value) <= GUESSED_BYTES if is_block else _is_faint(value):
            return self.encoder.tentative(value, name)
        self._miss(name, "was passed to a call and is too large to keep on a guess")
        return NOTHING

    def _is_left_out(self, value: Any) -> bool:
        """Whether it is no state, or goes with the checkpoint anyway."""
        declared = self.encoder._declared
        no_state = value is NOTHING or issubclass(type(value), OPAQUE) or _is_reporter(value)
        return no_state or identity(value) in declared

    def _is_inside(self, path: str, names: Mapping[str, Any]) -> bool:
        """Whether a path leads into a declared object whose state has what is there."""
        parts = path.split(".")
        for depth, value in enumerate(steps(path, names), 1):
            name = self.encoder._declared.get(identity(value))
            rest = ".".join(parts[depth:])
            if name is not None and rest and _has(self.objects.get(name), rest):
                return True
        return False

    def _give_up(self, code: CodeType, line: int) -> None:
        func = "the script" if code.co_name == "<module>" else f"{code.co_name}()"
        if not self.sources.has_text(code):
            reason = "has no source that would tell which they are"
        elif self.sources.tree(code) is None:
            reason = "has a source that is not what runs: its file was changed"
        elif not may_look(code):
            reason = "looks at its own locals(), which are left as they are"
        else:
            reason = f"has no loop at line {line}"
        self._miss(f"the variables of {func}", reason)

    def _miss(self, name: str, reason: str) -> Node:
        self.encoder.missing.append(Missing(name, reason))
        return {"t": "missing", "why": reason}

    def _file(self, code: CodeType) -> str:
        return code.co_filename.removeprefix(f"{self.root}{os.sep}")


def _has(node: Node, path: str) -> bool:
    """Whether the node of a declared object has what is at this path of it."""
    kind = node.get("t") if isinstance(node, dict) else None
    if kind != "state":
        return kind == "instance"
    owner, _, name = path.rpartition(".")
    state = node.get("of")
    keys = state.get("of", {}) if isinstance(state, dict) else {}
    return (
        any(key == path or key.startswith(f"{path}.") for key in keys)
        or name in node.get("attributes", {}).get(owner, {})
        or (name == "training" and "training" in node)
    )


def _is_faint(value: Any) -> bool:
    """Whether it is small plain data, which may be asked for though the script reads it no more."""
    kind = type(value)
    if issubclass(kind, (bool, int, float, complex, type(None))):
        return True
    if kind in (str, bytes, bytearray):
        return len(value) <= FAINT_BYTES
    if arrays.is_block(value):
        return arrays.size_of(value) <= FAINT_BYTES
    if kind in (list, tuple, dict, set, frozenset, deque, Counter):
        return len(value) <= FAINT_ITEMS
    return kind.__module__ == "numpy" and hasattr(kind, "dtype")


def _is_reporter(value: Any) -> bool:
    module = type(value).__module__
    return any(module == name or module.startswith(f"{name}.") for name in REPORTERS)


def _key(change: Change) -> str:
    return change.path if change.scope == "local" else f"{change.scope} {change.path}"


def _source(name: str) -> str:
    """The text of a file or, in a notebook, of a cell."""
    try:
        import tokenize

        with tokenize.open(name) as file:
            return file.read()
    except (OSError, SyntaxError, UnicodeDecodeError):
        import linecache

        return "".join(linecache.getlines(name))
