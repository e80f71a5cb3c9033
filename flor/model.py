"""The nouns of flor: frozen, pure data that every module may import.

Nothing here opens a file, reads the clock or knows of a database. Each type has a JSON form;
`from_json(to_json(x)) == x`.
"""

from __future__ import annotations

import enum
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

JOURNAL_FORMAT = 1


class Status(str, enum.Enum):
    """How a run stands. `killed` covers signals, Ctrl-C and machines that went away."""

    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    KILLED = "killed"


class Kind(enum.IntEnum):
    """What sort of value a record holds; the `value_type` of the logs relation."""

    NONE = 0
    BOOL = 1
    INT = 2
    FLOAT = 3
    STR = 4
    JSON = 5  # list or dict
    OBJECT = 6  # tensor, array, image…: the bytes are in the object store, a preview is here
    TEXT = 7  # could not be stored; this is its repr
    DATETIME = 8


class Step(NamedTuple):
    """One level of a loop context: iteration `iteration` of the loop `name`.

    `value` is what the loop yielded, where that is a scalar and not the iteration's own number.
    """

    name: str
    iteration: int
    value: Any = None


Context = tuple[Step, ...]
"""The loops around a record, outermost first. `()` is the top level of the script."""


@dataclass(frozen=True)
class LeftOut:
    """A file of the working tree that is not in the version, and why."""

    path: str
    size_bytes: int
    reason: str  # "too large", "budget", "may hold secrets", "nested repository", "unreadable"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> LeftOut:
        return cls(**data)


@dataclass(frozen=True)
class Version:
    """The code that a run executed: a commit on the `flor` branch."""

    commit: str
    tree: str
    left_out: tuple[LeftOut, ...] = ()
    partial: bool = False  # only the script and its imports, because the whole tree took too long
    user_branch: str | None = None  # the user's branch; None when HEAD is detached
    user_commit: str | None = None  # None on an unborn branch
    user_dirty: bool = False  # the code that ran differs from the user's commit

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"left_out": [item.to_json() for item in self.left_out]}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Version:
        left_out = tuple(LeftOut.from_json(item) for item in data["left_out"])
        return cls(**{**data, "left_out": left_out})


@dataclass(frozen=True)
class Run:
    """One execution of one script."""

    run_id: str
    projid: str
    tstamp: str  # UTC, ISO 8601 with microseconds and a trailing Z
    filename: str  # the script, relative to the project
    argv: tuple[str, ...] = ()
    cwd: str = ""
    host: str = ""
    user: str = ""
    pid: int = 0
    python: str = ""
    platform: str = ""
    parent: str | None = None  # the run whose process started this one
    rank: int | None = None  # of a distributed job

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"argv": list(self.argv)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Run:
        known = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
        return cls(**{**known, "argv": tuple(known.get("argv", ()))})


@dataclass(frozen=True)
class DataFile:
    """A file (or S3 object) that a run read."""

    path: str
    size_bytes: int | None = None
    mtime_ns: int | None = None
    digest: str | None = None  # "blake2b:…", "sampled:…" for very large files, "etag:…" on S3
    declared: bool = False  # by flor.data, not only seen being opened
    note: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> DataFile:
        return cls(**data)


@dataclass(frozen=True)
class LogRecord:
    """One value, where it was logged and what was around it."""

    name: str
    value: Any
    kind: Kind
    filename: str
    line: int
    context: Context = ()
    is_arg: bool = False


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run's objects at one place of its main loop; listed in its journal.

    `loop` and `iteration` are the main loop's, as records have them; `boundary` is the nested loop
    at whose end the state was taken, None for the end of the iteration.
    """

    number: int
    manifest: str  # the digest of the object that describes it
    loop: int
    iteration: int
    boundary: str | None
    final: bool
    size_bytes: int  # of all that it holds
    new_bytes: int  # that no earlier checkpoint of the store held
    stall_seconds: float  # that the training waited
    write_seconds: float  # in the background
    at: float  # seconds since the run began
    names: tuple[str, ...] = ()  # of the declared objects that it holds
    scope: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"names": list(self.names)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Checkpoint:
        known = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
        return cls(**{**known, "names": tuple(known.get("names", ()))})


@dataclass(frozen=True)
class StoredValue:
    """A value too large for a cell: its kind, its preview, and where its bytes are."""

    media: str  # "npy", "png", "json", "bytes"
    type: str  # "ndarray", "torch.Tensor", "PIL.Image"…
    digest: str
    size_bytes: int
    preview: dict[str, Any] = field(default_factory=dict)  # shape, dtype, min, max, mean…

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> StoredValue:
        return cls(**data)

    def __repr__(self) -> str:
        shape = self.preview.get("shape")
        parts = [] if shape is None else ["x".join(str(side) for side in shape) or "scalar"]
        parts += [str(self.preview[key]) for key in ("dtype",) if key in self.preview]
        parts.append(f"{self.size_bytes:,} bytes")
        return f"<{self.type} {' '.join(parts)} {self.digest[:10]}>"
