"""The declared objects of a `flor.checkpointing` block, and what they are by now.

`params = params - lr * grads` makes another object: what counts is then what the script calls
`params`. So the names that an object has where the main loop runs, and where a loop in it does, are
noted when these begin, and looked up again for a checkpoint.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from operator import attrgetter, is_not
from types import FrameType
from typing import Any, NamedTuple

from flor.checkpoint import arrays, modules
from flor.checkpoint.capturable import has_state, identity
from flor.checkpoint.frames import NOTHING, attributes, look_up, names_of

# Many names mean the same one of these: only the declared name itself is followed.
PLAIN = (bool, int, float, complex, str, bytes, tuple, frozenset, type(None))

_version = attrgetter("_version")


class _Named(NamedTuple):
    """What an object is called in a frame: `net`, `self.net`, or a name of its module."""

    path: str
    is_global: bool


class Declared:
    """The objects by the name that each was declared with."""

    def __init__(self, objects: Mapping[str, Any]) -> None:
        self.objects = dict(objects)
        self.replaced: dict[str, str] = {}  # whose names mean something else now: why they are gone
        self.all_seen = False  # torch tells of all that may change in them
        self._outer: dict[str, _Named] = {}  # in the main loop's frame
        self._inner: dict[str, _Named] = {}  # in the nested loop's, if that is another
        self._parameters: list[Any] = []
        self._is_lazy = False  # some have no numbers yet

    # --- what they are called -----------------------------------------------------------------

    def begin(self, outer: FrameType | None) -> None:
        """The main loop begins."""
        self._outer = self._names_in(outer) if outer is not None else {}
        self._inner = {}
        self._watch()

    def enter(self, outer: FrameType | None, inner: FrameType) -> None:
        """A loop in it begins."""
        self.follow(outer)
        self._inner = self._names_in(inner) if inner is not outer else {}

    def follow(self, outer: FrameType | None, inner: FrameType | None = None) -> None:
        """Look them up; what a nested loop calls them is newer than what is outside of it."""
        before = list(self.objects.values())
        inside = self._inner if inner is not outer else {}
        for frame, known in ((outer, self._outer), (inner, inside)):
            if frame is not None and known:
                with names_of(frame) as (local, module):
                    for name, (path, is_global) in known.items():
                        self._bind(name, look_up(path, module if is_global else local))
        if self._is_lazy or any(map(is_not, before, self.objects.values())):
            self._watch()

    def followed(self) -> frozenset[str]:
        """The paths in the main loop's frame that stand for declared objects."""
        return frozenset(named.path for named in self._outer.values())

    def held(self) -> dict[str, Any]:
        """Those that a checkpoint can hold."""
        return {name: item for name, item in self.objects.items() if name not in self.replaced}

    def _bind(self, name: str, value: Any) -> None:
        old = self.objects[name]
        if value is old:
            self.replaced.pop(name, None)
        if value is old or value is NOTHING:
            return
        if _is_alike(old, value):
            self.objects[name] = value
            self.replaced.pop(name, None)
        else:
            here, there = type(value).__name__, type(old).__name__
            self.replaced[name] = f"means a {here} now, and a {there} was given to checkpointing"

    def _names_in(self, frame: FrameType) -> dict[str, _Named]:
        """Under which name each object is found there; under its own, if that is one of them."""
        wanted: defaultdict[int, list[str]] = defaultdict(list)
        for name, value in self.objects.items():
            wanted[identity(value)].append(name)
        found: dict[str, _Named] = {}
        with names_of(frame) as (local, module):
            code = frame.f_code
            receiver = code.co_varnames[0] if code.co_argcount else ""
            own = attributes(local.get(receiver))
            here = [(name, item, f"{receiver}.{name}") for name, item in list(own.items())]
            here += [(name, item, name) for name, item in list(local.items())]
            around = [(name, item, name) for name, item in list(module.items())]
        for is_global, items in ((True, around), (False, here)):
            fitting: dict[str, _Named] = {}
            for name, value, path in items:
                for declared in wanted.get(identity(value), ()):
                    other = declared not in fitting and not issubclass(type(value), PLAIN)
                    if name == declared or other:
                        fitting[declared] = _Named(path, is_global)
            found |= fitting
        return found

    # --- whether they have changed ------------------------------------------------------------

    def changes(self) -> int | None:
        """Another number when torch has seen the objects change. Proves nothing, but is quick."""
        return sum(map(_version, self._parameters)) if self._parameters else None

    def _watch(self) -> None:
        found = {
            identity(item): item for value in self.objects.values() for item in _tensors(value)
        }
        self._is_lazy = any(map(_is_lazy, found.values()))
        self._parameters = [item for item in found.values() if _is_watched(item)]
        self.all_seen = bool(self._parameters) and all(map(_is_seen, self.objects.values()))


def _tensors(value: Any) -> Iterator[Any]:
    """What a training changes in a module or an optimizer."""
    torch = sys.modules.get("torch")
    if torch is None:
        return
    if isinstance(value, torch.nn.Module):
        yield from value.parameters()
    elif isinstance(value, torch.optim.Optimizer):
        for group in value.param_groups:
            yield from group["params"]


def _is_lazy(parameter: Any) -> bool:
    return "Uninitialized" in type(parameter).__name__


def _is_watched(parameter: Any) -> bool:
    return not _is_lazy(parameter) and not parameter.is_inference()


def _is_seen(value: Any) -> bool:
    """Whether all that changes in it changes with the parameters that are watched."""
    own = type(value).__module__.startswith("torch.") and not arrays.is_block(value)
    return own or any(True for _ in _tensors(value))


def _is_alike(old: Any, new: Any) -> bool:
    """Whether an object may have taken the place of another: an optimizer that of another kind."""
    if has_state(old) and has_state(new):
        return modules.rank(old) == modules.rank(new)
    one, other = type(old), type(new)
    return issubclass(one, PLAIN) or issubclass(one, other) or issubclass(other, one)
