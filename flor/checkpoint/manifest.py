"""The document of one checkpoint: what it holds, and where the bytes are.

A manifest is JSON, compressed and stored as an object like any other; the journal's `checkpoint`
line names it and is written last. It holds nodes (see `flor.checkpoint.encoding`), whose bytes are
leaves: places in objects. Nothing here touches a file.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from flor.errors import DamagedCheckpoint
from flor.model import Context, Step

MANIFEST_FORMAT = 1
PACKED = b"flor checkpoint\n"  # begins what is stored; the rest is the document, compressed
PACKING = 1  # the quickest
MOST_BYTES = 2**30  # of a document; nobody's file makes a process take more
ITEMS = 500  # at a time
DOUBTS = (ValueError, KeyError, TypeError, AttributeError, RecursionError, zlib.error)

Node = Any
"""A value as JSON: a scalar as it is, anything else as `{"t": kind, …}`."""


class Leaf(NamedTuple):
    """Bytes of a manifest: `size_bytes` from `offset` of the object `digest`."""

    digest: str
    offset: int
    size_bytes: int
    crc: int  # CRC-32 of these bytes; much faster to check than the digest


@dataclass(frozen=True)
class Frame:
    """The loop-carried variables of one function (or of the script's top level).

    `values` are by path: `best`, `self.best`, `global counter`. `block` are those that the nested
    loop itself changes. The frames of a checkpoint lead from the main loop's to the nested loop's.
    """

    file: str
    func: str
    line: int  # of the loop whose changes these are
    loop: str
    values: dict[str, Node]
    block: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return vars(self) | {"block": list(self.block)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Frame:
        return cls(**{**data, "block": tuple(data["block"])})


class Missing(NamedTuple):
    """What a checkpoint does not hold, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class Manifest:
    """One checkpoint.

    `boundary` is the nested loop at whose end the state was taken, None for the end of the
    iteration itself, and `final` tells that no iteration of the main loop follows.
    """

    run_id: str
    number: int
    place: Context  # the loops around, the main loop's iteration last
    boundary: str | None
    final: bool
    objects: dict[str, Node]
    frames: tuple[Frame, ...] = ()
    rng: dict[str, Node] = field(default_factory=dict)
    entry_rng: dict[str, Node] = field(default_factory=dict)  # when the main loop began
    missing: tuple[Missing, ...] = ()
    leaves: tuple[Leaf, ...] = ()
    pickles: tuple[int, ...] = ()  # the leaves that would be unpickled
    signature: str | None = None  # over their bytes

    @property
    def digests(self) -> set[str]:
        """The objects that it needs."""
        return {leaf.digest for leaf in self.leaves}

    @property
    def size_bytes(self) -> int:
        """Of everything that it holds, shared or not."""
        return sum(leaf.size_bytes for leaf in set(self.leaves))

    def to_bytes(self) -> bytes:
        """The document."""
        return b"".join(self._pieces())

    def packed(self) -> Generator[None, None, bytes]:
        """The steps of making the bytes that are stored; the last one returns them."""
        packer = zlib.compressobj(PACKING)
        found = [PACKED]
        for piece in self._pieces():
            found.append(packer.compress(piece))
            yield
        return b"".join([*found, packer.flush()])

    def _pieces(self) -> Iterator[bytes]:
        data = vars(self) | {
            "format": MANIFEST_FORMAT,
            "place": [list(step) for step in self.place],
            "frames": [frame.to_json() for frame in self.frames],
            "missing": [list(item) for item in self.missing],
            "leaves": [list(leaf) for leaf in self.leaves],
            "pickles": list(self.pickles),
        }
        # Lone surrogates stand as they are: escaped, two in a row would be read as one letter.
        for text in _texts(data):
            yield text.encode("utf-8", "surrogatepass")

    @classmethod
    def from_bytes(cls, content: bytes) -> Manifest:
        """From the document or what is stored of it.

        Raises DamagedCheckpoint for what no flor of this format wrote.
        """
        try:
            data = json.loads(_unpacked(content))
            if data.pop("format") != MANIFEST_FORMAT:
                raise DamagedCheckpoint(
                    "the checkpoint's manifest has another format; upgrade flor "
                    "(pip install -U flor-hindsight)"
                )
            manifest = cls(
                **{
                    **data,
                    "place": tuple(Step(*step) for step in data["place"]),
                    "frames": tuple(Frame.from_json(frame) for frame in data["frames"]),
                    "missing": tuple(Missing(*item) for item in data["missing"]),
                    "leaves": tuple(Leaf(*leaf) for leaf in data["leaves"]),
                    "pickles": tuple(data["pickles"]),
                }
            )
            _insist_on_types(manifest)
            return manifest
        except DOUBTS as error:
            raise DamagedCheckpoint(f"not a manifest of a checkpoint: {error}") from error


def may_be_one(beginning: bytes) -> bool:
    """Whether an object that begins so may be a manifest."""
    return beginning[:1] == b"{" or beginning.startswith(PACKED)


def _unpacked(content: bytes) -> bytes:
    """The document. Raises zlib.error, ValueError."""
    if not content.startswith(PACKED):
        return content
    unpacker = zlib.decompressobj()
    found = unpacker.decompress(content[len(PACKED) :], MOST_BYTES)
    if not unpacker.eof:
        raise ValueError("its end is missing, or it is too long")
    return found


def _texts(value: Any) -> Iterator[str]:
    """JSON, in pieces that take a millisecond: nothing else runs meanwhile."""
    if not _is_long(value):
        yield _dumps(value)
        return
    is_dict = isinstance(value, dict)
    items = list(value.items()) if is_dict else value
    yield "{" if is_dict else "["
    for start in range(0, len(items), ITEMS):
        some = items[start : start + ITEMS]
        comma = "," if start else ""
        if not any(_is_long(item[1] if is_dict else item) for item in some):
            yield comma + _dumps(dict(some) if is_dict else some)[1:-1]
            continue
        for item in some:
            yield comma + (f"{_dumps(item[0])}:" if is_dict else "")
            yield from _texts(item[1] if is_dict else item)
            comma = ","
    yield "}" if is_dict else "]"


def _dumps(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _is_long(value: Any, depth: int = 8) -> bool:
    """Whether there is much in it, as far as a short look tells."""
    if not isinstance(value, (dict, list)) or not depth:
        return False
    if len(value) > ITEMS:
        return True
    inside = value.values() if isinstance(value, dict) else value
    return any(_is_long(item, depth - 1) for item in inside)


def _insist_on_types(manifest: Manifest) -> None:
    """What readers take for a text, a number or a mapping must be one. Raises TypeError."""
    steps, frames, leaves = manifest.place, manifest.frames, manifest.leaves
    of_type: dict[type, list[Any]] = {
        str: [
            manifest.run_id,
            *(step.name for step in steps),
            *(text for item in manifest.missing for text in item),
            *(leaf.digest for leaf in leaves),
            *(text for frame in frames for text in (frame.file, frame.func, frame.loop)),
            *(name for frame in frames for name in frame.block),
        ],
        int: [
            manifest.number,
            *(step.iteration for step in steps),
            *(number for leaf in leaves for number in leaf[1:]),
            *(frame.line for frame in frames),
            *manifest.pickles,
        ],
        dict: [manifest.objects, manifest.rng, manifest.entry_rng, *(f.values for f in frames)],
        bool: [manifest.final],
    }
    for kind, values in of_type.items():
        for value in values:
            if type(value) is not kind:
                raise TypeError(f"{str(value)[:80]!r} is no {kind.__name__}")
