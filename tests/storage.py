"""Checkpoints and logged values made by hand, as a training would leave them."""

from __future__ import annotations

import hashlib
import json
import os
import time
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from flor.checkpoint.manifest import Leaf, Manifest
from flor.config import Settings
from flor.model import Checkpoint, Step
from flor.objects import ObjectStore
from tests.conftest import JournalWriter


def digest_of(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=32).hexdigest()


class Storage:
    """A project's objects and the journals that list them."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.store = ObjectStore(settings.objects_dir)

    def run(self, run_id: str, end: bool = True) -> JournalWriter:
        """A run with one main loop, `epoch`, whose number is 1."""
        journal = JournalWriter(self.settings.runs_dir, run_id)
        journal.run()
        journal.loop(1, "epoch")
        if end:
            journal.end()
        return journal

    def checkpoint(
        self, journal: JournalWriter, iteration: int, tensors: Sequence[bytes], loop: int = 1
    ) -> str:
        """Store a checkpoint's objects and manifest, and list it; the manifest's digest."""
        leaves = tuple(Leaf(self.store.put(t), 0, len(t), zlib.crc32(t)) for t in tensors)
        place = (Step("epoch", iteration),)
        number = loop * 1000 + iteration
        manifest = Manifest(journal.run_id, number, place, "step", False, {}, leaves=leaves)
        digest = self.store.put(manifest.to_bytes())
        listed = Checkpoint(
            *(number, digest, loop, iteration, "step", False),
            *(sum(map(len, tensors)), 0, 0.01, 0.1, 1.0 + iteration, ("model",)),
        )
        journal.lines({"t": "checkpoint", **listed.to_json()})
        return digest

    def training(
        self,
        run_id: str,
        iterations: int,
        size_bytes: int = 1000,
        shared: Iterable[bytes] = (),
        end: bool = True,
    ) -> list[str]:
        """A run with a checkpoint in each iteration: one tensor of its own, and those shared."""
        journal = self.run(run_id, end)
        tensors = [f"{run_id}/{i}".encode().ljust(size_bytes, b".") for i in range(iterations)]
        return [self.checkpoint(journal, i, [t, *shared]) for i, t in enumerate(tensors)]

    def value(self, journal: JournalWriter, content: bytes) -> str:
        """Log an array; its digest."""
        digest = self.store.put(content)
        stored = {"media": "npy", "type": "ndarray", "digest": digest}
        site = journal.site("image")
        journal.log(site, {**stored, "size_bytes": len(content), "preview": {}}, 0, 0, "object")
        return digest

    def age(self, seconds: float = 7200, digests: Iterable[str] | None = None) -> None:
        """Let objects, or all files, have been used so long ago."""
        then = time.time() - seconds
        paths = self.settings.objects_dir.glob("*/*")
        if digests is not None:
            paths = map(self.store.path, digests)
        for path in paths:
            os.utime(path, (then, then))

    def here(self) -> set[str]:
        """The objects in the folder."""
        paths = self.settings.objects_dir.glob("*/*")
        return {path.parent.name + path.name for path in paths if path.name[0] != "."}

    def needs(self, manifest: str) -> set[str]:
        """What a checkpoint needs, its manifest included."""
        return {manifest, *Manifest.from_bytes(self.store.path(manifest).read_bytes()).digests}

    def pin(self, **content: object) -> None:
        """A pin as some process wrote it."""
        folder = self.settings.flor_dir / "pins"
        folder.mkdir(exist_ok=True)
        (folder / "one.json").write_text(json.dumps(content))


def irregular(kind: str, path: Path) -> None:
    """Put something that never ends, or is no file, in a file's place."""
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
