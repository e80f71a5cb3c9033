"""Whether modules, optimizers and schedulers fit a state, and what `load_state_dict` leaves out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flor.checkpoint import modules
from flor.errors import RestoreError

SHOWN = 3  # differences in a message


def check_module(name: str, module: Any, state: Mapping[str, Any]) -> None:
    """Raise RestoreError where a module's parameters are others than those of the state."""
    from torch.nn.parameter import is_lazy

    own = module.state_dict()
    absent = [key for key in own if key not in state]
    unknown = [key for key in state if key not in own]
    different = [
        f"{key}: {tuple(state[key].shape)}, not {tuple(own[key].shape)}"
        for key in own
        if key in state
        and not is_lazy(own[key])
        and getattr(own[key], "shape", None) != getattr(state[key], "shape", None)
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


def dress_module(
    module: Any, node: Mapping[str, Any], grads: Mapping[str, Any], buffers: Mapping[str, Any]
) -> None:
    """Give a module what its `state_dict` leaves out."""
    frozen, other = set(node.get("frozen", ())), set(node.get("otherwise", ()))
    for key, parameter in module.named_parameters():
        if parameter.is_leaf:
            parameter.requires_grad_(key not in frozen)
        grad = grads.get(key)
        parameter.grad = None if grad is None else grad.to(parameter.device)
    own = dict(module.named_buffers())
    for key, value in buffers.items():
        if key in own and own[key].shape == value.shape:
            copy(own[key], value)
    for key, inner in module.named_modules():
        inner.training = node["training"] != (key in other)


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
