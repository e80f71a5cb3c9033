"""Large values on disk, named by their content.

`objects/ab/cdef…` holds the bytes whose blake2b-256 is `abcdef…`. An object is written once, under
a temporary name first, so that whoever finds it finds all of it. Its modification time is when it
was used last: who relies on an object that is there already touches it, and nothing that was used
lately is removed. Standard library only: a training writes objects too.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
from pathlib import Path
from stat import S_ISREG
from typing import BinaryIO, Protocol

from flor.errors import ObjectMissing

DIGEST_LENGTH = 64
HEX_DIGITS = frozenset("0123456789abcdef")
NOT_REGULAR = "a pipe, device, folder or the like and no regular file"


class Remote(Protocol):
    """Where objects are that are not in the folder."""

    def fetch(self, digest: str, path: Path) -> bool:
        """Bring an object to `path`, whole and checked, or tell that it is not there either.

        Raises BucketError when that cannot be known.
        """


class ObjectStore:
    """Content-addressed files in one folder, which appears with the first object.

    What is not in the folder is brought there from `remote`, if there is one, when it is asked for.
    """

    def __init__(self, folder: Path, remote: Remote | None = None) -> None:
        self.folder = folder
        self._remote = remote

    def put(self, content: bytes) -> str:
        """Store `content` and return its digest; what is there already is not written again."""
        digest = hashlib.blake2b(content, digest_size=32).hexdigest()
        if self.use(digest, len(content)):
            return digest
        path = self.path(digest)
        partial = self.partial(digest)
        try:
            partial.write_bytes(content)
            partial.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                partial.unlink()
            raise
        return digest

    def use(self, digest: str, size_bytes: int) -> bool:
        """Whether the object is here with that size; if so, it counts as used just now."""
        path = self.path(digest)
        if _size(path) != size_bytes:
            return False
        try:
            os.utime(path)
        except FileNotFoundError:
            return False  # it was removed just now
        except OSError:
            pass  # somebody else's file
        # Who removes it takes its name away first: while the name stands, the new time is seen.
        return _size(path) == size_bytes

    def partial(self, digest: str) -> Path:
        """A new name beside the object's, to write to before it is moved to its own."""
        return partial_of(self.path(digest))

    def get(self, digest: str) -> bytes:
        """The bytes of an object. Raises ObjectMissing if they are not there or not intact."""
        path = self.local(digest)
        try:
            with open_object(path) as file:
                content = file.read()
        except OSError as error:
            raise ObjectMissing(f"cannot read {path}: {error.strerror}") from error
        found = hashlib.blake2b(content, digest_size=32).hexdigest()
        if found != digest:
            raise ObjectMissing(
                f"{path} is damaged: its content has digest {found}; remove the file and copy it "
                "again from the machine that logged it"
            )
        return content

    def local(self, digest: str) -> Path:
        """The object's file, brought here if need be. Raises ObjectMissing or BucketError.

        Its size and content are checked by whoever reads it. It counts as used just now.
        """
        path = self.path(digest)
        if path.is_file():
            with contextlib.suppress(OSError):
                os.utime(path)
            return path
        if self._remote is not None and self._remote.fetch(digest, path):
            return path
        if path.exists():
            raise ObjectMissing(
                f"{path} is {NOT_REGULAR}; remove it, and copy the object there from the machine "
                "that wrote it"
            )
        raise ObjectMissing(
            f"object {digest} is not in {self.folder}"
            + (" nor in the bucket" if self._remote is not None else "")
            + "; copy it there from the machine that wrote it"
        )

    def has(self, digest: str) -> bool:
        """Whether the object is here; its content is checked by `get`, not here."""
        return self.path(digest).is_file()

    def path(self, digest: str) -> Path:
        """Where the object is or would be."""
        # A digest comes from a journal, which is anybody's file: it must not lead elsewhere.
        if not is_digest(digest):
            raise ObjectMissing(f"{digest!r} is not the digest of an object (64 hex digits)")
        return self.folder / digest[:2] / digest[2:]


def is_digest(text: str) -> bool:
    """Whether the text can be the name of an object."""
    return len(text) == DIGEST_LENGTH and HEX_DIGITS.issuperset(text)


def open_object(path: Path) -> BinaryIO:
    """The file, to be read. Raises OSError, also for what is no file: reading that may not end."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, f"it is {NOT_REGULAR}", str(path))
        return open(fd, "rb")
    except BaseException:
        os.close(fd)
        raise


def partial_of(path: Path) -> Path:
    """A new name beside `path`, whose folder appears."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")


def _size(path: Path) -> int | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_size if S_ISREG(found.st_mode) else None
