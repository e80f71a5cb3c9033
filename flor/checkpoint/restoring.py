"""Nodes → the objects that they were taken of.

Everything is read and compared with the objects before the first of them is changed. What can be
changed in place is, so that whoever else holds it sees it too: a parameter that a list and an
optimizer share stays one. Only objects that consist of attributes are made anew.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from flor.checkpoint import arrays, generators, loaders, optimizers
from flor.checkpoint.capturable import has_only_attributes
from flor.checkpoint.claims import Claims
from flor.checkpoint.decoding import OBJECTS, Decoder, Instance, Lost, empty_map
from flor.checkpoint.loading import FOREIGN, REST, fit_state, fit_traces
from flor.checkpoint.manifest import Node
from flor.checkpoint.targets import (
    ABSENT,
    CHANGEABLE,
    is_of,
    kind_of,
    one,
    replace_content,
    takes_tensor,
    to_device,
    unfit,
    without_init,
)
from flor.errors import DamagedCheckpoint, FlorError, RestoreError


class Step(NamedTuple):
    """A change that is ready to be made. `undo` takes it back, where it may fail half-way."""

    rank: int
    name: str
    run: Callable[[], object]
    undo: Callable[[], object] | None = None


class Maker(Decoder):
    """Makes what objects are given: nothing in it stands for something else."""

    def lost(self, why: str) -> Any:
        raise RestoreError(f"a part of it is not in this checkpoint: it {why}")

    def empty(self, type_name: str) -> Any:
        return without_init("a part of it", type_name)


class Restoration:
    """`add` each object, which reads and compares, then `apply` all of it."""

    def __init__(self, decoder: Maker, targets: Mapping[str, Any]) -> None:
        self.decoder = decoder
        self.targets = dict(targets)
        self.claims = Claims(decoder.content)
        self._steps: list[Step] = []
        self._fitted: dict[int, Any] = {}  # what stands for a node, by its id
        self._taken: dict[int, Any] = {}  # targets that have their value, by their id
        self._asked = False  # for the target itself, not for what is in it

    def add(self, name: str, target: Any, node: Node) -> None:
        """Make an object's restoration ready.

        Raises RestoreError where the state does not fit, DamagedCheckpoint, UntrustedPickle.
        """
        try:
            self._add(name, target, node)
        except (FlorError, MemoryError):
            raise
        except Exception as error:
            if type(error).__name__ == "OutOfMemoryError":  # torch's
                raise RestoreError(f"there is no room for {name}: {error}") from error
            # What a manifest may hold is anybody's choice.
            raise DamagedCheckpoint(
                f"{name} cannot be read in this checkpoint: {error!r:.200}"
            ) from error

    def _add(self, name: str, target: Any, node: Node) -> None:
        found = self.decoder.resolve(node)
        kind = found["t"] if isinstance(found, dict) else None
        if kind == "missing":
            raise RestoreError(f"{name} is not in this checkpoint: it {found['why']}")
        if kind == "instance" and not is_of(target, found["type"]):
            raise unfit(name, Instance(found["type"]), target)
        self._asked = True
        fitted = self.fit(name, target, found)
        if fitted is not target:
            raise unfit(name, fitted, target)

    def apply(self) -> None:
        """Change the objects. Raises RestoreError."""
        done: list[Step] = []
        for step in sorted(self._steps, key=lambda step: step.rank):
            done.append(step)
            try:
                step.run()
            except Exception as error:
                raise RestoreError(
                    f"{step.name} did not take the state of the checkpoint: "
                    f"{type(error).__name__}: {error}{_take_back(done)}"
                ) from error

    def fit(self, name: str, target: Any, node: Node) -> Any:
        """What is to stand where `target` stands: the target itself, once changed, or a new value.

        Shared values stay shared, as far as the places where they stand can be written.
        """
        node = self.decoder.resolve(node)
        if not isinstance(node, dict):
            return node
        number = node.get("id")
        if number in self._fitted and (node["t"] != "state" or self._fitted[number] is target):
            return self._fitted[number]
        if id(target) in self._taken and node["t"] not in ("declared", "missing", "state"):
            target = ABSENT  # one object here, several in the checkpoint
        both_blocks = arrays.is_block(target) and node["t"] in ("tensor", "array")
        if both_blocks and not self.claims.take(target, node, asked=self._asked):
            target = ABSENT
        self._asked = False
        return FITS.get(node["t"], Restoration._value)(self, name, target, node)

    def keep(self, node: dict[str, Any], value: Any) -> Any:
        """`value` stands for the node from now on."""
        self._taken[id(value)] = value
        if "id" in node:
            self._fitted[node["id"]] = value
        return value

    def then(
        self,
        rank: int,
        name: str,
        run: Callable[[], object],
        undo: Callable[[], object] | None = None,
    ) -> None:
        """`run` is a part of what `apply` does."""
        self._steps.append(Step(rank, name, run, undo))

    def set_attributes(self, name: str, owner: Any, attributes: dict[str, Any]) -> None:
        """Without descriptors or `__setattr__`: no code of the user's runs."""
        self.then(REST, name, lambda: vars(owner).update(attributes))

    # --- what stands by itself ------------------------------------------------------------------

    def _missing(self, name: str, target: Any, node: dict[str, Any]) -> Any:
        if target is ABSENT:
            raise RestoreError(f"{name} is not in this checkpoint: it {node['why']}")
        return target

    def _declared(self, name: str, target: Any, node: dict[str, Any]) -> Any:
        found = self.targets.get(node["name"], target)
        if found is ABSENT:
            raise RestoreError(
                f"{name} is {node['name']!r} in the checkpoint: give that too, "
                f"{node['name']}=…, so that it can be put there"
            )
        return found

    def _insist_on(self, name: str, declared: str) -> None:
        """An object that a pickle refers to has to be given: it cannot be made of its state."""
        found = self.decoder.declared_node(declared)
        plain = isinstance(found, dict) and found["t"] not in OBJECTS
        if declared not in self.targets and not plain:
            raise RestoreError(
                f"{name} holds {declared!r}: give that too, {declared}=…, so that it can be put "
                "there"
            )

    def _value(self, name: str, target: Any, node: dict[str, Any]) -> Any:
        """Anything that is replaced rather than changed, unless it is a container."""
        value = self.decoder.decode(node)
        if type(target) is type(value) and isinstance(value, CHANGEABLE):
            self.then(REST, name, lambda: replace_content(target, value))
            return self.keep(node, target)
        return self.keep(node, value)

    # --- tensors, arrays, generators ------------------------------------------------------------

    def _tensor(self, name: str, target: Any, node: dict[str, Any]) -> Any:
        value = self.decoder.decode(node)
        if not takes_tensor(target, value):
            return self.keep(node, to_device(value, node.get("device")))

        def run() -> None:
            optimizers.copy(target, value)
            if target.is_leaf and target.is_floating_point():
                target.requires_grad_(node.get("grad") is not None)
            if target.is_leaf and "gradient" in node:
                target.grad = None if value.grad is None else value.grad.to(target.device)

        self.then(REST, name, run)
        return self.keep(node, target)

    def _array(self, name: str, target: Any, node: dict[str, Any]) -> Any:
        import numpy as np

        value = self.decoder.decode(node)
        fits = (
            isinstance(target, np.ndarray)
            and (target.shape, target.dtype) == (value.shape, value.dtype)
            and target.flags.writeable
        )
        if not fits:
            return self.keep(node, value)
        self.then(REST, name, lambda: np.copyto(target, value))
        return self.keep(node, target)

    def _generator(self, name: str, target: Any, node: dict[str, Any]) -> Any:
        value = self.decoder.decode(node)
        if isinstance(value, Lost):
            return self._missing(name, target, {"why": value.why})
        set_state = generators.setter(target, value)
        if set_state is None:
            return self.keep(node, value)
        self.then(REST, name, set_state)
        return self.keep(node, target)

    # --- containers -----------------------------------------------------------------------------

    def _sequence(self, name: str, target: Any, node: dict[str, Any]) -> Any:
        """A list or a deque, in place if there is one."""
        kind = {"list": list, "deque": deque}[node["t"]]
        found = target if type(target) is kind else ABSENT
        if kind is deque and found is not ABSENT and found.maxlen != node["maxlen"]:
            found = ABSENT
        if found is ABSENT:
            value = self.keep(node, [] if kind is list else deque(maxlen=node["maxlen"]))
            value.extend(self._items(name, (), node))
            return value
        self.keep(node, found)
        items = self._items(name, list(found), node)
        self.then(REST, name, lambda: replace_content(found, items))
        return found

    def _items(self, name: str, there: Any, node: dict[str, Any]) -> list[Any]:
        return [
            self.fit(f"{name}[{index}]", there[index] if index < len(there) else ABSENT, item)
            for index, item in enumerate(node["items"])
        ]

    def _tuple(self, name: str, target: Any, node: dict[str, Any]) -> Any:
        there = target if type(target) is tuple else ()
        items = self._items(name, there, node)
        same = len(items) == len(there) and all(a is b for a, b in zip(items, there, strict=True))
        return self.keep(node, there if same else tuple(items))

    def _set_of(self, name: str, target: Any, node: dict[str, Any]) -> Any:
        kind = {"set": set, "frozenset": frozenset}[node["t"]]
        value = kind(self._items(name, (), node))
        if type(target) is not set or kind is not set:
            return self.keep(node, value)
        self.then(REST, name, lambda: replace_content(target, value))
        return self.keep(node, target)

    def _map(self, name: str, target: Any, node: dict[str, Any]) -> Any:
        empty = empty_map(node)
        found = target if type(target) is type(empty) else ABSENT
        value = self.keep(node, empty if found is ABSENT else found)
        if "of" in node:
            pairs = list(node["of"].items())
        else:
            pairs = [(self.fit(f"a key of {name}", ABSENT, k), item) for k, item in node["items"]]
        there = {} if found is ABSENT else found
        content = {
            key: self.fit(f"{name}[{key!r:.40}]", there.get(key, ABSENT), item)
            for key, item in pairs
        }
        if found is ABSENT:
            value.update(content)
        else:
            self.then(REST, name, lambda: replace_content(found, content))
        return value

    # --- objects --------------------------------------------------------------------------------

    def _instance(self, name: str, target: Any, node: dict[str, Any]) -> Any:
        """Attributes that can be changed in place are; the others are replaced."""
        fresh = target is ABSENT or not is_of(target, node["type"])
        if fresh:
            target = without_init(name, node["type"])
        self.keep(node, target)
        found = {
            key: self.fit(f"{name}.{key}", vars(target).get(key, ABSENT), item)
            for key, item in node["of"].items()
        }
        if fresh:
            vars(target).update(found)  # it may be asked for its hash
        else:
            self.set_attributes(name, target, found)
        return target

    def _pickle(self, name: str, target: Any, node: dict[str, Any]) -> Any:
        """An object takes the attributes of the one in the pickle, if they are all that it is."""
        for ref in node["refs"]:
            found = self.decoder.resolve(ref)
            if isinstance(found, dict) and found["t"] == "declared":
                self._insist_on(name, found["name"])
        value = self.decoder.decode(node)
        kind = type(value)
        if type(target) is not kind or hasattr(kind, "__del__") or not has_only_attributes(kind):
            return self.keep(node, value)
        self.then(REST, name, lambda: replace_content(vars(target), vars(value)))
        return self.keep(node, target)

    def _loader(self, name: str, target: Any, node: dict[str, Any]) -> Any:
        if loaders.is_loader(target) != loaders.is_loader_node(node):
            raise RestoreError(
                f"{name} is {one(node['type'])} in the checkpoint, not {kind_of(target)}"
            )
        if node.get("workers") and loaders.has_lasting_workers(target):

            def begin() -> None:
                if target._iterator is None:
                    iter(target)  # it draws a number when it is made, and was there already

            self.then(FOREIGN, name, begin)
        fit_traces(self, name, target, node["state"]["of"])
        return self.keep(node, target)


FITS: dict[str, Callable[[Restoration, str, Any, dict[str, Any]], Any]] = {
    "missing": Restoration._missing,
    "declared": Restoration._declared,
    "tensor": Restoration._tensor,
    "sparse": Restoration._tensor,
    "meta": Restoration._tensor,
    "array": Restoration._array,
    "generator": Restoration._generator,
    "list": Restoration._sequence,
    "deque": Restoration._sequence,
    "tuple": Restoration._tuple,
    "set": Restoration._set_of,
    "frozenset": Restoration._set_of,
    "map": Restoration._map,
    "dict": Restoration._map,
    "instance": Restoration._instance,
    "pickle": Restoration._pickle,
    "loader": Restoration._loader,
    "state": fit_state,
}


def _take_back(done: list[Step]) -> str:
    """Undo steps, as far as that is possible; how a message about it goes on."""
    stuck = set()
    for step in reversed(done):
        try:
            if step.undo is not None:
                step.undo()
        except Exception:  # noqa: BLE001 - a foreign type may raise anything
            stuck.add(step.name)
    firm = sorted({step.name for step in done[:-1] if step.undo is None})
    told = f"; {', '.join(firm)} were restored already" if firm else ""
    return told + (f"; {', '.join(sorted(stuck))} could not be set back" if stuck else "")
