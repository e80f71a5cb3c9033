"""Nodes and leaves → values. The way back from `flor.checkpoint.encoding`.

Nothing runs code but a `pickle` node, and that only if the caller vouches for its source.
"""

from __future__ import annotations

import io
import pickle
from array import array
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from flor.checkpoint import blocks, generators
from flor.checkpoint.leaves import Leaves
from flor.checkpoint.manifest import Manifest, Node
from flor.errors import DamagedCheckpoint, FlorError, UntrustedPickle

FACTORIES: dict[str, Callable[[], Any]] = {
    "list": list,
    "dict": dict,
    "int": int,
    "float": float,
    "set": set,
}
MAPS: dict[str, Callable[[], Any]] = {"OrderedDict": OrderedDict, "Counter": Counter}


class Lost:
    """Stands for what a checkpoint does not hold."""

    def __init__(self, why: str) -> None:
        self.why = why

    def __repr__(self) -> str:
        return f"<not in the checkpoint: it {self.why}>"


class Instance(dict[str, Any]):
    """The attributes of an object of the user's own class; a key or a member, as that was."""

    def __init__(self, type_name: str) -> None:
        super().__init__()
        self.type_name = type_name

    __hash__ = object.__hash__  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<attributes of a {self.type_name}: {super().__repr__()}>"


class Given(NamedTuple):
    """In place of a node: a value that is there already."""

    value: Any


class Decoder:
    """Makes values of one manifest. Nodes that refer to one object give one object.

    `trusts` tells whether the content of a leaf may be unpickled; `declared` are the objects that
    stand for themselves.
    """

    def __init__(
        self,
        manifest: Manifest,
        leaves: Leaves,
        trusts: Callable[[int, bytes], bool],
        declared: Mapping[str, Any],
    ) -> None:
        self._manifest = manifest
        self._leaves = leaves
        self._trusts = trusts
        self._declared = declared
        self._made: dict[Any, Any] = {}  # by the id of their nodes; of declared ones by name
        self._making: set[Any] = set()  # the same, but without a value yet
        self._by_id: dict[int, dict[str, Any]] | None = None

    def decode(self, node: Node) -> Any:
        """The value of a node. Raises DamagedCheckpoint, UntrustedPickle."""
        if not isinstance(node, dict):
            return node.value if isinstance(node, Given) else node
        try:
            number = node.get("id")
            return self._make(node) if number is None else self._once(number, node)
        except (FlorError, MemoryError):
            raise
        except Exception as error:  # what a manifest may hold is anybody's choice
            raise DamagedCheckpoint(
                f"a {node.get('t')} in it that cannot be read: {error!r:.200}"
            ) from error

    def content(self, leaf: int) -> memoryview:
        """The bytes of a leaf, to be read only. Raises DamagedCheckpoint, IndexError."""
        return self._leaves[leaf]

    def take(self, leaf: int) -> memoryview:
        """Its bytes in memory of their own. Raises DamagedCheckpoint, IndexError."""
        return self._leaves.take(leaf)

    def declared_node(self, name: str) -> Node:
        """The node of a declared object. Raises DamagedCheckpoint."""
        if name not in self._manifest.objects:
            raise DamagedCheckpoint(f"no such declared object: {name!r:.80}")
        return self._manifest.objects[name]

    def resolve(self, node: Node) -> Node:
        """The node itself, or what it refers to."""
        if not isinstance(node, dict) or node.get("t") != "ref":
            return node
        try:
            if self._by_id is None:
                found = nodes(self._manifest)
                self._by_id = {node["id"]: node for node in found if "id" in node}
            referred = self._by_id.get(node["to"])
        except Exception as error:  # what a manifest may hold is anybody's choice
            raise DamagedCheckpoint(f"a reference that cannot be read: {error!r:.200}") from error
        if referred is None or referred.get("t") == "ref":
            raise DamagedCheckpoint(f"a reference to nothing: {node['to']!r:.80}")
        return referred

    def _once(self, key: Any, node: dict[str, Any]) -> Any:
        """The value of a node that is met more than once."""
        if key in self._made:
            return self._made[key]
        if key in self._making:
            if node["t"] != "state" and not isinstance(key, tuple):
                raise DamagedCheckpoint(f"a {node['t']} that contains itself")
            return self.lost("contains itself")
        before = len(self._made)
        self._making.add(key)
        try:
            self._made[key] = self._make(node)
        except BaseException:
            while len(self._made) > before:  # what was made since may hold what is half made
                self._made.popitem()
            raise
        finally:
            self._making.discard(key)
        return self._made[key]

    def _make(self, node: dict[str, Any]) -> Any:
        make = MAKERS.get(node["t"])
        if make is None:
            raise DamagedCheckpoint(f"no such kind of value: {node['t']!r:.80}")
        return make(self, node)

    def _done(self, node: dict[str, Any], value: Any) -> Any:
        if "id" in node:
            self._made[node["id"]] = value
        return value

    def _ref(self, node: dict[str, Any]) -> Any:
        return self.decode(self.resolve(node))

    def _as_declared(self, node: dict[str, Any]) -> Any:
        name = node["name"]
        if name in self._declared:
            return self._declared[name]
        found = self.declared_node(name)
        if not isinstance(found, dict):
            return found
        return self._once(found.get("id", (name,)), found)  # JSON has no tuples: no id is one

    def _missing(self, node: dict[str, Any]) -> Any:
        return self.lost(node["why"])

    def lost(self, why: str) -> Any:
        """What stands for a value that the checkpoint does not hold."""
        return Lost(why)

    def empty(self, type_name: str) -> Any:
        """What stands for an object of the user's own class, still without attributes."""
        return Instance(type_name)

    def _map(self, node: dict[str, Any]) -> Any:
        value = self._done(node, empty_map(node))
        if "of" in node:
            for key, item in node["of"].items():
                value[key] = self.decode(item)
        else:
            for key, item in node["items"]:
                value[self.decode(key)] = self.decode(item)
        return value

    def _list(self, node: dict[str, Any]) -> list[Any]:
        value: list[Any] = self._done(node, [])
        value.extend(self.decode(item) for item in node["items"])
        return value

    def _frozen(self, node: dict[str, Any]) -> Any:
        kind = {"tuple": tuple, "set": set, "frozenset": frozenset}[node["t"]]
        return kind(self.decode(item) for item in node["items"])

    def _deque(self, node: dict[str, Any]) -> Any:
        value: deque[Any] = self._done(node, deque(maxlen=node["maxlen"]))
        value.extend(self.decode(item) for item in node["items"])
        return value

    def _numbers(self, node: dict[str, Any]) -> Any:
        code = {"floats": "d", "ints": "q"}[node["t"]]
        return array(code, self._leaves[node["leaf"]].tobytes()).tolist()

    def _bytes(self, node: dict[str, Any]) -> Any:
        content = self._leaves[node["leaf"]]
        return bytearray(content) if node["type"] == "bytearray" else bytes(content)

    def _integer(self, node: dict[str, Any]) -> int:
        return int(node["hex"], 16)

    def _complex(self, node: dict[str, Any]) -> complex:
        return complex(*node["parts"])

    def _slice(self, node: dict[str, Any]) -> Any:
        return {"range": range, "slice": slice}[node["t"]](*map(self.decode, node["items"]))

    def _instance(self, node: dict[str, Any]) -> Any:
        value = self._done(node, self.empty(node["type"]))
        attributes = value if isinstance(value, Instance) else vars(value)
        for key, item in node["of"].items():
            attributes[key] = self.decode(item)
        return value

    def _state(self, node: dict[str, Any]) -> Any:
        """What `state_dict()` gave; the rest of it is for objects that it is restored into."""
        return self.versioned(node, self.decode(node["of"]))

    def versioned(self, node: dict[str, Any], state: Any) -> Any:
        """A module's state with the versions of its parts, as `load_state_dict` looks at them."""
        if "metadata" in node:
            found = {key: self.decode(item) for key, item in node["metadata"].items()}
            state._metadata = OrderedDict(
                (key, item if isinstance(item, dict) else {"version": item})
                for key, item in found.items()
            )
        return state

    def _loader(self, node: dict[str, Any]) -> Any:
        return self.decode(node["state"])

    def _pickle(self, node: dict[str, Any]) -> Any:
        content = bytes(self._leaves[node["leaf"]])
        if not self._trusts(node["leaf"], content):
            raise UntrustedPickle(
                f"a {node['type']} in this checkpoint is a pickle that this user did not write on "
                "this machine: reading it can run any code. If you know who wrote it, pass "
                "trust=True (--trust)"
            )
        refs = [self._referred(ref) for ref in node["refs"]]
        try:
            return _Unpickler(io.BytesIO(content), refs).load()
        except Exception as error:
            raise DamagedCheckpoint(
                f"the pickle of a {node['type']} cannot be read here: {error!r}; import what "
                "defines it first, in the version that wrote it"
            ) from error

    def _referred(self, node: Node) -> Any:
        """What a pickle refers to; the state of an object is not that object."""
        if isinstance(node, dict) and node.get("t") == "declared":
            name = node["name"]
            found = self.declared_node(name)
            plain = isinstance(found, dict) and found.get("t") not in OBJECTS
            if name not in self._declared and not plain:
                return Lost(f"is {name!r}, which was not asked for")
        return self.decode(node)

    def _generator(self, node: dict[str, Any]) -> Any:
        device = node.get("device")
        if device is not None:
            import torch

            if torch.device(device).type == "cuda" and not torch.cuda.is_available():
                return Lost(f"is a random generator of {device}, which is not here")
        state, seeds = self.decode(node["state"]), self.decode(node.get("seeds"))
        return generators.make(node["library"], state, seeds, device)


def empty_map(node: dict[str, Any]) -> Any:
    """What a `map` or `dict` node is made into, before its items."""
    kind = node.get("type")
    if kind == "defaultdict":
        factory = node["factory"]
        return defaultdict(None if factory is None else FACTORIES[factory])
    return MAPS[kind]() if kind else {}


def nodes(manifest: Manifest) -> Iterator[dict[str, Any]]:
    """All nodes of a manifest that are more than scalars."""
    waiting: list[Node] = [*manifest.objects.values(), *manifest.rng.values()]
    waiting += manifest.entry_rng.values()
    for frame in manifest.frames:
        waiting += frame.values.values()
    while waiting:
        item = waiting.pop()
        if isinstance(item, list):
            waiting += item
        elif isinstance(item, dict):
            yield item
            waiting += _inside(item)


NAMED = ("grads", "buffers", "metadata")  # of a module: nodes by name
OBJECTS = ("state", "loader", "instance")  # what a value alone is not


def _inside(node: dict[str, Any]) -> Iterator[Node]:
    """The nodes in a node. Names and texts of the user's are never taken for nodes."""
    of = node.get("of")
    if node["t"] in ("map", "instance"):
        yield from (of or {}).values()
    elif of is not None:
        yield of
    for part in ("items", "refs", "params", "optimizer", "state", "seeds", "gradient"):
        if part in node:
            yield node[part]
    for part in NAMED:
        yield from node.get(part, {}).values()
    for attributes in node.get("attributes", {}).values():
        yield from attributes.values()


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, refs: list[Any]) -> None:
        super().__init__(file)
        self._refs = refs

    def persistent_load(self, pid: Any) -> Any:
        return self._refs[pid]


MAKERS: dict[str, Callable[[Decoder, dict[str, Any]], Any]] = {
    "ref": Decoder._ref,
    "declared": Decoder._as_declared,
    "missing": Decoder._missing,
    "map": Decoder._map,
    "dict": Decoder._map,
    "list": Decoder._list,
    "tuple": Decoder._frozen,
    "set": Decoder._frozen,
    "frozenset": Decoder._frozen,
    "deque": Decoder._deque,
    "floats": Decoder._numbers,
    "ints": Decoder._numbers,
    "bytes": Decoder._bytes,
    "int": Decoder._integer,
    "complex": Decoder._complex,
    "range": Decoder._slice,
    "slice": Decoder._slice,
    "instance": Decoder._instance,
    "state": Decoder._state,
    "loader": Decoder._loader,
    "pickle": Decoder._pickle,
    "array": blocks.array,
    "number": blocks.number,
    "numbers": blocks.numbers,
    "dtype": blocks.numpy_type,
    "tensor": blocks.tensor,
    "sparse": blocks.sparse,
    "meta": blocks.meta,
    "torch": blocks.torch_value,
    "generator": Decoder._generator,
}
