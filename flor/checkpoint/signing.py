"""Tells the user's own pickles from those of others: reading a pickle can run any code.

A key that never leaves the user's home signs what flor pickles. A checkpoint whose signature does
not fit was written by somebody else, or elsewhere; restoring it asks first.

The signature covers the bytes of the pickles, which are all that can run code. What a pickle refers
to (tensors, arrays, other objects of the manifest) is not covered: who can write to the store can
exchange that, as any other data of the checkpoint.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

KEY_BYTES = 32


def digest(content: bytes | memoryview) -> str:
    """Of a pickle."""
    return hashlib.blake2b(content, digest_size=32).hexdigest()


def sign(digests: Iterable[str]) -> str | None:
    """A signature over the digests of pickles; None if this user can keep no key."""
    key = _key(create=True)
    return None if key is None else _signature(key, digests)


def is_own(signature: str | None, digests: Iterable[str]) -> bool:
    """Whether this user signed them on this machine."""
    key = _key(create=False)
    if key is None or not isinstance(signature, str):
        return False
    given = signature.encode("utf-8", "surrogatepass")  # of texts, it takes ASCII only
    return hmac.compare_digest(given, _signature(key, digests).encode())


def _signature(key: bytes, digests: Iterable[str]) -> str:
    return hmac.new(key, "\n".join(digests).encode(), "sha256").hexdigest()


def key_path() -> Path:
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "flor" / "key"


def _key(*, create: bool) -> bytes | None:
    try:
        path = key_path()
        key = _read(path)
        if create and key is None:
            _create(path)
            key = _read(path)
    except (OSError, RuntimeError):  # no home, or a read-only one
        return None
    return key


def _read(path: Path) -> bytes | None:
    """The key; None if there is none, or a torn one, which signs nothing."""
    try:
        key = path.read_bytes()
    except FileNotFoundError:
        return None
    return key if len(key) == KEY_BYTES else None


def _create(path: Path) -> None:
    """Whoever is first makes the key; the others use it. A torn one is replaced."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    partial = path.with_name(f".key.{os.getpid()}-{secrets.token_hex(4)}")
    fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        try:
            os.write(fd, secrets.token_bytes(KEY_BYTES))
            os.fsync(fd)
        finally:
            os.close(fd)
        try:
            os.link(partial, path)
        except FileExistsError:
            if _read(path) is None:
                partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
