"""What the callables that a loop calls hold on to: the state that a call of them may change.

A function is code; the variables that it has from around it are state, and so is the object that a
method belongs to. Nothing is called here.
"""

from __future__ import annotations

import dis
import functools
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, NamedTuple

from flor.checkpoint import modules
from flor.checkpoint.capturable import identity, is_library
from flor.checkpoint.frames import NOTHING, attributes, is_library_file, look_up
from flor.source.effects import MUTATORS, Change, How

MOST = 1000  # elements of a container that are looked at
DEEPEST = 4
CONTAINERS = (list, tuple, dict, set, frozenset, deque)
CODE = (types.ModuleType, type, types.MethodWrapperType, types.WrapperDescriptorType)


class Held(NamedTuple):
    """What a callable holds; `name` begins with the callable's own."""

    name: str
    value: Any
    how: How


@dataclass
class Callables:
    """Looks into callables. `changes` tells what a function's source says about it, if it can."""

    changes: Callable[[CodeType], tuple[Change, ...] | None]
    _seen: dict[int, Any] = field(default_factory=dict)

    def held(self, value: Any, name: str, depth: int = 0) -> Iterator[Held]:
        """The state that calls of a value, or of what is in it, may change."""
        if isinstance(value, CODE) or depth > DEEPEST or identity(value) in self._seen:
            return
        self._seen[identity(value)] = value
        kind = type(value)
        if issubclass(kind, types.FunctionType):
            yield from self._function(value, name, depth)
        elif issubclass(kind, types.MethodType):
            yield Held(f"{name}.__self__", value.__self__, How.CALLED)
        elif issubclass(kind, types.BuiltinFunctionType):
            yield from _builtin(value, name)
        elif issubclass(kind, functools.partial):
            yield from self._partial(value, name, depth)
        elif "__wrapped__" in attributes(value) and is_library(kind):
            yield from self.held(attributes(value)["__wrapped__"], name, depth + 1)
        elif kind in CONTAINERS:
            yield from self._container(value, name, depth)
        else:
            yield Held(name, value, How.CALLED)

    def _function(self, value: Any, name: str, depth: int) -> Iterator[Held]:
        wrapped = attributes(value).get("__wrapped__")
        if wrapped is not None:
            yield from self.held(wrapped, name, depth + 1)
        code = value.__code__
        if is_library_file(code.co_filename):
            return
        cells = {
            free: _content(cell)
            for free, cell in zip(code.co_freevars, value.__closure__ or (), strict=True)
        }
        if not cells:
            return
        for path, how in self._changed(code):
            found = look_up(path, cells)
            here = f"{name}.__closure__.{path}"
            if found is NOTHING or identity(found) in self._seen:
                continue
            if how is How.CALLED:
                yield from self.held(found, here, depth + 1)
            else:
                yield Held(here, found, how)

    def _changed(self, code: CodeType) -> list[tuple[str, How]]:
        """What of the variables around a function it changes; a guess where it has no source."""
        changes = self.changes(code)
        if changes is not None:
            return [(item.path, item.how) for item in changes if item.scope == "nonlocal"]
        bound = _rebound(code)
        return [(free, How.ASSIGNED if free in bound else How.PASSED) for free in code.co_freevars]

    def _partial(self, value: Any, name: str, depth: int) -> Iterator[Held]:
        yield from self.held(value.func, f"{name}.func", depth + 1)
        given = {f"{name}.args[{n}]": item for n, item in enumerate(value.args)}
        given |= {f"{name}.keywords[{key!r}]": item for key, item in value.keywords.items()}
        for here, item in given.items():
            if callable(item):
                yield from self.held(item, here, depth + 1)
            else:
                yield Held(here, item, How.PASSED)

    def _container(self, value: Any, name: str, depth: int) -> Iterator[Held]:
        if len(value) > MOST:
            return
        keyed = value.items() if isinstance(value, dict) else enumerate(value)
        items = list(keyed)
        if not any(callable(item) or type(item) in CONTAINERS for _, item in items):
            yield Held(name, value, How.PASSED)
            return
        for key, item in items:
            if callable(item) or type(item) in CONTAINERS:
                yield from self.held(item, f"{name}[{key!r:.40}]", depth + 1)


def may_change(value: Any) -> bool:
    """Whether calls of an object that has state may change it: not of a network in eval mode, nor
    of a loss that has no parameters."""
    if modules.rank(value) != 0:
        return True
    if not attributes(value).get("training", True):
        return False
    if any(True for _ in value.parameters()) or any(True for _ in value.buffers()):
        return True
    return not all(type(part).__module__.startswith("torch.") for part in value.modules())


def _builtin(value: Any, name: str) -> Iterator[Held]:
    """`append = history.append`; the methods of containers that only read are no matter."""
    owner = value.__self__
    reads = type(owner) in (*CONTAINERS, str, bytes) and value.__name__ not in MUTATORS
    if owner is None or isinstance(owner, CODE) or reads or _is_global_generator(owner):
        return
    yield Held(f"{name}.__self__", owner, How.MUTATED if not reads else How.PASSED)


def _is_global_generator(value: Any) -> bool:
    """The generators behind `random.random` and `numpy.random.rand`, which are held anyway."""
    found = attributes(sys.modules.get("random")).get("_inst")
    numpys = attributes(sys.modules.get("numpy.random.mtrand")).get("_rand")
    return value is not None and (value is found or value is numpys)


def _rebound(code: CodeType) -> set[str]:
    """Variables around a function that it, or a function inside it, binds anew."""
    found = {item.argval for item in dis.get_instructions(code) if item.opname == "STORE_DEREF"}
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            found |= _rebound(inner)
    return found


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return NOTHING
