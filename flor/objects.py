"""Large values on disk, named by their content.

`objects/ab/cdef…` holds the bytes whose blake2b-256 is `abcdef…`. An object is written once, under
a temporary name first, so that whoever finds it finds all of it. Standard library only: a training
writes objects too.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from pathlib import Path

from flor.errors import ObjectMissing

DIGEST_LENGTH = 64


class ObjectStore:
    """Content-addressed files in one folder, which appears with the first object."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, content: bytes) -> str:
        """Store `content` and return its digest; what is there already is not written again."""
        digest = hashlib.blake2b(content, digest_size=32).hexdigest()
        path = self.path(digest)
        if _size(path) == len(content):
            return digest
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
        try:
            partial.write_bytes(content)
            partial.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                partial.unlink()
            raise
        return digest

    def get(self, digest: str) -> bytes:
        """The bytes of an object. Raises ObjectMissing if they are not there or not intact."""
        path = self.path(digest)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise ObjectMissing(
                f"object {digest} is not in {self.folder} ({error.strerror}); copy it there from "
                "the machine that logged it"
            ) from error
        found = hashlib.blake2b(content, digest_size=32).hexdigest()
        if found != digest:
            raise ObjectMissing(
                f"{path} is damaged: its content has digest {found}; remove the file and copy it "
                "again from the machine that logged it"
            )
        return content

    def has(self, digest: str) -> bool:
        """Whether the object is here; its content is checked by `get`, not here."""
        return self.path(digest).is_file()

    def path(self, digest: str) -> Path:
        """Where the object is or would be."""
        # A digest comes from a journal, which is anybody's file: it must not lead elsewhere.
        if len(digest) != DIGEST_LENGTH or set(digest) - set("0123456789abcdef"):
            raise ObjectMissing(f"{digest!r} is not the digest of an object (64 hex digits)")
        return self.folder / digest[:2] / digest[2:]


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None
