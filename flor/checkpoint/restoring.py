"""Nodes → the objects that they were taken of.

Everything is read and compared with the objects before the first of them is changed. What can be
changed in place is, so that whoever else holds it sees it too: a parameter that a list and an
optimizer share stays one. Only objects that consist of attributes are made anew.
"""

from __future__ import annotations

import copy
import sys
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from flor.checkpoint import arrays, modules, optimizers
from flor.checkpoint.capturable import has_only_attributes
from flor.checkpoint.decoding import Decoder, Instance, Lost, empty_map
from flor.checkpoint.manifest import Node
from flor.checkpoint.targets import (
    ABSENT,
    CHANGEABLE,
    is_of,
    kind_of,
    part_of,
    replace_content,
    state_setter,
    takes_tensor,
    to_device,
    unfit,
    without_init,
)
from flor.errors import RestoreError

FOREIGN, MODULE, OPTIMIZER, REST = range(4)  # in this order: what may fail goes first


class Step(NamedTuple):
    """A change that is ready to be made. `undo` takes it back, where it may fail half-way."""

    rank: int
    name: str
    run: Callable[[], object]
    undo: Callable[[], object] | None = None


class Restoration:
    """`add` each object, which reads and compares, then `apply` all of it."""

    def __init__(self, decoder: Decoder, targets: Mapping[str, Any]) -> None:
        self._decoder = decoder
        self._targets = targets
        self._steps: list[Step] = []
        self._fitted: dict[int, Any] = {}  # what stands for a node, by its id
        self._taken: dict[int, Any] = {}  # targets that have their value, by their id
        self._memory: dict[int, set[tuple[int, Any]]] = {}  # theirs: addresses and leaves
        self._asked = False  # for the target itself, not for what is in it

    def add(self, name: str, target: Any, node: Node) -> None:
        """Make an object's restoration ready. Raises RestoreError where the state does not fit."""
        found = self._decoder.resolve(node)
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
            try:
                done.append(step)
                step.run()
            except Exception as error:
                for earlier in reversed(done):
                    if earlier.undo is not None:
                        earlier.undo()
                firm = sorted({item.name for item in done[:-1] if item.undo is None})
                changed = f"; {', '.join(firm)} were restored already" if firm else ""
                raise RestoreError(
                    f"{step.name} did not take the state of the checkpoint: "
                    f"{type(error).__name__}: {error}{changed}"
                ) from error

    def fit(self, name: str, target: Any, node: Node) -> Any:
        """What is to stand where `target` stands: the target itself, once changed, or a new value.

        Shared values stay shared, as far as the places where they stand can be written.
        """
        node = self._decoder.resolve(node)
        if not isinstance(node, dict):
            return node
        number = node.get("id")
        if number in self._fitted and (node["t"] != "state" or self._fitted[number] is target):
            return self._fitted[number]
        if id(target) in self._taken and node["t"] not in ("declared", "missing", "state"):
            target = ABSENT  # one object here, several in the checkpoint
        if arrays.is_block(target) and "leaf" in node:
            target = self._own(target, node, asked=self._asked)
        self._asked = False
        return FITS.get(node["t"], Restoration._value)(self, name, target, node)

    def _own(self, target: Any, node: dict[str, Any], *, asked: bool) -> Any:
        """The tensor or array, or ABSENT if its memory takes something else.

        A dictionary that holds the weights themselves now may have held copies of earlier ones.
        """
        known = self._memory.setdefault(arrays.origin(target), set())
        place = (arrays.address(target), node["leaf"])
        if known and place not in known and not asked:
            return ABSENT
        known.add(place)
        return target

    def _keep(self, node: dict[str, Any], value: Any) -> Any:
        """`value` stands for the node from now on."""
        self._taken[id(value)] = value
        if "id" in node:
            self._fitted[node["id"]] = value
        return value

    def _then(self, rank: int, name: str, run: Callable[[], object]) -> None:
        self._steps.append(Step(rank, name, run))

    def _set(self, name: str, owner: Any, attributes: dict[str, Any]) -> None:
        """Without descriptors or `__setattr__`: no code of the user's runs."""
        self._then(REST, name, lambda: vars(owner).update(attributes))

    # --- what stands by itself ------------------------------------------------------------------

    def _missing(self, name: str, target: Any, node: dict[str, Any]) -> Any:
        if target is ABSENT:
            raise RestoreError(f"{name} is not in this checkpoint: it {node['why']}")
        return target

    def _declared(self, name: str, target: Any, node: dict[str, Any]) -> Any:
        found = self._targets.get(node["name"], target)
        if found is ABSENT:
            raise RestoreError(
                f"{name} is {node['name']!r} in the checkpoint: give that too, "
                f"{node['name']}=…, so that it can be put there"
            )
        return found

    def _value(self, name: str, target: Any, node: dict[str, Any]) -> Any:
        """Anything that is replaced rather than changed, unless it is a container."""
        value = self._decoder.decode(node)
        if type(target) is type(value) and isinstance(value, CHANGEABLE):
            self._then(REST, name, lambda: replace_content(target, value))
            return self._keep(node, target)
        return self._keep(node, value)

    # --- tensors, arrays, generators ------------------------------------------------------------

    def _tensor(self, name: str, target: Any, node: dict[str, Any]) -> Any:
        value = self._decoder.decode(node)
        if not takes_tensor(target, value):
            return self._keep(node, to_device(value, node.get("device")))

        def run() -> None:
            optimizers.copy(target, value)
            if target.is_leaf and target.is_floating_point():
                target.requires_grad_(node.get("grad") is not None)

        self._then(REST, name, run)
        return self._keep(node, target)

    def _array(self, name: str, target: Any, node: dict[str, Any]) -> Any:
        import numpy as np

        value = self._decoder.decode(node)
        fits = (
            isinstance(target, np.ndarray)
            and (target.shape, target.dtype) == (value.shape, value.dtype)
            and target.flags.writeable
        )
        if not fits:
            return self._keep(node, value)
        self._then(REST, name, lambda: np.copyto(target, value))
        return self._keep(node, target)

    def _generator(self, name: str, target: Any, node: dict[str, Any]) -> Any:
        value = self._decoder.decode(node)
        if isinstance(value, Lost):
            return self._missing(name, target, {"why": value.why})
        set_state = state_setter(target, value)
        if set_state is None:
            return self._keep(node, value)
        self._then(REST, name, set_state)
        return self._keep(node, target)

    # --- containers -----------------------------------------------------------------------------

    def _sequence(self, name: str, target: Any, node: dict[str, Any]) -> Any:
        """A list or a deque, in place if there is one."""
        kind = {"list": list, "deque": deque}[node["t"]]
        found = target if type(target) is kind else ABSENT
        if kind is deque and found is not ABSENT and found.maxlen != node["maxlen"]:
            found = ABSENT
        if found is ABSENT:
            value = self._keep(node, [] if kind is list else deque(maxlen=node["maxlen"]))
            value.extend(self._items(name, (), node))
            return value
        self._keep(node, found)
        items = self._items(name, list(found), node)
        self._then(REST, name, lambda: replace_content(found, items))
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
        return self._keep(node, there if same else tuple(items))

    def _set_of(self, name: str, target: Any, node: dict[str, Any]) -> Any:
        kind = {"set": set, "frozenset": frozenset}[node["t"]]
        value = kind(self._items(name, (), node))
        if type(target) is not set or kind is not set:
            return self._keep(node, value)
        self._then(REST, name, lambda: replace_content(target, value))
        return self._keep(node, target)

    def _map(self, name: str, target: Any, node: dict[str, Any]) -> Any:
        empty = empty_map(node)
        found = target if type(target) is type(empty) else ABSENT
        value = self._keep(node, empty if found is ABSENT else found)
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
            self._then(REST, name, lambda: replace_content(found, content))
        return value

    # --- objects --------------------------------------------------------------------------------

    def _instance(self, name: str, target: Any, node: dict[str, Any]) -> Any:
        """Attributes that can be changed in place are; the others are replaced."""
        fresh = target is ABSENT or not is_of(target, node["type"])
        if fresh:
            target = without_init(name, node["type"])
        self._keep(node, target)
        found = {
            key: self.fit(f"{name}.{key}", vars(target).get(key, ABSENT), item)
            for key, item in node["of"].items()
        }
        if fresh:
            vars(target).update(found)  # it may be asked for its hash
        else:
            self._set(name, target, found)
        return target

    def _pickle(self, name: str, target: Any, node: dict[str, Any]) -> Any:
        """An object takes the attributes of the one in the pickle, if they are all that it is."""
        value = self._decoder.decode(node)
        kind = type(value)
        if type(target) is not kind or hasattr(kind, "__del__") or not has_only_attributes(kind):
            return self._keep(node, value)
        self._then(REST, name, lambda: replace_content(vars(target), vars(value)))
        return self._keep(node, target)

    def _loader(self, name: str, target: Any, node: dict[str, Any]) -> Any:
        if not modules.is_loader(target):
            raise RestoreError(f"{name} is a DataLoader in the checkpoint, not a {kind_of(target)}")
        if node.get("workers"):

            def begin() -> None:
                if target._iterator is None:
                    iter(target)  # it draws a number when it is made, and was there already

            self._then(FOREIGN, name, begin)
        for path, item in node["state"]["of"].items():
            part, _, attribute = path.rpartition(".")
            owner = part_of(name, target, part)
            there = part_of(name, owner, attribute)
            fitted = self.fit(f"{name}.{path}", there, item)
            if fitted is not there:
                self._then(REST, name, partial(setattr, owner, attribute, fitted))
        return self._keep(node, target)

    # --- what has a state_dict ------------------------------------------------------------------

    def _state(self, name: str, target: Any, node: dict[str, Any]) -> Any:
        if target is ABSENT or not modules.has_state(target):
            raise RestoreError(
                f"{name} is the state of a {node['type']} in the checkpoint; there has to be one "
                f"that takes it, and here is {kind_of(target)}"
            )
        self._keep(node, target)
        state = self._decoder.decode(node["of"])
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(target, torch.nn.Module):
            self._module(name, target, node, state)
        elif torch is not None and isinstance(target, torch.optim.Optimizer):
            self._optimizer(name, target, node, state)
        else:
            self._foreign(name, target, node, state)
        return target

    def _module(self, name: str, module: Any, node: dict[str, Any], state: Any) -> None:
        decode = self._decoder.decode
        optimizers.check_module(name, module, state)
        self._occupy(module, self._decoder.resolve(node["of"]))
        grads = {key: decode(item) for key, item in node.get("grads", {}).items()}
        buffers = {key: decode(item) for key, item in node.get("buffers", {}).items()}
        self._then(MODULE, name, lambda: module.load_state_dict(state))
        self._then(MODULE, name, lambda: optimizers.dress_module(module, node, grads, buffers))
        submodules = dict(module.named_modules())
        for path, attributes in node.get("attributes", {}).items():
            inner = submodules.get(path)
            if inner is None:
                continue
            found = {
                key: self.fit(f"{name}.{path}.{key}", vars(inner).get(key, ABSENT), item)
                for key, item in attributes.items()
            }
            self._set(name, inner, found)

    def _occupy(self, module: Any, of: dict[str, Any]) -> None:
        own = module.state_dict()
        for key, item in of.get("of", {}).items():
            found = self._decoder.resolve(item)
            if arrays.is_block(own.get(key)) and isinstance(found, dict) and "leaf" in found:
                self._own(own[key], found, asked=True)

    def _optimizer(self, name: str, optimizer: Any, node: dict[str, Any], state: Any) -> None:
        optimizers.check_optimizer(name, optimizer, node)
        decode = self._decoder.decode
        own = [(group, index, decode(v), decode(g)) for group, index, v, g in node["params"]]

        def run() -> None:
            optimizer.load_state_dict(state)
            optimizers.keep_types(optimizer, state)
            for group, index, value, grad in own:
                parameter = optimizer.param_groups[group]["params"][index]
                optimizers.copy(parameter, value)
                if grad is not None:
                    parameter.grad = grad.to(parameter.device)

        self._then(OPTIMIZER, name, run)

    def _foreign(self, name: str, target: Any, node: dict[str, Any], state: Any) -> None:
        """A scheduler, a scaler, a sampler…: only it knows whether the state fits."""
        inner = self._decoder.resolve(node.get("optimizer"))
        if inner is not None:
            optimizers.check_scheduler(name, target, node)
            self.fit(f"{name}.optimizer", getattr(target, "optimizer", ABSENT), inner)
        before = _copied(target)
        undo = None if before is None else lambda: target.load_state_dict(before)
        self._steps.append(Step(FOREIGN, name, lambda: target.load_state_dict(state), undo))


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
    "state": Restoration._state,
}


def _copied(target: Any) -> Any:
    """The state that an object has now; None where it cannot be had."""
    try:
        return copy.deepcopy(target.state_dict())
    except Exception:  # noqa: BLE001 - a foreign type may raise anything
        return None
