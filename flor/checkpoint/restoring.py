"""A checkpoint → values, or → the objects that it was taken of.

Everything is read, checked and compared with the objects before the first of them is changed.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from flor.checkpoint import rng, signing
from flor.checkpoint.decoding import Decoder, Lost
from flor.checkpoint.leaves import Leaves
from flor.checkpoint.manifest import Manifest, Node
from flor.errors import NoCheckpoint, RestoreError
from flor.objects import ObjectStore


class State(Mapping[str, Any]):
    """What a checkpoint holds, by name: the declared objects' states and the loop's variables.

    Values are made when they are asked for. `place` tells the iteration of each loop around,
    `missing` what the checkpoint could not hold.
    """

    def __init__(self, manifest: Manifest, store: ObjectStore, *, trust: bool = False) -> None:
        self.manifest = manifest
        self._leaves = Leaves(store, manifest.leaves)
        self._trust = trust
        self._decoder: Decoder | None = None
        self._nodes: dict[str, Node] = {}
        for frame in manifest.frames:
            self._nodes |= frame.values
        self._nodes |= manifest.objects

    @property
    def run_id(self) -> str:
        return self.manifest.run_id

    @property
    def place(self) -> dict[str, int]:
        return {step.name: step.iteration for step in self.manifest.place}

    @property
    def missing(self) -> dict[str, str]:
        return {item.name: item.reason for item in self.manifest.missing}

    def __getitem__(self, name: str) -> Any:
        return self.decoder.decode(self.node(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)

    def __repr__(self) -> str:
        place = ", ".join(f"{name} {number}" for name, number in self.place.items())
        return f"<state of run {self.run_id} at {place}: {', '.join(self)}>"

    def node(self, name: str) -> Node:
        if name not in self._nodes:
            held = ", ".join(self._nodes) or "nothing"
            raise NoCheckpoint(f"this checkpoint holds no {name!r}; it holds {held}")
        return self._nodes[name]

    def check(self) -> None:
        """Read and verify all of it. Raises DamagedCheckpoint or BucketError."""
        self._leaves.load()

    def restore_rng(self) -> list[str]:
        """Set the random generators of this process; the names of those that are not here."""
        return rng.restore(self._rng_states())

    def _rng_states(self) -> dict[str, Any]:
        found = self.manifest.rng.items()
        return {k: self.decoder.decode(v) for k, v in found if not k.startswith("loader ")}

    def restore(self, targets: Mapping[str, Any], *, with_rng: bool = False) -> None:
        """Put the state into objects, all or none. Raises RestoreError, NoCheckpoint, …"""
        decoder = self.decoder
        decoder.declare(targets)
        steps = []
        for name in sorted(targets, key=lambda name: _rank(targets[name])):
            steps.append(_Restore(decoder, name, targets[name], self.node(name)))
        states = self._rng_states() if with_rng else {}
        for step in steps:
            step.apply()
        rng.restore(states)

    @property
    def decoder(self) -> Decoder:
        if self._decoder is None:
            self.check()
            self._decoder = Decoder(self.manifest, self._leaves, trusted=self._is_trusted())
        return self._decoder

    def _is_trusted(self) -> bool:
        if self._trust or not self.manifest.pickles:
            return self._trust
        digests = [signing.digest(self._leaves[number]) for number in self.manifest.pickles]
        return signing.is_own(self.manifest.signature, digests)


def _rank(target: Any) -> int:
    """Modules first, then what refers to them."""
    torch = sys.modules.get("torch")
    if torch is None:
        return 0
    if isinstance(target, torch.nn.Module):
        return 0
    return 1 if isinstance(target, torch.optim.Optimizer) else 2


class _Restore:
    """One object's restoration: made ready first, applied when all others are ready too."""

    def __init__(self, decoder: Decoder, name: str, target: Any, node: Node) -> None:
        self._name = name
        self._target = target
        self._node = node if isinstance(node, dict) else {"t": "scalar"}
        self._inner: list[_Restore] = []
        kind = self._node["t"]
        if kind == "missing":
            raise RestoreError(f"{name} is not in this checkpoint: it {node['why']}")
        if kind == "instance":
            self._instance(decoder, node)
        else:
            self._value: Any = decoder.decode(node)
        if kind == "state":
            self._extra(decoder, node)
        self._check()

    def apply(self) -> None:
        kind, target = self._node["t"], self._target
        if kind == "state":
            self._apply_state()
        elif kind == "loader":
            _apply_loader(target, self._value, self._node)
        elif kind == "instance":
            for inner in self._inner:
                inner.apply()
            vars(target).update(self._value)
        elif kind in ("tensor", "sparse"):
            _copy_tensor(target, self._value)
        elif kind == "array":
            import numpy as np

            np.copyto(target, self._value)
        elif kind == "generator":
            _apply_generator(target, self._value)
        else:
            _replace_content(target, self._value)

    # --- states ---------------------------------------------------------------------------------

    def _extra(self, decoder: Decoder, node: dict[str, Any]) -> None:
        """What modules and optimizers hold besides their state."""
        self._grads = {key: decoder.decode(item) for key, item in node.get("grads", {}).items()}
        self._buffers = {key: decoder.decode(item) for key, item in node.get("buffers", {}).items()}
        self._attributes = {
            key: {name: decoder.decode(item) for name, item in found.items()}
            for key, found in node.get("attributes", {}).items()
        }
        self._params = [
            (group, index, decoder.decode(item)) for group, index, item in node.get("params", ())
        ]
        if isinstance(node.get("optimizer"), dict) and node["optimizer"]["t"] == "state":
            own = getattr(self._target, "optimizer", None)
            if own is not None:
                name = f"{self._name}.optimizer"
                self._inner.append(_Restore(decoder, name, own, node["optimizer"]))

    def _check(self) -> None:
        """Raise RestoreError where the value does not fit the target."""
        kind, target, name = self._node["t"], self._target, self._name
        if kind == "state":
            if not hasattr(target, "load_state_dict"):
                raise RestoreError(f"{name} is a state_dict, and {target!r:.80} cannot load one")
            if self._is_module():
                _check_module(name, target, self._value)
        elif kind in ("tensor", "array", "sparse"):
            shape = getattr(target, "shape", None)
            if shape is None or tuple(shape) != tuple(self._value.shape):
                raise RestoreError(
                    f"{name} has shape {tuple(self._value.shape)} in the checkpoint, and the "
                    f"object to restore has {tuple(shape) if shape is not None else 'none'}"
                )
        elif kind not in ("loader", "instance", "generator") and not _is_changeable(
            target, self._value
        ):
            raise RestoreError(
                f"{name} is a {type(self._value).__name__} and cannot be put into a "
                f"{type(target).__name__}; take it from the state: flor.load(…)[{name!r}]"
            )

    def _is_module(self) -> bool:
        torch = sys.modules.get("torch")
        return torch is not None and isinstance(self._target, torch.nn.Module)

    def _apply_state(self) -> None:
        for inner in self._inner:
            inner.apply()
        torch = sys.modules.get("torch")
        self._target.load_state_dict(self._value)
        if torch is None:
            return
        if isinstance(self._target, torch.nn.Module):
            self._apply_module()
        elif isinstance(self._target, torch.optim.Optimizer):
            _keep_types(self._target, self._value)
            for group, index, value in self._params:
                _copy_tensor(self._target.param_groups[group]["params"][index], value)

    def _apply_module(self) -> None:
        module, frozen = self._target, set(self._node.get("frozen", ()))
        for key, parameter in module.named_parameters():
            if parameter.is_leaf:
                parameter.requires_grad_(key not in frozen)
            grad = self._grads.get(key)
            parameter.grad = None if grad is None else grad.to(parameter.device)
        buffers = dict(module.named_buffers())
        for key, value in self._buffers.items():
            if key in buffers and buffers[key].shape == value.shape:
                _copy_tensor(buffers[key], value)
        other = set(self._node.get("otherwise", ()))
        for key, inner in module.named_modules():
            inner.training = self._node["training"] != (key in other)
            for name, value in self._attributes.get(key, {}).items():
                _set_attribute(inner, name, value)

    def _instance(self, decoder: Decoder, node: dict[str, Any]) -> None:
        """Attributes that can be changed in place are; the others are replaced."""
        own = getattr(self._target, "__dict__", {})
        self._value = {}
        for key, item in node["of"].items():
            name = f"{self._name}.{key}"
            kind = item.get("t") if isinstance(item, dict) else None
            if kind in ("missing", "declared"):
                continue
            if kind in ("state", "instance") and key in own:
                self._inner.append(_Restore(decoder, name, own[key], item))
            else:
                self._value[key] = decoder.decode(item)


def _check_module(name: str, module: Any, state: Mapping[str, Any]) -> None:
    own = module.state_dict()
    absent = [key for key in own if key not in state]
    unknown = [key for key in state if key not in own]
    different = [
        f"{key}: {tuple(state[key].shape)}, not {tuple(own[key].shape)}"
        for key in own
        if key in state and getattr(own[key], "shape", None) != getattr(state[key], "shape", None)
    ]
    problems = [
        *(f"the checkpoint has no {key}" for key in absent[:3]),
        *(f"the model has no {key}" for key in unknown[:3]),
        *different[:3],
    ]
    if problems:
        raise RestoreError(
            f"{name} is another model than the one in the checkpoint ({'; '.join(problems)}); "
            "build it as the run did: `flor show RUN` tells its arguments and code"
        )


def _keep_types(optimizer: Any, state: Mapping[str, Any]) -> None:
    """torch casts an optimizer's state to its parameter's type; the run's may have been wider."""
    parameters = [item for group in optimizer.param_groups for item in group["params"]]
    saved = [number for group in state["param_groups"] for number in group["params"]]
    for number, parameter in zip(saved, parameters, strict=True):
        for key, value in state["state"].get(number, {}).items():
            now = optimizer.state[parameter].get(key)
            if getattr(now, "dtype", None) != getattr(value, "dtype", None):
                optimizer.state[parameter][key] = value.to(now.device)


def _copy_tensor(target: Any, value: Any) -> None:
    import torch

    with torch.no_grad():
        target.copy_(value)


def _set_attribute(module: Any, name: str, value: Any) -> None:
    own = vars(module).get(name)
    if hasattr(value, "copy_") and getattr(own, "shape", None) == value.shape:
        _copy_tensor(own, value)
    elif not isinstance(value, Lost):
        vars(module)[name] = value


def _apply_generator(target: Any, value: Any) -> None:
    """Give a random generator the state of another of its kind."""
    if hasattr(target, "bit_generator"):
        target.bit_generator.state = value.bit_generator.state
    elif hasattr(target, "get_state") and hasattr(target, "device"):
        target.set_state(value.get_state())
    elif hasattr(target, "set_state"):
        target.set_state(value.get_state(legacy=False))
    else:
        target.setstate(value.getstate())


def _apply_loader(loader: Any, state: Mapping[str, Any], node: dict[str, Any]) -> None:
    if node.get("workers") and loader._iterator is None:
        iter(loader)  # it draws a number when it is made, and was there already
    for path, value in state.items():
        part, _, attribute = path.rpartition(".")
        if attribute == "generator":
            _apply_generator(_part(loader, part).generator, value)
        elif attribute == "epoch":
            _part(loader, part).epoch = value
        else:
            _part(loader, path).load_state_dict(value)


def _part(loader: Any, path: str) -> Any:
    for name in filter(None, path.split(".")):
        loader = getattr(loader, name)
    return loader


def _is_changeable(target: Any, value: Any) -> bool:
    """Whether a container or a plain object can be made equal to another."""
    if isinstance(target, (list, bytearray, dict, set, deque)):
        kinds = (list, bytearray, dict, set, deque)
        return any(isinstance(target, kind) and isinstance(value, kind) for kind in kinds)
    return type(target) is type(value) and hasattr(target, "__dict__")


def _replace_content(target: Any, value: Any) -> None:
    if isinstance(target, (list, bytearray)):
        target[:] = value
    elif isinstance(target, (dict, set)):
        target.clear()
        target.update(value)
    elif isinstance(target, deque):
        target.clear()
        target.extend(value)
    else:
        vars(target).clear()
        vars(target).update(vars(value))
