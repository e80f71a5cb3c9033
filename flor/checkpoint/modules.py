"""Objects with `state_dict`, and what modules and optimizers hold besides it.

`state_dict` is what a training saves; it is not all that a continued training needs. Of a module
go with it: the versions of its parts, by which they read states of older ones, parameters that are
frozen, gradients that are still to be used, buffers that are not saved, the training mode, and
plain attributes (a dropout rate that is annealed, a hidden state that is carried on). Of an
optimizer: parameters that belong to no captured module.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import TYPE_CHECKING, Any

from flor.checkpoint import arrays
from flor.checkpoint.capturable import UNFIT, Uncapturable, identity, type_name
from flor.checkpoint.frames import attributes
from flor.checkpoint.manifest import Node
from flor.checkpoint.traces import Traces

if TYPE_CHECKING:
    from flor.checkpoint.encoding import Encoder

SHARDED = {"FullyShardedDataParallel", "FSDPModule", "DeepSpeedEngine"}
SIMPLE = (
    *(bool, int, float, complex, str, bytes, bytearray, type(None)),
    *(list, dict, tuple, set, frozenset, deque),
)


def hands_on_state(value: Any) -> bool:
    """Whether this very object does, if only by what it wraps. It is asked, which may run code."""
    return callable(getattr(value, "state_dict", None)) and hasattr(value, "load_state_dict")


def rank(value: Any) -> int:
    """Modules come first: what else there is may refer to them."""
    torch = sys.modules.get("torch")
    return 0 if torch is not None and isinstance(value, torch.nn.Module) else 1


def encode_state(encoder: Encoder, value: Any, name: str) -> dict[str, Any]:
    """The node of an object that has `state_dict` and `load_state_dict`."""
    if SHARDED & {base.__name__ for base in type(value).__mro__}:
        raise Uncapturable(
            "is sharded over several processes, and its state_dict would wait for all of them; "
            "checkpoints of sharded models are not supported"
        )
    node: dict[str, Any] = {"t": "state", "type": type_name(type(value))}
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.nn.Module):
        return node | _module(encoder, value, name, torch)
    node["of"] = encoder.encode(value.state_dict(), name)
    if torch is None:
        return node
    if isinstance(value, torch.optim.Optimizer):
        node["params"] = _own_parameters(encoder, value, name)
        node["shapes"] = shapes_of(value)
    optimizer = attributes(value).get("optimizer")  # a property of that name may do anything
    if isinstance(optimizer, torch.optim.Optimizer):
        node["optimizer"] = encoder.encode(optimizer, f"{name}.optimizer")
        node["parts"] = parts_of(value)
    return node


def shapes_of(optimizer: Any) -> list[list[list[int]]]:
    """The shapes of the parameters of each group."""
    return [[list(item.shape) for item in group["params"]] for group in optimizer.param_groups]


def parts_of(scheduler: Any) -> list[str]:
    """The types of the schedulers that a scheduler is made of."""
    return [type(part).__qualname__ for part in attributes(scheduler).get("_schedulers", ())]


def _module(encoder: Encoder, module: Any, name: str, torch: Any) -> dict[str, Any]:
    state = module.state_dict()
    found: dict[str, Any] = {"of": encoder.encode(state, name)}
    metadata = getattr(state, "_metadata", None)
    if metadata:
        found["metadata"] = {key: _version(encoder, item, name) for key, item in metadata.items()}
    parameters = dict(module.named_parameters())
    encoder.covered.update(map(identity, parameters.values()), map(identity, module.buffers()))
    frozen = [key for key, item in parameters.items() if not item.requires_grad]
    if frozen:
        found["frozen"] = frozen
    kept = {key: item for key, item in parameters.items() if encoder.keeps_gradient(item)}
    if kept:
        found["grads"] = {
            key: encoder.encode(item.grad, f"{name}.{key}.grad")
            for key, item in kept.items()
            if item.grad is not None
        }
    buffers = {key: item for key, item in module.named_buffers() if key not in state}
    if buffers:
        found["buffers"] = {key: encoder.encode(b, f"{name}.{key}") for key, b in buffers.items()}
    submodules = dict(module.named_modules())
    found["training"] = module.training
    other = [key for key, item in submodules.items() if item.training != module.training]
    if other:
        found["otherwise"] = other
    internal = torch.nn.Module().__dict__.keys()
    for part, look in (("attributes", _attributes), ("traces", _traces)):
        held = {
            key: plain
            for key, item in submodules.items()
            if (plain := look(encoder, item, internal, f"{name}.{key}" if key else name))
        }
        if held:
            found[part] = held
    return found


def _version(encoder: Encoder, metadata: dict[str, Any], name: str) -> Node:
    """What a part of a module says about its state: a number, unless it is more than that."""
    usual = type(metadata) is dict and len(metadata) == 1
    version = metadata.get("version") if usual else None
    return version if type(version) is int else encoder.encode(metadata, f"{name}._metadata")


def _attributes(encoder: Encoder, module: Any, internal: Any, name: str) -> dict[str, Node]:
    """What a module holds in attributes of its own, as far as that is plain data."""
    found = {}
    for key, item in list(vars(module).items()):
        if key in internal:
            continue
        if item is None or type(item) in (bool, float, str):
            found[key] = item
            continue
        if not (isinstance(item, SIMPLE) or _is_data(item)):
            continue
        node = encoder.tentative(item, f"{name}.{key}")
        if node is not UNFIT:  # else a hook, a class, a configuration: not what changes
            found[key] = node
    return found


def _traces(encoder: Encoder, module: Any, internal: Any, name: str) -> dict[str, Node]:
    """What the objects remember that a module holds, beside modules and plain data."""
    found = Traces(encoder, name)
    for key, item in list(vars(module).items()):
        if key not in internal and not _is_data(item):
            found.into(item, key)
    return found.found


def _is_data(value: Any) -> bool:
    return arrays.is_data(value) or arrays.is_generator(value)


def _own_parameters(encoder: Encoder, optimizer: Any, name: str) -> list[list[Any]]:
    """Parameters that the optimizer changes and no captured module has, with their gradients."""
    found = []
    for group, options in enumerate(optimizer.param_groups):
        for index, item in enumerate(options["params"]):
            if identity(item) not in encoder.covered:
                path = f"{name}.params[{group}][{index}]"
                grad = item.grad if encoder.keeps_gradient(item) else None
                parts = [encoder.encode(item.detach(), path), encoder.encode(grad, f"{path}.grad")]
                found.append([group, index, *parts])
    return found
