"""Frames of the user's code: which one runs a loop, how the loop was left, what names mean in it.

Nothing is written, and no code of the user's runs.
"""

from __future__ import annotations

import dis
import inspect
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from itertools import zip_longest
from opcode import opmap
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

from flor.checkpoint.capturable import UNFIT

NOTHING = UNFIT
SEES_LOCALS = {"locals", "eval", "exec"}
MAY_SEE_LOCALS = {"vars", "dir"}  # without an argument
TABLES = ("_parameters", "_buffers", "_modules")  # where torch's modules keep their attributes


def user_frame(frame: FrameType | None) -> FrameType | None:
    """The nearest frame of the user's own code: progress bars stand between him and a loop."""
    while frame is not None and is_library_file(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


class Running(NamedTuple):
    """The user's code that runs a loop; `line` is in the loop's header."""

    code: CodeType
    line: int
    held: FrameType | None

    def frame(self, inside: FrameType | None) -> FrameType | None:
        """Its frame, from one inside of it.

        It is held, as there is no way to it where generators in between are closed; but not that
        of a generator, which would not end then.
        """
        if self.held is not None:
            return self.held
        while inside is not None and inside.f_code is not self.code:
            inside = inside.f_back
        return inside


def running(frame: FrameType) -> Running:
    code = frame.f_code
    return Running(code, frame.f_lineno, None if code.co_flags & _SUSPENDED else frame)


_SUSPENDED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def is_generator(code: CodeType) -> bool:
    return bool(code.co_flags & inspect.CO_GENERATOR)


def is_library_file(file: str) -> bool:
    return (
        "site-packages" in file
        or "dist-packages" in file
        or file.startswith((_STANDARD, _OWN, "<frozen"))
    )


_STANDARD = os.path.dirname(os.__file__) + os.sep
_OWN = str(Path(__file__).parents[1]) + os.sep


# --- how a loop was left --------------------------------------------------------------------------


def left_on_purpose(frame: FrameType) -> bool:
    """Whether a loop of the frame that has just ended early was left by `break` or `return`.

    These throw the loop's iterator away; an exception still stands at what raised it. A generator
    that was closed where it waits was left as the loop over it was.
    """
    here: FrameType | None = frame
    while here is not None and _instruction(here) in _WAITING and is_generator(here.f_code):
        here = user_frame(here.f_back)
    return here is not None and _instruction(here) in _THROWN_AWAY


def _instruction(frame: FrameType) -> int:
    return frame.f_code.co_code[frame.f_lasti] if frame.f_lasti >= 0 else -1


_THROWN_AWAY = {opmap[name] for name in ("POP_TOP", "POP_ITER") if name in opmap}
_WAITING = {
    opmap[name] for name in ("YIELD_VALUE", "YIELD_FROM", "SEND", "RESUME") if name in opmap
}


# --- what names mean ------------------------------------------------------------------------------


@contextmanager
def names_of(frame: FrameType) -> Iterator[tuple[Mapping[str, Any], dict[str, Any]]]:
    """The frame's own names, as far as they may be looked at, and those of its module."""
    code = frame.f_code
    local: Any = frame.f_locals if may_look(code) else {}
    try:
        yield local, frame.f_globals
    finally:
        if sys.version_info < (3, 13) and code.co_flags & inspect.CO_OPTIMIZED:
            local.clear()  # or the dictionary would keep batches alive until the next look


def may_look(code: CodeType) -> bool:
    """Whether reading the frame's locals changes nothing that the script could see.

    Before Python 3.13 a function has one dictionary of its locals, which a look brings up to date:
    a script that holds it would see it change.
    """
    if sys.version_info >= (3, 13) or not code.co_flags & inspect.CO_OPTIMIZED:
        return True
    return not _sees_locals(code)


@lru_cache(maxsize=256)
def _sees_locals(code: CodeType) -> bool:
    """Whether a function asks for its own locals: `net.eval()` and `vars(args)` do not."""
    if not {*SEES_LOCALS, *MAY_SEE_LOCALS, "f_locals"} & set(code.co_names):
        return False
    steps = list(dis.get_instructions(code))
    for step, after in zip_longest(steps, steps[1:]):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            given = after is not None and after.opname.startswith(("LOAD_", "BUILD_"))
            if step.argval in SEES_LOCALS or (step.argval in MAY_SEE_LOCALS and not given):
                return True
        elif step.opname.startswith("LOAD_ATTR") and step.argval == "f_locals":
            return True
    return False


def look_up(path: str, names: Mapping[str, Any]) -> Any:
    """What a dotted path leads to, without running descriptors or `__getattr__`; else NOTHING."""
    *_, value = steps(path, names)
    return value


def steps(path: str, names: Mapping[str, Any]) -> Iterator[Any]:
    """What each beginning of a dotted path leads to: `a`, `a.b`, `a.b.c`."""
    first, *rest = path.split(".")
    value = names.get(first, NOTHING)
    yield value
    for name in rest:
        if name == "__class__" and value is not NOTHING:
            value = type(value)
            yield value
            continue
        own, kind = attributes(value), type(value)
        value = own.get(name, NOTHING)
        for table in TABLES:
            if value is NOTHING and isinstance(own.get(table), dict):
                value = own[table].get(name, NOTHING)
        if value is NOTHING and own:  # what its class gives it, but no descriptors
            shared = attributes(kind).get(name, NOTHING)
            value = NOTHING if hasattr(type(shared), "__get__") else shared
        yield value


def attributes(value: Any) -> dict[str, Any]:
    """What is in the `__dict__` of an object, or in a class and its bases; nothing where it has
    none."""
    if isinstance(value, type):
        bases = reversed(type.__dict__["__mro__"].__get__(value)[:-1])
        return {name: item for base in bases for name, item in _class_dict(base).items()}
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return found if type(found) is dict else {}


def _class_dict(kind: type) -> Mapping[str, Any]:
    found: Mapping[str, Any] = type.__dict__["__dict__"].__get__(kind)
    return found
