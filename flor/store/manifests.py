"""What the checkpoints need: their manifests, read from here or from the bucket."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path

from flor.checkpoint.manifest import Manifest, may_be_one
from flor.errors import BucketError, DamagedCheckpoint
from flor.objects import ObjectStore, is_digest, open_object
from flor.store.bucket import Bucket

MANIFEST_BYTES = 256 * 1024 * 1024  # a larger object is no manifest
FETCHES = 8  # at once


class Manifests:
    """The manifests of checkpoints, from here or from the bucket, each read and checked once."""

    def __init__(
        self,
        folder: Path,
        bucket: Bucket | None,
        remote: Mapping[str, int] | None,
        keep: bool,
        doubts: list[str],
    ) -> None:
        self._store = ObjectStore(folder)
        self._bucket = bucket
        self._remote = remote or {}
        self._blind = bucket is not None and remote is None
        self._keep = keep
        self._doubts = doubts
        self._known: dict[str, frozenset[str] | None] = {}
        self.unreachable: set[str] = set()  # not here, and the bucket does not answer

    def load(self, digests: Iterable[str]) -> None:
        """Read those that are to be had, here or there."""
        away = []
        for digest in digests:
            if digest in self._known:
                continue
            try:
                self._known[digest] = self._objects(digest, self._local(digest))
            except FileNotFoundError:
                self._known[digest] = None
                if digest in self._remote:
                    away.append(digest)
                elif self._blind:
                    self.unreachable.add(digest)
        with ThreadPoolExecutor(FETCHES) as pool:
            for digest, content in zip(away, pool.map(self._fetch, away), strict=True):
                self._known[digest] = self._objects(digest, content)

    def objects(self, digest: str) -> frozenset[str] | None:
        """What the checkpoint needs, its manifest's own object included; None: it is not there."""
        return self._known.get(digest)

    def is_here(self, digest: str) -> bool:
        return self._store.has(digest)

    def guess(self, digest: str) -> Manifest | None:
        """The manifest that an object here may be, listed or not."""
        path = self._store.path(digest)
        with contextlib.suppress(OSError, DamagedCheckpoint), open_object(path) as file:
            beginning = file.read(64)
            if may_be_one(beginning) and path.stat().st_size <= MANIFEST_BYTES:
                return Manifest.from_bytes(beginning + file.read())
        return None

    def _local(self, digest: str) -> bytes | None:
        """The bytes of a manifest that is here; None for a doubt.

        Raises FileNotFoundError if it is not, or only the bucket's is intact.
        """
        path = self._store.path(digest)
        try:
            with open_object(path) as file:
                content = file.read()
        except FileNotFoundError:
            raise
        except OSError as error:
            if digest in self._remote:
                raise FileNotFoundError(path) from error
            self._doubts.append(
                f"the manifest {path} cannot be read: {error.strerror}; mend it, or remove it: "
                "then that checkpoint is given up"
            )
            return None
        if digest in self._remote and blake2b(content, digest_size=32).hexdigest() != digest:
            raise FileNotFoundError(path)
        return content

    def _fetch(self, digest: str) -> bytes | None:
        assert self._bucket is not None
        path = self._store.path(digest)
        try:
            if not self._keep:
                content = self._bucket.read(digest)
            else:
                content = path.read_bytes() if self._bucket.fetch(digest, path) else None
        except (BucketError, OSError) as error:
            self._doubts.append(f"the manifest {digest} cannot be fetched: {error}")
            return None
        if content is None:
            self._doubts.append(f"{self._bucket.url} does not hold {digest} any more")
        return content

    def _objects(self, digest: str, content: bytes | None) -> frozenset[str]:
        if content is None:
            return frozenset({digest})
        try:
            if blake2b(content, digest_size=32).hexdigest() != digest:
                raise DamagedCheckpoint("its content has another digest")
            needed = Manifest.from_bytes(content).digests
        except DamagedCheckpoint as error:
            self._doubts.append(
                f"the manifest {self._store.path(digest)} is damaged: {error}; copy it again from "
                "the machine that wrote it, or remove it: then that checkpoint is given up"
            )
            return frozenset({digest})
        return frozenset({digest, *map(sys.intern, filter(is_digest, needed))})
