"""Tensors, arrays and random generators → nodes: the values whose bytes are copied as they are."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from flor.checkpoint.capturable import Uncapturable, identity, type_name

if TYPE_CHECKING:
    from flor.checkpoint.encoding import Encoder

BIT_GENERATORS = {"PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"}
PLAIN_TENSORS = {"torch.Tensor", "torch.nn.parameter.Parameter", "torch.nn.parameter.Buffer"}


def is_block(value: Any) -> bool:
    """Whether it is a tensor or an array of numbers."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(value, getattr(torch, "Tensor", ())):
        return True
    is_array = numpy is not None and type(value) is getattr(numpy, "ndarray", None)
    return is_array and not value.dtype.hasobject


def is_data(value: Any) -> bool:
    """Whether it is a tensor, or of NumPy or a random generator: what `encode` has nodes for."""
    package = type(value).__module__.partition(".")[0]
    return is_block(value) or (
        package in ("numpy", "torch")
        and not isinstance(value, type)
        and (hasattr(value, "dtype") or "Generator" in type(value).__name__)
    )


def is_generator(value: Any) -> bool:
    """Whether it is a random generator that `encode` has nodes for."""
    kind = type(value)
    package = kind.__module__.partition(".")[0]
    if package == "random":
        return hasattr(kind, "getstate")
    return package in ("numpy", "torch") and kind.__name__ in ("Generator", "RandomState")


def size_of(value: Any) -> int:
    """Bytes of a tensor or an array."""
    return int(value.nbytes)


def address(block: Any) -> int:
    """Where the first of its numbers lies; of a tensor without such a place, something its own."""
    if not hasattr(block, "data_ptr"):
        return int(block.__array_interface__["data"][0])
    return int(block.data_ptr()) if _is_strided(block) else identity(block)


def origin(block: Any) -> int:
    """Where the memory begins that it is a view of: tensors and arrays of one share it."""
    while isinstance(getattr(block, "base", None), type(block)):
        block = block.base
    if is_block(getattr(block, "base", None)):
        block = block.base  # an array of a tensor
    if hasattr(block, "untyped_storage") and _is_strided(block):
        return int(block.untyped_storage().data_ptr())
    return address(block)


def _is_strided(tensor: Any) -> bool:
    return tensor.layout is sys.modules["torch"].strided and tensor.device.type != "meta"


def encode(encoder: Encoder, value: Any, name: str) -> dict[str, Any] | None:
    """The node of a tensor, array or generator; None for anything else. May raise Uncapturable."""
    package = type(value).__module__.partition(".")[0]
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, getattr(torch, "Tensor", ())):
        return encode_tensor(encoder, value, name)
    if package == "numpy" and "numpy" in sys.modules:
        return _encode_numpy(encoder, value, name)
    if package == "torch":
        return _encode_torch(encoder, value, name)
    if package == "random" and hasattr(value, "getstate"):
        state = encoder.encode(value.getstate(), name)
        return {"t": "generator", "library": "random", "state": state}
    return None


def encode_tensor(encoder: Encoder, value: Any, name: str) -> dict[str, Any]:
    """The node of a tensor. Its graph is not part of it.

    Hundreds of them make a state, while the training waits: what is usual is asked for once.
    """
    if encoder.pure and identity(value) in encoder.covered:
        raise Uncapturable("belongs to a module")
    dtype = value.dtype
    label = labels.get(type(value))
    if label is None:
        label = labels[type(value)] = _label(value)
    known = _dtypes.get(dtype)
    if known is None:
        known = _dtypes[dtype] = _describe(dtype)
    node: dict[str, Any] = {"t": "tensor", "dtype": known[0], "shape": list(value.shape)}
    if label:
        node["type"] = label
    on_cpu = value.is_cpu
    if not on_cpu:
        node["device"] = str(value.device)
    if value.requires_grad:
        node["grad"] = "leaf" if value.is_leaf else "graph"
        value = value.detach()
    if known[1] or value.layout is not sys.modules["torch"].strided:
        return node | _unusual(encoder, value, name)
    if value.is_meta:
        return node | {"t": "meta"}
    if known[2] or value.is_neg():
        value = value.resolve_conj().resolve_neg()
    if not value.is_contiguous():
        if _is_dense(value):
            node["stride"] = list(value.stride())
        else:
            value = value.contiguous()
    size_bytes = value.nbytes
    if size_bytes == 0:
        node["leaf"] = encoder.staging.put_bytes(b"")
    elif on_cpu:
        address, version = value.data_ptr(), _version(value)
        node["leaf"] = encoder.staging.put_block(address, size_bytes, version, value)
    elif value.is_cuda and encoder.devices is not None:
        node["leaf"] = encoder.devices.put(encoder.staging, value)
    else:
        node["leaf"] = _put_elsewhere(encoder, value)
    return node


labels: dict[type, str] = {}  # tensor types that were seen: what a node says of them
_dtypes: dict[Any, tuple[str, bool, bool]] = {}  # names; of quantized tensors; of complex numbers


def _describe(dtype: Any) -> tuple[str, bool, bool]:
    name = str(dtype).removeprefix("torch.")
    return name, name.startswith(("qint", "quint")), dtype.is_complex


def _label(value: Any) -> str:
    kind = type_name(type(value))
    if kind not in PLAIN_TENSORS:
        kind = _known_subclass(value, kind)
    return kind.rpartition(".")[2] if kind.endswith((".Parameter", ".Buffer")) else ""


def _unusual(encoder: Encoder, value: Any, name: str) -> dict[str, Any]:
    if value.is_quantized:
        raise Uncapturable("is a quantized tensor; capture its `int_repr()` instead")
    if value.layout is not sys.modules["torch"].sparse_coo:
        raise Uncapturable(f"is a tensor with layout {value.layout}")
    value = value.coalesce()
    parts = [value.indices(), value.values()]
    return {"t": "sparse", "of": [encoder.encode(part, name) for part in parts]}


def _known_subclass(value: Any, kind: str) -> str:
    if hasattr(value, "placements") or "ShardedTensor" in kind:
        raise Uncapturable(
            "is sharded over several processes, of which this one has a part only; "
            "checkpoints of sharded models are not supported"
        )
    if type(value).__torch_dispatch__ is not sys.modules["torch"].Tensor.__torch_dispatch__:
        raise Uncapturable(f"is a {kind}, whose bytes cannot be told from outside")
    return "torch.Tensor"


def _put_elsewhere(encoder: Encoder, tensor: Any) -> int:
    """A tensor of a device that cannot be copied in the background, or is not to be."""
    size_bytes = tensor.nbytes
    if encoder.staging.live:
        number = encoder.staging.put_later()
        encoder.staging.arrives(number, size_bytes, lambda: _bytes_of(tensor))
        return number
    on_host = tensor.cpu()
    return encoder.staging.put_block(on_host.data_ptr(), size_bytes, None, on_host)


def _bytes_of(tensor: Any) -> memoryview:
    """A copy on the host, dense as the tensor is."""
    torch = sys.modules["torch"]
    row = tensor.cpu().as_strided((tensor.numel(),), (1,)).view(torch.uint8)
    return memoryview(row.numpy())


def _version(tensor: Any) -> object:
    """The number of changes that torch saw: a hint, for it does not see all."""
    try:
        return tensor._version
    except RuntimeError:  # inference tensors have none
        return None


def _is_dense(tensor: Any) -> bool:
    """Whether its elements fill its memory, in whatever order: channels last, transposed."""
    expected = 1
    for stride, side in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if side == 1:
            continue
        if stride != expected:
            return False
        expected *= side
    return bool(expected == tensor.numel())


def _encode_torch(encoder: Encoder, value: Any, name: str) -> dict[str, Any] | None:
    torch = sys.modules["torch"]
    if isinstance(value, torch.Generator):
        state = encoder.encode(value.get_state(), name)
        device = str(value.device)
        return {"t": "generator", "library": "torch", "device": device, "state": state}
    if isinstance(value, (torch.dtype, torch.device)):
        return {"t": "torch", "type": type(value).__name__, "text": str(value)}
    if isinstance(value, torch.Size):
        return {"t": "torch", "type": "Size", "items": list(value)}
    return None


def encode_numbers(encoder: Encoder, values: list[Any]) -> dict[str, Any] | None:
    """The node of a long list of NumPy's numbers of one type; None for any other list."""
    np = sys.modules.get("numpy")
    kind = type(values[0])
    if np is None or kind.__module__ != "numpy" or not issubclass(kind, (np.number, np.bool_)):
        return None
    if issubclass(kind, np.timedelta64):
        return None  # each has a unit of its own
    content = np.array(values, dtype=kind)
    leaf = encoder.staging.put_bytes(content.tobytes())
    return {"t": "numbers", "dtype": content.dtype.str, "leaf": leaf}


def _encode_numpy(encoder: Encoder, value: Any, name: str) -> dict[str, Any] | None:
    np = sys.modules["numpy"]
    if isinstance(value, np.ndarray):
        if type(value).__name__ not in ("ndarray", "memmap") or not _is_text(value.dtype):
            return None
        # 0-d and strided arrays are copied into rows first.
        order = "F" if value.flags.f_contiguous and not value.flags.c_contiguous else "C"
        block = value if value.flags.forc else np.ascontiguousarray(value)
        node = {"t": "array", "dtype": value.dtype.str, "shape": list(value.shape), "order": order}
        if block.nbytes == 0:
            return node | {"leaf": encoder.staging.put_bytes(b"")}
        address = block.__array_interface__["data"][0]
        return node | {"leaf": encoder.staging.put_block(address, block.nbytes, None, block)}
    if isinstance(value, np.generic) and _is_text(value.dtype):
        return {"t": "number", "dtype": value.dtype.str, "hex": value.tobytes().hex()}
    if isinstance(value, np.dtype) and _is_text(value):
        return {"t": "dtype", "text": value.str}
    random = sys.modules.get("numpy.random")
    if random is None:
        return None
    if isinstance(value, random.RandomState):
        found, library = value.get_state(legacy=False), "numpy.RandomState"
    elif isinstance(value, random.Generator):
        found, library = value.bit_generator.state, "numpy.Generator"
    else:
        return None
    if found["bit_generator"] not in BIT_GENERATORS:
        return None
    node = {"t": "generator", "library": library, "state": encoder.encode(found, name)}
    seeds = getattr(getattr(value, "bit_generator", None), "seed_seq", None)
    if isinstance(seeds, random.SeedSequence):  # its children come from it, not from the state
        parts = [seeds.entropy, list(seeds.spawn_key), seeds.pool_size, seeds.n_children_spawned]
        node["seeds"] = encoder.encode(parts, name)
    return node


def _is_text(dtype: Any) -> bool:
    """Whether the text of the type tells all of it: not of records, objects, others' types."""
    if dtype.hasobject or not dtype.itemsize:
        return False
    return bool(sys.modules["numpy"].dtype(dtype.str) == dtype)
