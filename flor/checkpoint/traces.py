"""What objects remember that nobody declared: those that a DataLoader draws its items with, or that
a module holds.

Random generators, counters, orders of items: what may change while items are drawn and is small. It
is found by looking at attributes, none of the user's code runs. Paths name it: `sampler.rng`,
`dataset.transform.seen`, `transforms.0.rng`. Where an object is told in its constructor, such as a
folder or a size, it keeps that.
"""

from __future__ import annotations

import dis
import sys
from collections import deque
from collections.abc import Collection
from functools import lru_cache
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from flor.checkpoint import arrays
from flor.checkpoint.capturable import OPAQUE, UNFIT, has_state, identity, is_library
from flor.checkpoint.frames import attributes
from flor.checkpoint.manifest import Node

if TYPE_CHECKING:
    from flor.checkpoint.encoding import Encoder

DEPTH = 6
MOST_OBJECTS = 1000
MOST_MEMBERS = 100  # of a list that is looked through
MOST_NUMBERS = 2**20  # of an order of items
SHORT = 1000  # items of other containers
ROOM_BYTES = 32 * 2**20  # for all arrays
PARTS = frozenset(  # where objects of libraries hold those of users
    {"sampler", "batch_sampler", "dataset", "datasets", "collate_fn"}
    | {"transform", "transforms", "target_transform"}
)
SCALARS = (bool, int, float, complex, str, bytes, type(None))
NUMBERS = frozenset({bool, int, float, complex, type(None)})
BEFORE_USE = ("__init__", "__new__", "__post_init__", "__setstate__")


class Traces:
    """Looks through objects; `found` has the nodes by path."""

    def __init__(self, encoder: Encoder, name: str) -> None:
        self.found: dict[str, Node] = {}
        self._encoder = encoder
        self._name = name
        self._seen: set[int] = set()
        self._room = ROOM_BYTES

    def look(self, value: Any, path: str = "", depth: int = 0, but: Collection[str] = ()) -> None:
        """Note what an object remembers, and what others in it do, without its attributes `but`."""
        if depth > DEPTH or identity(value) in self._seen or len(self._seen) >= MOST_OBJECTS:
            return
        self._seen.add(identity(value))
        kind = type(value)
        own = not is_library(kind) and depth > 0
        for key, item in list(attributes(value).items()):
            where = f"{path}.{key}" if path else key
            if key in but:
                continue
            if self._is_kept(kind, key, item) if own else _is_of_library(key, item):
                self._keep(where, item)
            elif own or key in PARTS:
                self.into(item, where, depth + 1)

    def into(self, value: Any, path: str, depth: int = 1) -> None:
        """As `look`, for what an attribute holds."""
        if depth > DEPTH or issubclass(type(value), (*SCALARS, *OPAQUE)) or is_module(value):
            return
        if type(value) in (list, tuple):
            if len(value) <= MOST_MEMBERS:
                for index, item in enumerate(value):
                    self.into(item, f"{path}.{index}", depth + 1)
        elif identity(value) in self._encoder._declared:
            return
        elif (has_state(value) and not arrays.is_block(value)) or arrays.is_generator(value):
            self._keep(path, value)
        else:
            self.look(value, path, depth)

    def _is_kept(self, kind: type, key: str, item: Any) -> bool:
        """Whether it may change while items are drawn, in an object of the user's own."""
        if type(item) in SCALARS:
            return key in _rebound(kind)
        if arrays.is_block(item):
            size_bytes = arrays.size_of(item)
            if size_bytes > min(self._room, 8 * MOST_NUMBERS) or getattr(item, "is_cuda", False):
                return False
            self._room -= size_bytes
            return True
        return arrays.is_generator(item) or _is_numbers(item)

    def _keep(self, path: str, value: Any) -> None:
        name = f"{self._name}.{path}"
        if has_state(value):
            self.found[path] = self._encoder.encode(value, name)
            return
        node = self._encoder.tentative(value, name)
        if node is not UNFIT:
            self.found[path] = node


def _is_of_library(key: str, item: Any) -> bool:
    """Whether an object of a library remembers it, in a loader or a dataset."""
    return arrays.is_generator(item) or (key == "epoch" and type(item) is int)


def is_module(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def is_trace(value: Any) -> bool:
    """Whether it is of a kind that is noted."""
    plain = type(value) in SCALARS or arrays.is_block(value) or arrays.is_generator(value)
    return plain or _is_numbers(value)


def _is_numbers(value: Any) -> bool:
    """Whether it is a container of numbers, or of containers of them."""
    kind = type(value)
    if kind is dict:
        value = list(value.values())
    elif kind not in (list, tuple, set, frozenset, deque):
        return False
    if set(map(type, value)) <= NUMBERS:
        return len(value) <= (MOST_NUMBERS if kind is list else SHORT)
    inner = (list, tuple, dict, set, deque)
    return len(value) <= SHORT and all(
        type(item) in NUMBERS or (type(item) in inner and _is_numbers(item)) for item in value
    )


@lru_cache(maxsize=256)
def _rebound(kind: type) -> frozenset[str]:
    """The attributes that methods of a class bind, other than those that make an object."""
    found: set[str] = set()
    for base in kind.__mro__:
        if is_library(base):
            continue
        for name, item in vars(base).items():
            for code in _codes(item) if name not in BEFORE_USE else ():
                steps = dis.get_instructions(code)
                found.update(step.argval for step in steps if step.opname == "STORE_ATTR")
    return frozenset(found)


def _codes(item: Any) -> list[CodeType]:
    """The code of a method, and of functions in it."""
    function = getattr(item, "__func__", None) or getattr(item, "fget", None) or item
    waiting = [function.__code__] if isinstance(function, FunctionType) else []
    for code in waiting:
        waiting += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
    return waiting
