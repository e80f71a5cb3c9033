"""Pins: checkpoints that a long operation needs for as long as it lives.

A pin is a file `.flor/pins/….json` that names manifests and the process that wrote it. Pins are
written, and checkpoints retired, under one lock: whoever finds a checkpoint after pinning it keeps
it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flor.config import Settings
from flor.errors import StoreError

LOCK = ".lock"


@dataclass(frozen=True)
class PinFile:
    """What a pin says. `error` tells why it cannot be read."""

    path: Path
    manifests: frozenset[str] = frozenset()
    why: str = ""
    alive: bool = True
    error: str | None = None


@contextlib.contextmanager
def pin(settings: Settings, manifests: Iterable[str], why: str) -> Iterator[None]:
    """Keep the checkpoints of these manifests, with all that they need, while inside.

    Look whether they are there inside, not before. Raises StoreError.
    """
    folder = _folder(settings)
    path = folder / f"{os.getpid()}-{secrets.token_hex(4)}.json"
    content = {
        "manifests": sorted(set(manifests)),
        **{"pid": os.getpid(), "host": os.uname().nodename, "began": _began(os.getpid())},
        "why": why,
    }
    try:
        with pins_held(settings):
            partial = path.with_suffix(".partial")
            partial.write_text(json.dumps(content), encoding="utf-8")
            partial.replace(path)
    except OSError as error:
        raise StoreError(
            f"cannot keep checkpoints with {path}: {error.strerror}; make the folder writable"
        ) from error
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()


def read_pins(settings: Settings) -> list[PinFile]:
    """All pins, those of dead processes included. Raises StoreError."""
    try:
        paths = sorted(settings.flor_dir.joinpath("pins").glob("*.json"))
    except OSError as error:
        raise StoreError(f"cannot list {settings.flor_dir / 'pins'}: {error}") from error
    return [found for path in paths if (found := _read(path)) is not None]


@contextlib.contextmanager
def pins_held(settings: Settings) -> Iterator[None]:
    """No pin is written by anybody else while inside."""
    with locked(_folder(settings) / LOCK, wait=True):
        yield


@contextlib.contextmanager
def locked(path: Path, *, wait: bool) -> Iterator[bool]:
    """Hold the lock on a file; False if, without waiting, somebody else does. Raises StoreError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StoreError(f"cannot open {path}: {error.strerror}; make it writable") from error
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            held = True
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise StoreError(f"cannot lock {path}: {error.strerror}") from error
            held = False
        yield held
    finally:
        os.close(fd)


def _folder(settings: Settings) -> Path:
    return settings.flor_dir / "pins"


def _read(path: Path) -> PinFile | None:
    """None if it was removed just now."""
    try:
        data: Any = json.loads(path.read_bytes())
        pid, host = int(data["pid"]), str(data["host"])
        manifests = frozenset(str(digest) for digest in data["manifests"])
        why = str(data.get("why", ""))
        alive = host != os.uname().nodename or _is_alive(pid, data.get("began"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return PinFile(path, error=f"{type(error).__name__}: {error}")
    return PinFile(path, manifests, why, alive)


def _is_alive(pid: int, began: object) -> bool:
    """Whether that process lives; another one that got its number later is not it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        pass  # somebody else's
    now = _began(pid)
    return began is None or now is None or now == began


def _began(pid: int) -> int | None:
    """When a process began, in the system's own count; None if nobody tells."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return int(text.rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None
