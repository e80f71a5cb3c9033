"""What a loop draws its items from: torch's DataLoader, or an iterable of the user's own."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from flor.checkpoint import arrays
from flor.checkpoint.capturable import OPAQUE, is_library, type_name
from flor.checkpoint.manifest import Node
from flor.checkpoint.traces import Traces

if TYPE_CHECKING:
    from flor.checkpoint.encoding import Encoder

IN_WORKERS = ("dataset", "collate_fn")  # each worker has a copy of its own


def is_loader(value: Any) -> bool:
    """Whether it is torch's DataLoader, without a state_dict of its own."""
    data = sys.modules.get("torch.utils.data")
    return (
        data is not None
        and isinstance(value, data.DataLoader)
        and not hasattr(value, "load_state_dict")
    )


def is_source(value: Any) -> bool:
    """Whether what a loop runs over may remember where it is."""
    if is_loader(value):
        return True
    kind = type(value)
    plain = issubclass(kind, OPAQUE) or arrays.is_block(value)
    return not plain and not is_library(kind) and hasattr(kind, "__weakref__")


def is_loader_node(node: Node) -> bool:
    """Whether it is that of torch's DataLoader, or of a class made of it."""
    return bool(node["is_torch"])


def encode_loader(encoder: Encoder, loader: Any, name: str) -> dict[str, Any]:
    """What decides which items it gives the next time."""
    found = Traces(encoder, name)
    if is_loader(loader):
        found.look(loader, but=IN_WORKERS if loader.num_workers else ())
    else:
        found.look(loader, depth=1)
    node: dict[str, Any] = {"t": "loader", "type": type_name(type(loader))}
    node |= {"is_torch": is_loader(loader), "state": {"t": "map", "of": found.found}}
    if is_loader(loader) and has_lasting_workers(loader):
        node["workers"] = loader._iterator is not None
    return node


def has_lasting_workers(loader: Any) -> bool:
    return bool(getattr(loader, "persistent_workers", False)) and loader.num_workers > 0
