"""Objects with `load_state_dict`: what they are given, and what it leaves out.

A state is made of new values. What the checkpoint does not hold of it stays as it is: in its place
goes what the object's own `state_dict` has there now. So do objects that take a state of their own.
"""

from __future__ import annotations

import copy
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from flor.checkpoint import arrays, modules, optimizers
from flor.checkpoint.decoding import Given
from flor.checkpoint.frames import attributes as own_attributes
from flor.checkpoint.manifest import Node
from flor.checkpoint.targets import ABSENT, is_of, kind_of, unfit
from flor.checkpoint.traces import is_module, is_trace
from flor.errors import RestoreError

if TYPE_CHECKING:
    from flor.checkpoint.restoring import Restoration

FOREIGN, MODULE, OPTIMIZER, REST, LATE = range(5)  # in this order: what may fail goes first


def fit_state(restoration: Restoration, name: str, target: Any, node: dict[str, Any]) -> Any:
    """Make ready what gives the object its state; the object itself. Raises RestoreError."""
    if target is ABSENT or not modules.hands_on_state(target):
        raise RestoreError(
            f"{name} is the state of a {node['type']} in the checkpoint; there has to be one "
            f"that takes it, and here is {kind_of(target)}"
        )
    restoration.keep(node, target)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(target, torch.nn.Module):
        _module(restoration, name, target, node)
    elif torch is not None and isinstance(target, torch.optim.Optimizer):
        _optimizer(restoration, name, target, node)
    else:
        _foreign(restoration, name, target, node)
    return target


def fit_traces(restoration: Restoration, name: str, owner: Any, found: dict[str, Node]) -> None:
    """Make ready what objects inside an owner remember. Raises RestoreError, DamagedCheckpoint."""
    for path, node in found.items():
        *way, key = path.split(".")
        holder = owner
        for step in way:
            holder = _part(holder, step)
        if holder is ABSENT:
            raise RestoreError(f"{name} has no {path}, which the checkpoint has a state for")
        there = _part(holder, key)
        fitted = restoration.fit(f"{name}.{path}", there, node)
        if fitted is there:
            continue
        fits = is_trace(fitted) and (there is ABSENT or is_trace(there))
        if not fits or is_module(holder):
            raise unfit(f"{name}.{path}", fitted, there)
        restoration.then(REST, name, partial(_put, holder, key, fitted))


def _put(holder: Any, step: str, value: Any) -> None:
    if type(holder) is list:
        holder[int(step)] = value
    else:
        own_attributes(holder)[step] = value


def _part(holder: Any, step: str) -> Any:
    """What an attribute holds, or a member of a list. None of the user's code runs."""
    if type(holder) in (list, tuple):
        return holder[int(step)] if step.isdecimal() and int(step) < len(holder) else ABSENT
    return own_attributes(holder).get(step, ABSENT)


def _state_of(name: str, target: Any) -> Any:
    """The state that an object has now."""
    try:
        return target.state_dict()
    except Exception as error:
        raise RestoreError(
            f"the state that {name} has now cannot be had: {type(error).__name__}: {error}"
        ) from error


# --- modules ------------------------------------------------------------------------------------


def _module(restoration: Restoration, name: str, module: Any, node: dict[str, Any]) -> None:
    decoder = restoration.decoder
    own, of = _state_of(name, module), decoder.resolve(node["of"])
    _insist_on_parameters(restoration, name, module, of)
    state = decoder.versioned(node, decoder.decode(_Filling(restoration).fill(name, of, own)))
    optimizers.check_module(name, own, state)
    _occupy(restoration, own, of)
    grads = _held(restoration, node.get("grads", {}))
    buffers = _held(restoration, node.get("buffers", {}))
    dress = optimizers.dressing(name, module, node, grads, buffers)
    restoration.then(MODULE, name, lambda: module.load_state_dict(state))
    restoration.then(MODULE, name, dress)
    submodules = dict(module.named_modules())
    for path, attributes in node.get("attributes", {}).items():
        inner = submodules.get(path)
        if inner is None:
            continue
        found = {
            key: restoration.fit(f"{name}.{path}.{key}", vars(inner).get(key, ABSENT), item)
            for key, item in attributes.items()
        }
        restoration.set_attributes(name, inner, found)
    for path, traces in node.get("traces", {}).items():
        if path in submodules:
            fit_traces(restoration, f"{name}.{path}" if path else name, submodules[path], traces)


def _insist_on_parameters(
    restoration: Restoration, name: str, module: Any, of: dict[str, Any]
) -> None:
    """A model with some of its weights only is none."""
    from torch.nn.parameter import is_lazy

    for key, parameter in module.named_parameters(remove_duplicate=False):
        found = restoration.decoder.resolve(of["of"].get(key))
        if isinstance(found, dict) and found["t"] == "missing" and not is_lazy(parameter):
            raise RestoreError(f"{name}.{key} is not in this checkpoint: it {found['why']}")


def _occupy(restoration: Restoration, own: Mapping[str, Any], of: dict[str, Any]) -> None:
    """The memory of a module takes the module's state, whatever else refers to it."""
    from torch.nn.parameter import is_lazy

    for key, item in of["of"].items():
        found, block = restoration.decoder.resolve(item), own[key]
        has_bytes = isinstance(found, dict) and "leaf" in found
        if has_bytes and arrays.is_block(block) and not is_lazy(block):
            restoration.claims.take(block, found, asked=True)


def _held(restoration: Restoration, found: dict[str, Node]) -> dict[str, Any]:
    """The values of nodes by name, but for those that the checkpoint does not hold."""
    decoder = restoration.decoder
    nodes = {key: decoder.resolve(item) for key, item in found.items()}
    return {key: decoder.decode(item) for key, item in nodes.items() if not _is_missing(item)}


def _is_missing(node: Node) -> bool:
    return isinstance(node, dict) and node["t"] == "missing"


# --- optimizers ---------------------------------------------------------------------------------


def _optimizer(restoration: Restoration, name: str, optimizer: Any, node: dict[str, Any]) -> None:
    optimizers.check_optimizer(name, optimizer, node)
    decoder = restoration.decoder
    of = _Filling(restoration).fill(name, node["of"], _state_of(name, optimizer))
    state = decoder.decode(of)
    parameters = optimizers.parameters_of(optimizer, state)
    own = []
    for group, index, value, grad in node["params"]:
        parameter = optimizer.param_groups[group]["params"][index]
        own.append((parameter, decoder.decode(value), decoder.decode(grad)))
        optimizers.check_parameter(name, *own[-1])
    shared = list(_shared(restoration, name, optimizer, parameters, decoder.resolve(node["of"])))

    def run() -> None:
        optimizer.load_state_dict(state)
        optimizers.keep_types(optimizer, state)
        for parameter, key, value in shared:
            optimizer.state[parameter][key] = value
        for parameter, value, grad in own:
            optimizers.copy(parameter, value)
            parameter.grad = None if grad is None else grad.to(parameter.device)

    restoration.then(OPTIMIZER, name, run)


def _shared(
    restoration: Restoration, name: str, optimizer: Any, parameters: dict[int, Any], of: Node
) -> Iterator[tuple[Any, str, Any]]:
    """The tensors of an optimizer's state that something else holds too: they stay the same."""
    resolve = restoration.decoder.resolve
    for number, entry in resolve(of["of"]["state"]).get("items", ()):
        parameter = parameters.get(number)
        for key, item in resolve(entry).get("of", {}).items():
            found = resolve(item)
            is_tensor = isinstance(found, dict) and found["t"] == "tensor"
            if parameter is not None and is_tensor and "id" in found:
                now = optimizer.state.get(parameter, {}).get(key, ABSENT)
                path = f"{name}.state[{number}][{key!r:.40}]"
                yield parameter, key, restoration.fit(path, now, found)


# --- others -------------------------------------------------------------------------------------


def _foreign(restoration: Restoration, name: str, target: Any, node: dict[str, Any]) -> None:
    """A scheduler, a scaler, a sampler…: only it knows whether the state fits."""
    inner = restoration.decoder.resolve(node.get("optimizer"))
    if inner is not None:
        optimizers.check_scheduler(name, target, node)
        restoration.fit(f"{name}.optimizer", getattr(target, "optimizer", ABSENT), inner)
    filling = _Filling(restoration)
    state = restoration.decoder.decode(filling.fill(name, node["of"], _state_of(name, target)))
    # Objects in it that are restored in place have to be what they are to be when it sees them.
    rank = LATE if filling.is_live else FOREIGN
    restoration.then(rank, name, lambda: target.load_state_dict(state), _way_back(target))


def _way_back(target: Any) -> Callable[[], object] | None:
    """Sets an object back to the state that it has now; None where that cannot be had."""
    try:
        before = copy.deepcopy(target.state_dict())
    except Exception:  # noqa: BLE001 - a foreign type may raise anything
        return None
    return lambda: target.load_state_dict(before)


class _Filling:
    """Fills a state's nodes with what is there now, where they are not what can be handed over."""

    def __init__(self, restoration: Restoration) -> None:
        self._restoration = restoration
        self.is_live = False  # objects that are restored in place are in it

    def fill(self, name: str, node: Node, now: Any) -> Node:
        """The node, which only what `now` is can stand for, or with such in it."""
        found = self._restoration.decoder.resolve(node)
        if isinstance(found, dict) and found["t"] == "declared":
            return self._declared(name, found, now)
        if not isinstance(found, dict):
            return found
        if found["t"] in ("missing", "state", "loader"):
            self.is_live |= found["t"] != "missing"
            return Given(self._restoration.fit(name, now, found))
        # What is referred to is filled where it stands first.
        return found if found is not node else self._inside(name, found, now)

    def _declared(self, name: str, node: dict[str, Any], now: Any) -> Node:
        targets, declared = self._restoration.targets, node["name"]
        if declared in targets:
            self.is_live = True
            return node
        found = self._restoration.decoder.declared_node(declared)
        if isinstance(found, dict) and found["t"] in ("state", "loader") and now is not ABSENT:
            targets[declared] = now  # for now, so that two that hold each other have an end
        return self.fill(name, found, now)

    def _inside(self, name: str, node: dict[str, Any], now: Any) -> Node:
        kind = node["t"]
        if kind in ("map", "instance"):
            there = _parts(now) if kind == "map" or is_of(now, node["type"]) else {}
            of = {
                k: self.fill(f"{name}.{k}", v, there.get(k, ABSENT)) for k, v in node["of"].items()
            }
            return node | {"of": of}
        if kind == "dict":
            there = _parts(now)
            items = [[k, self._item(name, k, v, there)] for k, v in node["items"]]
            return node | {"items": items}
        if kind in ("list", "tuple", "deque"):
            there = dict(enumerate(now)) if isinstance(now, (list, tuple, deque)) else {}
            items = [self._item(name, k, v, there) for k, v in enumerate(node["items"])]
            return node | {"items": items}
        return node

    def _item(self, name: str, key: Node, item: Node, there: Mapping[Any, Any]) -> Node:
        plain = not isinstance(key, (dict, list))
        return self.fill(f"{name}[{key!r:.40}]", item, there.get(key, ABSENT) if plain else ABSENT)


def _parts(value: Any) -> Mapping[Any, Any]:
    """What is in a dictionary, or the attributes of an object."""
    if isinstance(value, dict):
        return value
    found = getattr(value, "__dict__", None)
    return found if isinstance(found, dict) else {}
