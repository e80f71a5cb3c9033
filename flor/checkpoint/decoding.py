"""Nodes and leaves → values. The way back from `flor.checkpoint.encoding`.

Nothing runs code but a `pickle` node, and that only if the caller vouches for its source.
"""

from __future__ import annotations

import io
import pickle
from array import array
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from flor.checkpoint.arrays import BIT_GENERATORS
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


TENSOR_ALIGNMENT = 64  # as torch has it: elsewhere, vector instructions round the ends differently


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
        self._made: dict[int, Any] = {}  # by the id of their nodes
        self._by_id: dict[int, dict[str, Any]] | None = None

    def decode(self, node: Node) -> Any:
        """The value of a node. Raises DamagedCheckpoint, UntrustedPickle."""
        if not isinstance(node, dict):
            return node
        try:
            number = node.get("id")
            if number is None:
                return self._make(node)
            if number not in self._made:
                value = self._make(node)
                self._made[number] = value
            return self._made[number]
        except (FlorError, MemoryError):
            raise
        except Exception as error:  # what a manifest may hold is anybody's choice
            raise DamagedCheckpoint(
                f"a {node.get('t')} in it that cannot be read: {error!r:.200}"
            ) from error

    def resolve(self, node: Node) -> Node:
        """The node itself, or what it refers to."""
        if not isinstance(node, dict) or node.get("t") != "ref":
            return node
        if self._by_id is None:
            self._by_id = {found["id"]: found for found in nodes(self._manifest) if "id" in found}
        found = self._by_id.get(node["to"])
        if found is None or found["t"] == "ref":
            raise DamagedCheckpoint(f"a reference to nothing: {node['to']!r}")
        return found

    def _make(self, node: dict[str, Any]) -> Any:
        name = MAKERS.get(node["t"])
        if name is None:
            raise DamagedCheckpoint(f"no such kind of value: {node['t']!r}")
        return getattr(self, name)(node)

    def _done(self, node: dict[str, Any], value: Any) -> Any:
        if "id" in node:
            self._made[node["id"]] = value
        return value

    def _ref(self, node: dict[str, Any]) -> Any:
        return self.decode(self.resolve(node))

    def _as_declared(self, node: dict[str, Any]) -> Any:
        name = node["name"]
        return self._declared.get(name, Lost(f"is {name!r}, which was not asked for"))

    def _missing(self, node: dict[str, Any]) -> Any:
        return Lost(node["why"])

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
        value: Instance = self._done(node, Instance(node["type"]))
        for key, item in node["of"].items():
            value[key] = self.decode(item)
        return value

    def _state(self, node: dict[str, Any]) -> Any:
        """What `state_dict()` gave; the rest of it is for objects that it is restored into."""
        return self.decode(node["of"])

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
        refs = [self.decode(ref) for ref in node["refs"]]
        try:
            return _Unpickler(io.BytesIO(content), refs).load()
        except Exception as error:
            raise DamagedCheckpoint(
                f"the pickle of a {node['type']} cannot be read here: {error!r}; import what "
                "defines it first, in the version that wrote it"
            ) from error

    # --- arrays ---------------------------------------------------------------------------------

    def _array(self, node: dict[str, Any]) -> Any:
        import numpy as np

        found = np.frombuffer(self._leaves.take(node["leaf"]), dtype=np.dtype(node["dtype"]))
        return found.reshape(node["shape"], order=node["order"])

    def _number(self, node: dict[str, Any]) -> Any:
        import numpy as np

        return np.frombuffer(bytes.fromhex(node["hex"]), dtype=np.dtype(node["dtype"]))[0]

    def _numpy_list(self, node: dict[str, Any]) -> list[Any]:
        import numpy as np

        return list(np.frombuffer(self._leaves[node["leaf"]], dtype=np.dtype(node["dtype"])))

    def _dtype(self, node: dict[str, Any]) -> Any:
        import numpy as np

        return np.dtype(node["text"])

    def _tensor(self, node: dict[str, Any]) -> Any:
        import torch

        dtype = _torch_constant(node["dtype"], torch.dtype)
        content = self._leaves.take(node["leaf"])
        if len(content):
            flat = torch.frombuffer(content, dtype=dtype)
            if flat.data_ptr() % TENSOR_ALIGNMENT:
                flat = flat.clone()
        else:
            flat = torch.empty(0, dtype=dtype)
        if "stride" in node:
            found = flat.as_strided(node["shape"], node["stride"])
        else:
            found = flat.reshape(node["shape"])
        return self._dressed(node, found)

    def _sparse(self, node: dict[str, Any]) -> Any:
        import torch

        indices, values = (self.decode(part) for part in node["of"])
        found = torch.sparse_coo_tensor(
            indices, values, node["shape"], is_coalesced=True, check_invariants=True
        )
        return self._dressed(node, found)

    def _meta(self, node: dict[str, Any]) -> Any:
        import torch

        dtype = _torch_constant(node["dtype"], torch.dtype)
        return self._dressed(node, torch.empty(node["shape"], dtype=dtype, device="meta"))

    def _dressed(self, node: dict[str, Any], found: Any) -> Any:
        import torch

        if node.get("type") == "Parameter":
            return torch.nn.Parameter(found, requires_grad=node.get("grad") is not None)
        return found.requires_grad_() if node.get("grad") == "leaf" else found

    def _torch(self, node: dict[str, Any]) -> Any:
        import torch

        if node["type"] == "Size":
            return torch.Size(node["items"])
        if node["type"] == "device":
            return torch.device(node["text"])
        return _torch_constant(node["text"].removeprefix("torch."), torch.dtype)

    def _generator(self, node: dict[str, Any]) -> Any:
        state, library = self.decode(node["state"]), node["library"]
        if library == "random":
            import random

            return _set_random(random.Random(), state)  # noqa: S311
        if library == "torch":
            import torch

            if torch.device(node["device"]).type == "cuda" and not torch.cuda.is_available():
                return Lost(f"is a random generator of {node['device']}, which is not here")
            generator = torch.Generator(node["device"])
            generator.set_state(state)
            return generator
        import numpy as np

        if state["bit_generator"] not in BIT_GENERATORS:
            raise DamagedCheckpoint(f"an unknown random generator: {state['bit_generator']!r}")
        bits = getattr(np.random, state["bit_generator"])()
        if library == "numpy.RandomState":
            made = np.random.RandomState(bits)
            made.set_state(state)
            return made
        bits.state = state
        return np.random.Generator(bits)


def empty_map(node: dict[str, Any]) -> Any:
    """What a `map` or `dict` node is made into, before its items."""
    kind = node.get("type")
    if kind == "defaultdict":
        factory = node["factory"]
        return defaultdict(None if factory is None else FACTORIES[factory])
    return MAPS[kind]() if kind else {}


def _torch_constant(name: str, kind: type) -> Any:
    import torch

    found = vars(torch)[name]
    if not isinstance(found, kind):
        raise TypeError(f"torch.{name} is no {kind.__name__}")
    return found


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


NAMED = ("grads", "buffers")  # of a module: nodes by name


def _inside(node: dict[str, Any]) -> Iterator[Node]:
    """The nodes in a node. Names and texts of the user's are never taken for nodes."""
    of = node.get("of")
    if node["t"] in ("map", "instance"):
        yield from (of or {}).values()
    elif of is not None:
        yield of
    for part in ("items", "refs", "params", "optimizer", "state", "sampler"):
        if part in node:
            yield node[part]
    for part in NAMED:
        yield from node.get(part, {}).values()
    for attributes in node.get("attributes", {}).values():
        yield from attributes.values()


def _set_random(generator: Any, state: Any) -> Any:
    version, internal, gauss = state
    generator.setstate((version, tuple(internal), gauss))
    return generator


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, refs: list[Any]) -> None:
        super().__init__(file)
        self._refs = refs

    def persistent_load(self, pid: Any) -> Any:
        return self._refs[pid]


MAKERS = {
    "ref": "_ref",
    "declared": "_as_declared",
    "missing": "_missing",
    "map": "_map",
    "dict": "_map",
    "list": "_list",
    "tuple": "_frozen",
    "set": "_frozen",
    "frozenset": "_frozen",
    "deque": "_deque",
    "floats": "_numbers",
    "ints": "_numbers",
    "bytes": "_bytes",
    "int": "_integer",
    "complex": "_complex",
    "range": "_slice",
    "slice": "_slice",
    "instance": "_instance",
    "state": "_state",
    "loader": "_loader",
    "pickle": "_pickle",
    "array": "_array",
    "number": "_number",
    "numbers": "_numpy_list",
    "dtype": "_dtype",
    "tensor": "_tensor",
    "sparse": "_sparse",
    "meta": "_meta",
    "torch": "_torch",
    "generator": "_generator",
}
