"""Whether modules, optimizers and schedulers fit a state, and what `load_state_dict` leaves out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

from flor.checkpoint import modules
from flor.checkpoint.manifest import Node
from flor.checkpoint.targets import takes_tensor
from flor.errors import DamagedCheckpoint, RestoreError

SHOWN = 3  # differences in a message
EXTRA = "_extra_state"  # ends the name of what a module saves besides tensors: it may be anything


def check_module(name: str, own: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Raise RestoreError where the state that a module has is made of others than that it takes."""
    from torch.nn.parameter import is_lazy

    absent = [key for key in own if key not in state]
    unknown = [key for key in state if key not in own]
    different = [
        f"{key}: {_shape(state[key])}, not {_shape(own[key])}"
        for key in own
        if key in state
        and not key.endswith(EXTRA)
        and not is_lazy(own[key])
        and _shape(own[key]) != _shape(state[key])
    ]
    problems = [
        *(f"the checkpoint has no {key}" for key in absent[:SHOWN]),
        *(f"the model has no {key}" for key in unknown[:SHOWN]),
        *different[:SHOWN],
    ]
    if problems:
        raise RestoreError(
            f"{name} is another model than the one in the checkpoint ({'; '.join(problems)}); "
            "build it as the run did: `flor show RUN` tells its arguments and code"
        )


def _shape(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return f"no tensor but a {type(value).__name__}" if shape is None else str(tuple(shape))


def check_optimizer(name: str, optimizer: Any, node: Mapping[str, Any]) -> None:
    """Raise RestoreError where an optimizer changes other parameters, or in another way."""
    _check_type(name, optimizer, node)
    shapes, own = node["shapes"], modules.shapes_of(optimizer)
    if shapes == own:
        return
    counts = [[len(group) for group in groups] for groups in (shapes, own)]
    if counts[0] != counts[1]:
        what = f"groups of {counts[0]} parameters in the checkpoint, and here of {counts[1]}"
    else:
        there, here = next(
            (a, b)
            for groups in zip(shapes, own, strict=True)
            for a, b in zip(*groups, strict=True)
            if a != b
        )
        what = f"a parameter of shape {tuple(there)} in the checkpoint, and here {tuple(here)}"
    raise RestoreError(f"{name} is an optimizer of other parameters: it has {what}")


def check_scheduler(name: str, scheduler: Any, node: Mapping[str, Any]) -> None:
    """Raise RestoreError where a scheduler is of another kind, or of other parts."""
    _check_type(name, scheduler, node)
    parts = modules.parts_of(scheduler)
    if node.get("parts", []) != parts:
        raise RestoreError(
            f"{name} is made of {', '.join(node['parts']) or 'nothing'} in the checkpoint, and "
            f"here of {', '.join(parts) or 'nothing'}"
        )


def _check_type(name: str, target: Any, node: Mapping[str, Any]) -> None:
    there, here = node["type"].rpartition(".")[2], type(target).__qualname__.rpartition(".")[2]
    if there != here:
        raise RestoreError(f"{name} is a {there} in the checkpoint, and here a {here}")


def parameters_of(optimizer: Any, state: Mapping[str, Any]) -> dict[int, Any]:
    """The parameters of an optimizer by their numbers in a state. Raises DamagedCheckpoint."""
    there = [group["params"] for group in state["param_groups"]]
    here = [group["params"] for group in optimizer.param_groups]
    if list(map(len, there)) != list(map(len, here)):
        raise DamagedCheckpoint("an optimizer's state that has not the parameters it is said to")
    return dict(zip(chain(*there), chain(*here), strict=True))


def check_parameter(name: str, parameter: Any, value: Any, grad: Any) -> None:
    """Raise DamagedCheckpoint where a parameter cannot have such a value and gradient."""
    if parameter.shape != value.shape or (grad is not None and parameter.shape != grad.shape):
        raise DamagedCheckpoint(f"a parameter of {name} that has not the shape it is said to have")


def dressing(
    name: str,
    module: Any,
    node: Mapping[str, Node],
    grads: Mapping[str, Any],
    buffers: Mapping[str, Any],
) -> Callable[[], None]:
    """What gives a module what its `state_dict` leaves out. Raises RestoreError."""
    from torch.nn.parameter import is_lazy

    frozen, other = set(node.get("frozen", ())), set(node.get("otherwise", ()))
    training = bool(node["training"])
    _check_gradients(name, module, grads)
    puts = [_put_buffer(name, module, key, value) for key, value in buffers.items()]

    def run() -> None:
        for key, parameter in module.named_parameters():
            if is_lazy(parameter):
                continue
            if parameter.is_leaf:
                parameter.requires_grad_(key not in frozen)
            grad = grads.get(key)
            parameter.grad = None if grad is None else grad.to(parameter.device, parameter.dtype)
        for put in puts:
            put()
        for key, inner in module.named_modules():
            inner.training = training != (key in other)

    return run


def _check_gradients(name: str, module: Any, grads: Mapping[str, Any]) -> None:
    from torch.nn.parameter import is_lazy

    for key, parameter in module.named_parameters():
        if key in grads and not is_lazy(parameter) and grads[key].shape != parameter.shape:
            raise RestoreError(
                f"the gradient of {name}.{key} is {_shape(grads[key])} in the checkpoint, and the "
                f"parameter is {_shape(parameter)}"
            )


def _put_buffer(name: str, module: Any, key: str, value: Any) -> Callable[[], object]:
    """Gives a module a buffer that is not saved: in its place, or a new one of another shape."""
    path, _, own = key.rpartition(".")
    inner = dict(module.named_modules()).get(path)
    now = None if inner is None else inner._buffers.get(own)
    if takes_tensor(now, value):
        return lambda: copy(now, value)
    if inner is None or (own not in inner._buffers and hasattr(inner, own)):
        raise RestoreError(f"{name} has no buffer {key}, which the checkpoint has a value for")
    new = value if now is None else value.to(now.device, now.dtype)
    if own in inner._buffers:
        return lambda: inner._buffers.update({own: new})
    return lambda: inner.register_buffer(own, new, persistent=False)


def keep_types(optimizer: Any, state: Mapping[str, Any]) -> None:
    """torch casts an optimizer's state to its parameter's type; the run's may have been wider."""
    parameters = [item for group in optimizer.param_groups for item in group["params"]]
    saved = [number for group in state["param_groups"] for number in group["params"]]
    for number, parameter in zip(saved, parameters, strict=True):
        for key, value in state["state"].get(number, {}).items():
            now = optimizer.state[parameter].get(key)
            if getattr(now, "dtype", None) != getattr(value, "dtype", None):
                optimizer.state[parameter][key] = value.to(now.device)


def copy(target: Any, value: Any) -> None:
    """Change a tensor's numbers where they lie."""
    import torch

    with torch.no_grad():
        target.copy_(value)
