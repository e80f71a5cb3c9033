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

from flor.checkpoint.leaves import Leaves
from flor.checkpoint.manifest import Manifest, Node
from flor.errors import DamagedCheckpoint, UntrustedPickle

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
        return f"<not in the checkpoint: {self.why}>"


class Instance(dict[str, Any]):
    """The attributes of an object of the user's own class."""

    def __init__(self, type_name: str) -> None:
        super().__init__()
        self.type_name = type_name

    def __repr__(self) -> str:
        return f"<attributes of a {self.type_name}: {super().__repr__()}>"


class Decoder:
    """Makes values of one manifest. The same node twice is the same object."""

    def __init__(
        self,
        manifest: Manifest,
        leaves: Leaves,
        *,
        trusted: bool,
        declared: Mapping[str, Any] | None = None,
    ) -> None:
        self._manifest = manifest
        self._leaves = leaves
        self._trusted = trusted
        self._declared = declared or {}  # the objects that `declared` nodes stand for
        self._made: dict[int, Any] = {}  # by the id of their nodes
        self._given: set[int] = set()  # addresses of leaves that belong to a value

    def declare(self, objects: Mapping[str, Any]) -> None:
        """The objects that are restored into; others in the checkpoint refer to them."""
        self._declared = {**self._declared, **objects}

    def decode(self, node: Node) -> Any:
        """The value of a node. Raises DamagedCheckpoint, UntrustedPickle."""
        if not isinstance(node, dict):
            return node
        try:
            make = MAKERS[node["t"]]
        except KeyError:
            raise DamagedCheckpoint(f"no such kind of value: {node.get('t')!r}") from None
        try:
            return make(self, node)
        except (KeyError, TypeError, ValueError, IndexError, StopIteration) as error:
            raise DamagedCheckpoint(f"a {node['t']} that cannot be read: {error!r}") from error

    def _done(self, node: dict[str, Any], value: Any) -> Any:
        if "id" in node:
            self._made[node["id"]] = value
        return value

    def _ref(self, node: dict[str, Any]) -> Any:
        number = node["to"]
        if number not in self._made:  # it stands in a part that was not asked for
            self.decode(next(n for n in nodes(self._manifest) if n.get("id") == number))
        return self._made[number]

    def _as_declared(self, node: dict[str, Any]) -> Any:
        name = node["name"]
        return self._declared.get(name, Lost(f"it is {name!r}, which was not asked for"))

    def _missing(self, node: dict[str, Any]) -> Any:
        return Lost(node["why"])

    def _map(self, node: dict[str, Any]) -> Any:
        kind = node.get("type")
        if kind == "defaultdict":
            factory = node["factory"]
            value: Any = defaultdict(None if factory is None else FACTORIES[factory])
        else:
            value = MAPS[kind]() if kind else {}
        self._done(node, value)
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
        return self._done(node, kind(self.decode(item) for item in node["items"]))

    def _deque(self, node: dict[str, Any]) -> Any:
        value: deque[Any] = self._done(node, deque(maxlen=node["maxlen"]))
        value.extend(self.decode(item) for item in node["items"])
        return value

    def _numbers(self, node: dict[str, Any]) -> Any:
        code = {"floats": "d", "ints": "q"}[node["t"]]
        return self._done(node, array(code, self._leaves[node["leaf"]].tobytes()).tolist())

    def _bytes(self, node: dict[str, Any]) -> Any:
        content = self._leaves[node["leaf"]]
        return self._done(
            node, bytearray(content) if node["type"] == "bytearray" else bytes(content)
        )

    def _integer(self, node: dict[str, Any]) -> int:
        return int(node["hex"], 16)

    def _complex(self, node: dict[str, Any]) -> complex:
        return complex(*node["parts"])

    def _slice(self, node: dict[str, Any]) -> Any:
        return {"range": range, "slice": slice}[node["t"]](*node["items"])

    def _instance(self, node: dict[str, Any]) -> Instance:
        value: Instance = self._done(node, Instance(node["type"]))
        for key, item in node["of"].items():
            value[key] = self.decode(item)
        return value

    def _state(self, node: dict[str, Any]) -> Any:
        """What `state_dict()` gave; the rest of it is for objects that it is restored into."""
        return self._done(node, self.decode(node["of"]))

    def _loader(self, node: dict[str, Any]) -> Any:
        return self._done(node, self.decode(node["state"]))

    def _pickle(self, node: dict[str, Any]) -> Any:
        if not self._trusted:
            raise UntrustedPickle(
                f"a {node['type']} in this checkpoint is a pickle that this user did not write on "
                "this machine: reading it can run any code. If you know who wrote it, pass "
                "trust=True (--trust)"
            )
        refs = [self.decode(ref) for ref in node["refs"]]
        try:
            value = _Unpickler(io.BytesIO(self._leaves[node["leaf"]]), refs).load()
        except Exception as error:
            raise DamagedCheckpoint(
                f"the pickle of a {node['type']} cannot be read here: {error!r}; import what "
                "defines it first, in the version that wrote it"
            ) from error
        return self._done(node, value)

    # --- arrays ---------------------------------------------------------------------------------

    def _array(self, node: dict[str, Any]) -> Any:
        import numpy as np

        found = np.frombuffer(self._leaves[node["leaf"]], dtype=np.dtype(node["dtype"]))
        if not self._is_first(found.__array_interface__["data"][0]):
            found = found.copy()
        return self._done(node, found.reshape(node["shape"], order=node["order"]))

    def _is_first(self, address: int) -> bool:
        """Whether nobody has that memory yet: values that are equal are not one value."""
        if address in self._given:
            return False
        self._given.add(address)
        return True

    def _number(self, node: dict[str, Any]) -> Any:
        import numpy as np

        return np.frombuffer(bytes.fromhex(node["hex"]), dtype=np.dtype(node["dtype"]))[0]

    def _numpy_list(self, node: dict[str, Any]) -> list[Any]:
        import numpy as np

        found = np.frombuffer(self._leaves[node["leaf"]], dtype=np.dtype(node["dtype"]))
        return self._done(node, list(found))  # type: ignore[no-any-return]

    def _dtype(self, node: dict[str, Any]) -> Any:
        import numpy as np

        return np.dtype(node["text"])

    def _tensor(self, node: dict[str, Any]) -> Any:
        import torch

        dtype = getattr(torch, node["dtype"])
        content = self._leaves[node["leaf"]]
        if len(content):
            flat = torch.frombuffer(content, dtype=dtype)
            if flat.data_ptr() % TENSOR_ALIGNMENT or not self._is_first(flat.data_ptr()):
                flat = flat.clone()
        else:
            flat = torch.empty(0, dtype=dtype)
        if "stride" in node:
            found = flat.as_strided(node["shape"], node["stride"])
        else:
            found = flat.reshape(node["shape"])
        return self._done(node, self._dressed(node, found))

    def _sparse(self, node: dict[str, Any]) -> Any:
        import torch

        indices, values = (self.decode(part) for part in node["of"])
        found = torch.sparse_coo_tensor(
            indices, values, node["shape"], is_coalesced=True, check_invariants=True
        )
        return self._done(node, self._dressed(node, found))

    def _meta(self, node: dict[str, Any]) -> Any:
        import torch

        dtype = getattr(torch, node["dtype"])
        return self._done(node, torch.empty(node["shape"], dtype=dtype, device="meta"))

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
        return getattr(torch, node["text"].removeprefix("torch."))

    def _generator(self, node: dict[str, Any]) -> Any:
        state, library = self.decode(node["state"]), node["library"]
        if library == "random":
            import random

            return self._done(node, _set_random(random.Random(), state))  # noqa: S311
        if library == "torch":
            import torch

            device = node["device"] if torch.cuda.is_available() else "cpu"
            generator = torch.Generator(device)
            generator.set_state(state)
            return self._done(node, generator)
        import numpy as np

        if library == "numpy.RandomState":
            made = np.random.RandomState()
            made.set_state(state)
            return self._done(node, made)
        generators = {"PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"}
        if state["bit_generator"] not in generators:
            raise DamagedCheckpoint(f"an unknown random generator: {state['bit_generator']!r}")
        bits = getattr(np.random, state["bit_generator"])()
        bits.state = state
        return self._done(node, np.random.Generator(bits))


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
    "array": Decoder._array,
    "number": Decoder._number,
    "numbers": Decoder._numpy_list,
    "dtype": Decoder._dtype,
    "tensor": Decoder._tensor,
    "sparse": Decoder._sparse,
    "meta": Decoder._meta,
    "torch": Decoder._torch,
    "generator": Decoder._generator,
}
