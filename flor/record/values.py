"""Any Python value to one line of JSON, keeping its type, without importing anything for it.

A library's types are recognised only if the script has imported that library already.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import io
import json
import math
import os
import sys
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from flor.model import StoredValue

INLINE_BYTES = 64 * 1024  # longer JSON goes to the object store
INLINE_ELEMENTS = 1000  # a larger array inside a list or dict makes the whole thing an object
TEXT_CHARACTERS = 1000
MAX_DEPTH = 32

Encoded = tuple[str, str | None]
"""The JSON text of a value, and its kind where the JSON alone does not tell."""

Put = Callable[[bytes], str]
"""Stores bytes and returns their digest."""


class Unstorable(Exception):
    """The value has no form that could be read back."""


def encode(value: Any, put: Put) -> Encoded:
    """The journal form of a value.

    Raises Unstorable for what can only be kept as its repr (see `as_text`).
    """
    scalar = encode_scalar(value)
    if scalar is not None:
        return scalar
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _stored(bytes(value), "bytes", type(value).__name__, {}, put)
    array = _as_array(value)
    if array is not None:
        return _encode_array(array, value, put)
    picture = _as_png(value)
    if picture is not None:
        content, preview = picture
        return _stored(content, "png", _type_name(value), preview, put)
    if _is_from(value, "pandas", "DataFrame") or _is_from(value, "pandas", "Series"):
        content = value.to_json(orient="split", date_format="iso").encode()
        return _stored(content, "json", _type_name(value), {"shape": list(value.shape)}, put)
    text = json.dumps(plain(value), ensure_ascii=True)
    if len(text) > INLINE_BYTES:
        return _stored(text.encode(), "json", type(value).__name__, {"len": len(value)}, put)
    return text, None


def encode_scalar(value: Any) -> Encoded | None:
    """The journal form of a number, string, date or None; None for anything else."""
    if value is None:
        return "null", None
    if isinstance(value, enum.Enum):
        return encode_scalar(value.value) or (json.dumps(value.name), None)
    if isinstance(value, bool):
        return ("true" if value else "false"), None
    if isinstance(value, int):
        return int.__repr__(value), None
    if isinstance(value, float):
        return encode_float(value), None
    if isinstance(value, str):
        return json.dumps(str.__str__(value)), None
    if isinstance(value, (datetime.date, datetime.time)):
        return json.dumps(value.isoformat()), "datetime"
    if isinstance(value, os.PathLike):
        return json.dumps(os.fsdecode(value)), None
    if isinstance(value, decimal.Decimal):
        number = float(value)
        fits = value.is_finite() == math.isfinite(number)
        return (encode_float(number) if fits else json.dumps(str(value))), None
    return _encode_zero_dimensional(value)


def encode_float(value: float) -> str:
    text = float.__repr__(value)
    if text[-1] in "fn":  # inf, -inf, nan
        if math.isnan(value):
            return "NaN"
        return "Infinity" if value > 0 else "-Infinity"
    return text


def as_text(value: Any) -> Encoded:
    """The repr of a value that cannot be stored, cut to a line's length."""
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 - a broken __repr__ is the user's, the record is ours
        text = f"<{_type_name(value)} whose repr failed: {type(error).__name__}>"
    return json.dumps(text[:TEXT_CHARACTERS]), "text"


def plain(value: Any, depth: int = 0) -> Any:
    """Lists, dicts and scalars only, or Unstorable."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if depth > MAX_DEPTH:
        raise Unstorable(f"is nested more than {MAX_DEPTH} levels deep")
    scalar = encode_scalar(value)
    if scalar is not None:
        return json.loads(scalar[0])
    if isinstance(value, Mapping):
        found = {_key(key): plain(item, depth + 1) for key, item in value.items()}
        if len(found) != len(value):
            raise Unstorable("has keys that are the same as text")
        return found
    if isinstance(value, (list, tuple)):
        return [plain(item, depth + 1) for item in value]
    if isinstance(value, range) and len(value) > INLINE_BYTES:
        raise Unstorable(f"is a range of {len(value):,} numbers")
    if isinstance(value, (AbstractSet, range)):
        items = [plain(item, depth + 1) for item in value]
        return items if isinstance(value, range) else sorted(items, key=repr)
    array = _as_array(value)
    if array is not None:
        if array.size > INLINE_ELEMENTS:
            raise Unstorable(f"holds an array of {array.size} elements; log the array by itself")
        return plain(array.tolist(), depth + 1)
    fields = getattr(type(value), "__dataclass_fields__", None)
    if fields is not None:
        return {name: plain(getattr(value, name), depth + 1) for name in fields}
    raise Unstorable(f"is a {_type_name(value)}")


def _key(key: Any) -> str:
    return key if isinstance(key, str) else str(key)


def _encode_zero_dimensional(value: Any) -> Encoded | None:
    """Numpy scalars, and arrays and tensors of no dimension, as the number that they are."""
    if getattr(value, "shape", None) != () or not hasattr(value, "item"):
        return None
    if getattr(value, "dtype", None) is not None and _is_from(value, "numpy", "datetime64"):
        return json.dumps(str(value)), "datetime"
    item = value.item()
    if isinstance(item, complex) or getattr(item, "shape", None) == ():
        return None
    return encode_scalar(item)


def _as_array(value: Any) -> Any:
    """A numpy array with the value's content, or None. bfloat16 widens to float32, exactly."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    if isinstance(value, numpy.ma.MaskedArray):
        return value.astype(float).filled(numpy.nan) if value.dtype.kind in "fiub" else None
    if isinstance(value, numpy.ndarray):
        return None if value.dtype.hasobject else value
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        tensor = value.detach()
        if tensor.is_sparse or tensor.is_quantized:
            tensor = tensor.dequantize() if tensor.is_quantized else tensor.to_dense()
        if tensor.dtype == torch.bfloat16 or "float8" in str(tensor.dtype):
            tensor = tensor.float()
        return tensor.resolve_conj().resolve_neg().cpu().numpy()
    if hasattr(value, "__array__") and hasattr(value, "dtype") and hasattr(value, "shape"):
        array = numpy.asarray(value)
        return None if array.dtype.hasobject or _is_from(value, "pandas", "") else array
    return None


def _encode_array(array: Any, value: Any, put: Put) -> Encoded:
    numpy = sys.modules["numpy"]
    buffer = io.BytesIO()
    numpy.save(buffer, array, allow_pickle=False)
    preview: dict[str, Any] = {"shape": list(array.shape), "dtype": str(value.dtype)}
    if array.size and array.dtype.kind in "fiub":
        with numpy.errstate(all="ignore"):
            found = array.min(), array.max(), array.mean(dtype="float64")
        preview |= dict(zip(("min", "max", "mean"), (float(x) for x in found), strict=True))
    return _stored(buffer.getvalue(), "npy", _type_name(value), preview, put)


def _as_png(value: Any) -> tuple[bytes, dict[str, Any]] | None:
    buffer = io.BytesIO()
    if _is_from(value, "PIL", "Image"):
        image = value if value.mode in ("1", "L", "P", "RGB", "RGBA", "I;16") else None
        (image or value.convert("RGB")).save(buffer, format="PNG")
        return buffer.getvalue(), {"shape": [value.height, value.width], "dtype": value.mode}
    if _is_from(value, "matplotlib", "Figure"):
        value.savefig(buffer, format="png")
        return buffer.getvalue(), {}
    return None


def _is_from(value: Any, package: str, class_name: str) -> bool:
    """Whether a base of the value's type is that class of that package (any class, if empty)."""
    return any(
        base.__module__.split(".")[0] == package and class_name in ("", base.__name__)
        for base in type(value).__mro__
    )


def _stored(
    content: bytes, media: str, type_name: str, preview: dict[str, Any], put: Put
) -> Encoded:
    stored = StoredValue(media, type_name, put(content), len(content), preview)
    return json.dumps(stored.to_json()), "object"


def _type_name(value: Any) -> str:
    kind = type(value)
    package = kind.__module__.split(".")[0]
    short = {"numpy": "", "builtins": ""}.get(package, f"{package}.")
    return f"{short}{kind.__name__}"
