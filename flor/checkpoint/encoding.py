"""Values → nodes and leaves, while the training waits.

A node is JSON: a scalar as it is, anything else an object with its kind in `t`. The bytes of
tensors, arrays and pickles are leaves, copied into the staging. Libraries are used only as far as
the script has imported them. `flor.checkpoint.decoding` is the way back.

| t | fields |
|---|---|
| `map`, `dict` | `of`: {text: node}, or `items`: [[node, node]…]; `type`, if not dict |
| `list`, `tuple`, `set`, `frozenset`, `deque` | `items`; `maxlen` of a deque |
| `floats`, `ints`, `numbers` | a long list of numbers: `leaf`; `dtype` of NumPy's |
| `complex`, `int`, `range`, `slice`, `bytes` | |
| `tensor`, `array` | `leaf`, `dtype`, `shape`, `stride`? …; `gradient` of a leaf of a graph |
| `number` | one of NumPy's: `dtype`, `hex` |
| `state` | `of`: what `state_dict()` gave; `type`; more for modules and optimizers |
| `instance` | `of`: the attributes of an object of the user's own class, without code to run |
| `generator` | a random generator: `library`, `state`; `seeds`, which its children come from |
| `pickle` | `leaf`, `type`, `refs`: nodes it refers to; **runs code when it is read** |
| `declared` | `name`: it is that declared object |
| `ref` | `to`: the node with this `id`: the same object |
| `missing` | `why`: it could not be captured |
"""

from __future__ import annotations

import io
import pickle
from array import array
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from itertools import count
from typing import Any, Protocol

from flor.checkpoint import arrays, loaders, modules
from flor.checkpoint.capturable import (
    OPAQUE,
    UNFIT,
    Uncapturable,
    has_only_attributes,
    has_state,
    identity,
    is_library,
    type_name,
)
from flor.checkpoint.manifest import Missing, Node
from flor.checkpoint.staging import Staging
from flor.signals import is_from_handler

LONG = 64  # a longer list of numbers becomes one leaf
BIG_INT = 2**63
MAX_DEPTH = 60
LONGEST = 120  # characters of a path in a warning
MAX_PICKLE_BYTES = 1024**3

SCALARS = frozenset({type(None), bool, float, str})
FACTORIES: dict[Any, str] = {list: "list", dict: "dict", int: "int", float: "float", set: "set"}
OPEN = frozenset({dict, OrderedDict, Counter, defaultdict, list, deque})  # may contain themselves


class Devices(Protocol):
    """Copies tensors from accelerators without waiting for them."""

    def put(self, staging: Staging, tensor: Any) -> int:
        """The number of the tensor's leaf."""


class Encoder:
    """Encodes the values of one checkpoint; the same object twice is the same node."""

    def __init__(self, staging: Staging, declared: dict[int, str] | None = None) -> None:
        self.staging = staging
        self.missing: list[Missing] = []
        self.has_pickles = False
        self.with_gradients = False
        self.cleared: set[int] = set()  # ids of parameters whose gradients nobody needs
        self.covered: set[int] = set()  # ids of parameters and buffers of captured modules
        self.pure = False  # refuse what needs a pickle
        self.devices: Devices | None = None  # copies from accelerators; None: wait for each
        self._declared = declared or {}
        self._memo: dict[int, dict[str, Any]] = {}
        self._kept: list[Any] = []  # so that no id is used twice
        self._ids = count(1)
        self._depth = 0
        self._hashed = False  # what is encoded is a key, or in a set
        self._root: int | None = None  # the declared object that is encoded

    def root(self, name: str, value: Any) -> Node:
        """The node of a declared object: its own name stands for it everywhere else."""
        self._root = identity(value)
        self._declared.pop(self._root, None)
        try:
            return self.encode(value, name)
        finally:
            self._declared[identity(value)] = name
            self._root = None

    def encode(self, value: Any, name: str) -> Node:
        """The node of a value; what in it cannot be captured is a node `missing`, and listed."""
        kind = type(value)
        if kind in SCALARS:
            return value
        if kind is int:
            return value if -BIG_INT < value < BIG_INT else {"t": "int", "hex": hex(value)}
        declared = self._declared.get(identity(value))
        if declared is not None:
            return {"t": "declared", "name": declared}
        if kind in arrays.labels:
            return self._tensor(value, name)
        known = self._memo.get(identity(value))
        if known is not None and (known or kind in OPEN or plain_attributes(value) is not None):
            return {"t": "ref", "to": known.setdefault("id", next(self._ids))}
        if known is not None:
            return self._lost(name, f"is a {kind.__name__} that contains itself")
        node: dict[str, Any] = {}
        self._memo[identity(value)] = node
        self._kept.append(value)
        self._depth += 1
        kept, missing = len(self._kept), len(self.missing)
        try:
            if self._depth > MAX_DEPTH:
                raise Uncapturable(f"is nested more than {MAX_DEPTH} levels deep")
            node.update(self._encode(value, kind, name))
        except Exception as error:
            self._forget(kept, missing)
            if is_from_handler(error):
                raise
            node.update(self._lost(name, _reason(error)))
        finally:
            self._depth -= 1
        return node

    def _tensor(self, value: Any, name: str) -> Node:
        """As `encode`, for a plain tensor: most of a state is these."""
        known = self._memo.get(identity(value))
        if known is not None:
            return {"t": "ref", "to": known.setdefault("id", next(self._ids))}
        try:
            node = arrays.encode_tensor(self, value, name)
            if node.get("grad") == "leaf" and self.keeps_gradient(value):
                node["gradient"] = self.encode(value.grad, f"{name}.grad")
        except Exception as error:
            if is_from_handler(error):
                raise
            node = self._lost(name, _reason(error))
        self._memo[identity(value)] = node
        self._kept.append(value)
        return node

    def keeps_gradient(self, value: Any) -> bool:
        return self.with_gradients and identity(value) not in self.cleared

    def tentative(self, value: Any, name: str) -> Node:
        """The node of plain data; UNFIT, without a trace, if any of it needs more than that."""
        missing, kept, pure = len(self.missing), len(self._kept), self.pure
        self.pure = True
        try:
            node = self.encode(value, name)
        finally:
            self.pure = pure
        if len(self.missing) == missing:
            return node
        self._forget(kept, missing)
        return UNFIT

    def _forget(self, kept: int, missing: int) -> None:
        """Drop what was encoded since there were so many: where it is met again, it is anew."""
        del self.missing[missing:]
        for item in self._kept[kept:]:
            self._memo.pop(identity(item), None)
        del self._kept[kept:]

    def _lost(self, name: str, why: str) -> dict[str, Any]:
        why = why.partition("\n")[0][:300]
        self.missing.append(Missing(name if len(name) <= LONGEST else f"{name[:LONGEST]}…", why))
        return {"t": "missing", "why": why}

    def _encode(self, value: Any, kind: type, name: str) -> dict[str, Any]:
        encode = CONTAINERS.get(kind)
        if encode is not None:
            return encode(self, value, name)
        found = arrays.encode(self, value, name)
        if found is not None:
            if found.get("grad") == "leaf" and self.keeps_gradient(value):
                found["gradient"] = self.encode(value.grad, f"{name}.grad")
            return found
        if isinstance(value, OPAQUE):
            raise Uncapturable(f"is a {kind.__name__}, which is code rather than state")
        is_loader = loaders.is_loader(value)
        if is_loader or has_state(value) or self._hands_on(value):
            if self._hashed:
                raise Uncapturable("is found by its identity, which a checkpoint cannot keep")
            encode_it = loaders.encode_loader if is_loader else modules.encode_state
            return encode_it(self, value, name)
        attributes = plain_attributes(value)
        if attributes is not None:
            of = {key: self.encode(item, f"{name}.{key}") for key, item in attributes.items()}
            return {"t": "instance", "type": type_name(kind), "of": of}
        return self._pickle(value, name)

    def _hands_on(self, value: Any) -> bool:
        """Whether it is a declared object that gives its state though its type does not."""
        return identity(value) == self._root and modules.hands_on_state(value)

    # --- containers -----------------------------------------------------------------------------

    def _map(self, value: dict[Any, Any], name: str) -> dict[str, Any]:
        kind = type(value)
        node: dict[str, Any] = {"t": "map"}
        if kind is not dict:
            node["type"] = kind.__name__
        if kind is defaultdict:
            # Another factory is code: what it is restored into has its own, else a missing key is
            # an error.
            node["factory"] = FACTORIES.get(value.default_factory)  # type: ignore[attr-defined]
        items, encode = list(value.items()), self.encode
        if set(map(type, value)) <= {str}:
            node["of"] = {
                key: item if type(item) in SCALARS else encode(item, f"{name}.{key}")
                for key, item in items
            }
            return node
        node["t"] = "dict"
        node["items"] = [
            [self._hashable(key, name), encode(item, f"{name}[{key!r:.40}]")] for key, item in items
        ]
        return node

    def _hashable(self, value: Any, name: str) -> Node:
        """The node of a key or a member of a set: what is made of it has to be hashable too."""
        if type(value) is int:
            return self.encode(value, name)
        before, self._hashed = self._hashed, True
        try:
            return self.encode(value, name)
        finally:
            self._hashed = before

    def _list(self, value: Any, name: str) -> dict[str, Any]:
        kind = type(value).__name__
        if kind == "list" and len(value) > LONG:
            kinds = set(map(type, value))
            if kinds == {float}:
                return {"t": "floats", "leaf": self.staging.put_bytes(array("d", value).tobytes())}
            if kinds == {int} and max(value) < BIG_INT and min(value) >= -BIG_INT:
                return {"t": "ints", "leaf": self.staging.put_bytes(array("q", value).tobytes())}
            if len(kinds) == 1 and (numbers := self._numbers(value)) is not None:
                return numbers
        if len(value) > LONG and set(map(type, value)) <= SCALARS:  # no numbers to look at
            return {"t": kind, "items": list(value)}
        items = [self.encode(item, f"{name}[{index}]") for index, item in enumerate(value)]
        return {"t": kind, "items": items}

    def _numbers(self, value: list[Any]) -> dict[str, Any] | None:
        return arrays.encode_numbers(self, value)

    def _set(self, value: Any, name: str) -> dict[str, Any]:
        items = [self._hashable(item, f"{name}[{index}]") for index, item in enumerate(value)]
        return {"t": type(value).__name__, "items": items}

    def _deque(self, value: deque[Any], name: str) -> dict[str, Any]:
        return self._list(value, name) | {"maxlen": value.maxlen}

    def _bytes(self, value: Any, name: str) -> dict[str, Any]:
        kind = type(value).__name__
        return {"t": "bytes", "type": kind, "leaf": self.staging.put_bytes(bytes(value))}

    def _plain(self, value: Any, name: str) -> dict[str, Any]:
        if isinstance(value, complex):
            return {"t": "complex", "parts": [value.real, value.imag]}
        items = [value.start, value.stop, value.step]
        return {"t": type(value).__name__, "items": [self.encode(item, name) for item in items]}

    # --- pickles --------------------------------------------------------------------------------

    def _pickle(self, value: Any, name: str) -> dict[str, Any]:
        if self.pure:
            raise Uncapturable("needs a pickle")
        file = io.BytesIO()
        pickler = _Pickler(file, self, value, name)
        try:
            pickler.dump(value)
        except Exception as error:
            if is_from_handler(error):
                raise
            raise Uncapturable(f"cannot be pickled: {error}") from error
        if file.tell() > MAX_PICKLE_BYTES:
            raise Uncapturable(f"is too large to be pickled ({file.tell():,} bytes)")
        self.has_pickles = True
        leaf = self.staging.put_bytes(file.getvalue(), code=True)
        return {
            "t": "pickle",
            "type": type_name(type(value)),
            "leaf": leaf,
            "refs": pickler.refs,
        }


def _reason(error: Exception) -> str:
    """Why a value cannot be captured."""
    if isinstance(error, Uncapturable):
        return str(error)
    return f"cannot be read: {type(error).__name__}: {error}"


class _Pickler(pickle.Pickler):
    """Pickles an object; tensors, arrays and declared objects in it stay outside of the pickle."""

    def __init__(self, file: io.BytesIO, encoder: Encoder, root: Any, name: str) -> None:
        super().__init__(file, protocol=4)
        self._encoder = encoder
        self._root = identity(root)
        self._name = name
        self._numbers: dict[int, int] = {}
        self.refs: list[Node] = []

    def persistent_id(self, obj: Any) -> int | None:
        if type(obj) in SCALARS or type(obj) is int or identity(obj) == self._root:
            return None
        number = self._numbers.get(identity(obj))
        if number is None:
            node = self._outside(obj)
            if node is None:
                return None
            number = self._numbers[identity(obj)] = len(self.refs)
            self.refs.append(node)
        return number

    def _outside(self, obj: Any) -> Node | None:
        if identity(obj) in self._encoder._declared or arrays.is_block(obj):
            return self._encoder.encode(obj, self._name)
        return None


def plain_attributes(value: Any) -> dict[str, Any] | None:
    """The attributes of an object that is nothing but them: made by a class of the user's own."""
    if not is_plain(type(value)):
        return None
    found = getattr(value, "__dict__", None)
    return dict(found) if type(found) is dict else None


def is_plain(kind: type) -> bool:
    """Whether it is a class of the user's own whose objects are their attributes."""
    special = ("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__")
    if is_library(kind) or any(name in vars(b) for b in kind.__mro__[:-1] for name in special):
        return False
    return has_only_attributes(kind)


CONTAINERS: dict[type, Callable[[Encoder, Any, str], dict[str, Any]]] = {
    dict: Encoder._map,
    OrderedDict: Encoder._map,
    Counter: Encoder._map,
    defaultdict: Encoder._map,
    list: Encoder._list,
    tuple: Encoder._list,
    set: Encoder._set,
    frozenset: Encoder._set,
    deque: Encoder._deque,
    bytes: Encoder._bytes,
    bytearray: Encoder._bytes,
    complex: Encoder._plain,
    range: Encoder._plain,
    slice: Encoder._plain,
}
