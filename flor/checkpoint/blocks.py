"""Tensors, arrays, and the numbers and types of their libraries, from nodes and leaves.

The way back from `flor.checkpoint.arrays`. A node can claim no more numbers than its leaf has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flor.errors import DamagedCheckpoint

if TYPE_CHECKING:
    from flor.checkpoint.decoding import Decoder

TENSOR_ALIGNMENT = 64  # as torch has it: elsewhere, vector instructions round the ends differently


def array(decoder: Decoder, node: dict[str, Any]) -> Any:
    import numpy as np

    found = np.frombuffer(decoder.take(node["leaf"]), dtype=np.dtype(node["dtype"]))
    return found.reshape(node["shape"], order=node["order"])


def number(decoder: Decoder, node: dict[str, Any]) -> Any:
    import numpy as np

    content, dtype = bytes.fromhex(node["hex"]), np.dtype(node["dtype"])
    if dtype.kind == "S":  # as arrays, they would lose the zeros at their ends
        return np.bytes_(content)
    if dtype.kind == "U":
        order = "le" if dtype.str[0] == "<" else "be"
        return np.str_(content.decode(f"utf-32-{order}", "surrogatepass"))
    return np.frombuffer(content, dtype=dtype)[0]


def numbers(decoder: Decoder, node: dict[str, Any]) -> list[Any]:
    import numpy as np

    return list(np.frombuffer(decoder.content(node["leaf"]), dtype=np.dtype(node["dtype"])))


def numpy_type(decoder: Decoder, node: dict[str, Any]) -> Any:
    import numpy as np

    return np.dtype(node["text"])


def tensor(decoder: Decoder, node: dict[str, Any]) -> Any:
    import torch

    dtype = _tensor_dtype(node["dtype"])
    content = decoder.take(node["leaf"])
    if len(content):
        flat = torch.frombuffer(content, dtype=dtype)
        if flat.data_ptr() % TENSOR_ALIGNMENT:
            flat = flat.clone()
    else:
        flat = torch.empty(0, dtype=dtype)
    if "stride" in node:
        found = flat.as_strided(node["shape"], node["stride"])
        if found.numel() != flat.numel() or not _is_dense(found):
            raise DamagedCheckpoint(
                f"a tensor of shape {node['shape']} and stride {node['stride']} that is not "
                f"made of its {flat.numel():,} numbers"
            )
    else:
        found = flat.reshape(node["shape"])
    return _dressed(decoder, node, found)


def sparse(decoder: Decoder, node: dict[str, Any]) -> Any:
    import torch

    indices, values = (decoder.decode(part) for part in node["of"])
    found = torch.sparse_coo_tensor(
        indices, values, node["shape"], is_coalesced=True, check_invariants=True
    )
    return _dressed(decoder, node, found)


def meta(decoder: Decoder, node: dict[str, Any]) -> Any:
    import torch

    dtype = _tensor_dtype(node["dtype"])
    return _dressed(decoder, node, torch.empty(node["shape"], dtype=dtype, device="meta"))


def _dressed(decoder: Decoder, node: dict[str, Any], found: Any) -> Any:
    import torch

    if node.get("type") == "Parameter":
        found = torch.nn.Parameter(found, requires_grad=node.get("grad") is not None)
    elif node.get("grad") == "leaf":
        found.requires_grad_()
    gradient = decoder.decode(node.get("gradient"))
    if isinstance(gradient, torch.Tensor):
        found.grad = gradient
    return found


def torch_value(decoder: Decoder, node: dict[str, Any]) -> Any:
    import torch

    if node["type"] == "Size":
        return torch.Size(node["items"])
    if node["type"] == "device":
        return torch.device(node["text"])
    return _torch_constant(node["text"].removeprefix("torch."), torch.dtype)


def _torch_constant(name: str, kind: type) -> Any:
    import torch

    found = vars(torch)[name]
    if not isinstance(found, kind):
        raise TypeError(f"torch.{name} is no {kind.__name__}")
    return found


def _tensor_dtype(name: str) -> Any:
    import torch

    if "q" in name:  # quantized: their numbers mean nothing without a scale, and crash torch
        raise DamagedCheckpoint(f"a tensor of {name!r:.80}")
    return _torch_constant(name, torch.dtype)


def _is_dense(tensor: Any) -> bool:
    """Whether no number of its memory stands in two places, nor in none."""
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    return bool(tensor.permute(order).is_contiguous())
