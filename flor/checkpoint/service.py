"""What the checkpoints of one run share: the background, the store, the journal."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import count
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

from flor.checkpoint.background import Background
from flor.checkpoint.manifest import Missing
from flor.checkpoint.variables import Sources
from flor.config import Settings
from flor.model import Checkpoint, Context
from flor.objects import ObjectStore

if TYPE_CHECKING:
    from flor.record.loops import Level

TELL_SECONDS = 2.0  # a longer wait for the last checkpoint is explained
QUICK_SECONDS = 10.0  # for what is pending when the training has failed
GROWTH = 0.1  # of the limit; so much more, and the store is tidied again


class Service:
    """What scopes have in common. `place` puts a loop into the journal and tells where it is."""

    def __init__(
        self,
        settings: Settings,
        run_id: str,
        emit: Callable[[dict[str, Any]], None],
        elapsed: Callable[[], float],
        place: Callable[[Level], Context],
        unseen: Callable[[], AbstractContextManager[None]],
        warn: Callable[[str], None],
    ) -> None:
        self.settings = settings
        self.run_id = run_id
        self.root = str(settings.root)
        self.overhead = settings.overhead
        self.elapsed = elapsed
        self.announce = place
        self.warn = warn
        self.store = ObjectStore(settings.objects_dir)
        self.sources = Sources()
        self.background = Background(unseen, warn)
        self._emit = emit
        self._numbers = count(1)
        self._fork_waits = 0.0
        self._named: set[str] = set()
        self._stored_bytes: int | None = None
        self._tidied_at = 0

    def next_number(self) -> int:
        return next(self._numbers)

    def prepare(
        self, code: CodeType, line: int, around: tuple[CodeType, int] | None = None
    ) -> None:
        """Analyse a loop in the background."""
        self.background.submit(self.sources.prepare(code, line, around))

    def list_checkpoint(self, checkpoint: Checkpoint) -> None:
        """The last step of a checkpoint: from here on it is one."""
        self._emit({"t": "checkpoint"} | checkpoint.to_json())
        self._watch_size(checkpoint.new_bytes)

    def warn_missing(self, item: Missing) -> None:
        """Name once what checkpoints do not hold."""
        name = item.name.partition("[")[0]  # once for a list of many
        if name not in self._named and "on a guess" not in item.reason:
            self._named.add(name)
            self.warn(
                f"checkpoints do not hold {item.name}: it {item.reason}. A replay that needs it "
                "runs the loop from its beginning instead of resuming in the middle"
            )

    # --- forks and ends -------------------------------------------------------------------------

    def before_fork(self) -> None:
        began = time.perf_counter()
        self.background.stop()
        self._fork_waits += time.perf_counter() - began

    def after_fork_in_parent(self) -> None:
        self.background.start()

    def take_fork_waits(self) -> float:
        """Seconds that forks have waited for the background since the last time."""
        waited, self._fork_waits = self._fork_waits, 0.0
        return waited

    def drain(self, *, quick: bool = False) -> None:
        """Write what is pending, here and now."""
        began, told = time.monotonic(), False

        def tick() -> None:
            nonlocal told
            waited = time.monotonic() - began
            if quick and waited > QUICK_SECONDS:
                self.background.abandon()
                self.warn("the training failed before its last checkpoint was written")
            elif waited > TELL_SECONDS and not told:
                told = True
                self.warn("writing the last checkpoint; Ctrl-C leaves it out")

        try:
            self.background.drain(tick)
        except KeyboardInterrupt:
            self.background.abandon()
            raise

    # --- the size of the store ------------------------------------------------------------------

    def _watch_size(self, new_bytes: int) -> None:
        """Have the store tidied, by another process, when it outgrows its limit."""
        if self._stored_bytes is None:
            self._stored_bytes = sum(_sizes(self.settings.objects_dir))
        else:
            self._stored_bytes += new_bytes
        limit = int(self.settings.objects_limit_gb * 1e9)
        if self._stored_bytes > limit and self._stored_bytes > self._tidied_at:
            self._tidied_at = self._stored_bytes + int(GROWTH * limit)
            _tidy(self.settings.root)


def _sizes(folder: Path) -> Iterator[int]:
    for path in folder.glob("*/*"):
        try:
            yield path.stat().st_size
        except OSError:
            continue


def _tidy(root: Path) -> None:
    """`flor gc --auto`, on its own: neither its end nor its failure is this process's concern."""
    import subprocess

    command = [sys.executable, "-m", "flor", "gc", "--auto"]
    subprocess.run(
        ["/bin/sh", "-c", '"$0" "$@" </dev/null >/dev/null 2>&1 &', *command],
        cwd=root,
        env={**os.environ, "FLOR_DISABLE": ""},
        start_new_session=True,
        check=False,
    )
