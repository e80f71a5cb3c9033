"""Git's objects as bytes: their ids, commits, trees, and packs that carry them into a repository.

One pack into one `git unpack-objects` is one process, however many objects there are.
"""

from __future__ import annotations

import hashlib
import re
import time
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flor.errors import GitError
from flor.git.process import Child, Git

PACK_TYPES = {"commit": 1, "tree": 2, "blob": 3}
LOOSE_LIMIT = 256  # more objects than this stay together in a pack
TREE_MODE = b"40000"


@dataclass(frozen=True)
class Object:
    """An object that is to be written."""

    kind: str
    data: bytes
    oid: str


@dataclass(frozen=True)
class Commit:
    """What flor needs to know of a commit."""

    oid: str
    tree: str
    parents: tuple[str, ...]
    seconds: int  # of the committer, since the epoch
    trailers: dict[str, str]

    @property
    def by_flor(self) -> bool:
        return any(name.startswith("Flor-") for name in self.trailers)


@dataclass(frozen=True)
class Format:
    """How a repository names objects: "sha1" or "sha256"."""

    algorithm: str = "sha1"

    def object(self, kind: str, data: bytes) -> Object:
        digest = self._hash(b"%s %d\0" % (kind.encode(), len(data)))
        digest.update(data)
        return Object(kind, data, digest.hexdigest())

    @property
    def null(self) -> str:
        return "0" * (2 * self.size_bytes)

    @property
    def size_bytes(self) -> int:
        return 20 if self.algorithm == "sha1" else 32

    def pack(self, objects: Sequence[Object], level: int) -> bytes:
        parts = [b"PACK", (2).to_bytes(4, "big"), len(objects).to_bytes(4, "big")]
        for item in objects:
            parts.append(_pack_header(PACK_TYPES[item.kind], len(item.data)))
            parts.append(zlib.compress(item.data, level))
        body = b"".join(parts)
        return body + self._hash(body).digest()

    def tree(self, entries: Iterable[tuple[bytes, bytes, str]]) -> Object:
        """The tree of (mode, name, object id)."""
        ordered = sorted(entries, key=lambda e: e[1] + (b"/" if e[0] == TREE_MODE else b""))
        data = b"".join(b"%s %s\0%s" % (m, name, bytes.fromhex(oid)) for m, name, oid in ordered)
        return self.object("tree", data)

    def entries(self, tree: bytes) -> list[tuple[bytes, bytes, str]]:
        """(mode, name, object id) of a tree's bytes."""
        found, at = [], 0
        while at < len(tree):
            end = tree.index(b"\0", at)
            mode, name = tree[at:end].split(b" ", 1)
            at = end + 1 + self.size_bytes
            found.append((mode, name, tree[end + 1 : at].hex()))
        return found

    def commit(
        self, tree: str, parents: Sequence[str], identity: tuple[str, str], message: str
    ) -> Object:
        """A commit of this moment."""
        now = time.localtime()
        offset = now.tm_gmtoff // 60
        zone = f"{'-' if offset < 0 else '+'}{abs(offset) // 60:02}{abs(offset) % 60:02}"
        name, email = (re.sub(r"[<>\x00-\x1f]", "", part).strip() for part in identity)
        who = f"{name} <{email}> {int(time.time())} {zone}"
        lines = [f"tree {tree}", *(f"parent {parent}" for parent in parents)]
        lines += [f"author {who}", f"committer {who}", "", message]
        return self.object("commit", "\n".join(lines).encode(errors="replace"))

    def _hash(self, data: bytes) -> hashlib._Hash:
        if self.algorithm == "sha1":
            return hashlib.sha1(data, usedforsecurity=False)
        return hashlib.sha256(data)


def _pack_header(kind: int, size: int) -> bytes:
    byte, size = kind << 4 | size & 15, size >> 4
    header = bytearray()
    while size:
        header.append(byte | 0x80)
        byte, size = size & 0x7F, size >> 7
    header.append(byte)
    return bytes(header)


def start_writing(git: Git, form: Format, objects: Iterable[Object], *, level: int = 1) -> Child:
    """Start to write the objects; they are there when the child has finished.

    `level` is that of their compression; 0 for what is compressed already.
    """
    unique = list({item.oid: item for item in objects}.values())
    if len(unique) > LOOSE_LIMIT:
        data = form.pack(unique, level=1)
        return git.start("index-pack", "--stdin", data=data)
    # git compresses loose objects anew, so that the pack on the way there need not be.
    return git.start(
        "unpack-objects",
        "-q",
        data=form.pack(unique, level=0),
        settings=[f"core.looseCompression={level}"],
    )


def parse_commit(oid: str, data: bytes) -> Commit:
    head, _, message = data.partition(b"\n\n")
    fields: dict[str, list[str]] = {}
    for line in head.decode(errors="replace").split("\n"):
        name, _, value = line.partition(" ")
        fields.setdefault(name, []).append(value)
    try:
        seconds = int(fields["committer"][0].split()[-2])
        tree = fields["tree"][0]
    except (KeyError, IndexError, ValueError):
        raise GitError(f"commit {oid} is damaged; `git fsck` says more") from None
    return Commit(oid, tree, tuple(fields.get("parent", ())), seconds, trailers(message))


def trailers(message: bytes) -> dict[str, str]:
    """The `Name: value` lines of a message's last paragraph, if it is not the subject."""
    paragraphs = message.decode(errors="replace").strip().split("\n\n")
    if len(paragraphs) < 2:
        return {}
    pairs = (line.partition(": ") for line in paragraphs[-1].split("\n"))
    return {name: value.strip() for name, colon, value in pairs if colon}


def message(subject: str, **named: str) -> str:
    """A commit message: one line, then trailers (`Flor_Run="x"` is `Flor-Run: x`)."""
    line = " ".join("".join(c if c.isprintable() else " " for c in subject).split())
    tail = "".join(f"{name.replace('_', '-')}: {value}\n" for name, value in named.items())
    return f"{line[:200] or 'flor'}\n\n{tail}"
