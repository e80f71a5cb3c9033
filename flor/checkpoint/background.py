"""Work beside the training, in short steps, on a thread that is never there while a process forks.

A fork copies one thread only: whatever another one held would be held for ever in the child. So
work is a generator; before a fork the thread ends between two of its steps, and afterwards another
thread goes on with the same generator. At the end of a run the training's own thread does the rest.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress

Task = Iterator[None]
"""Work; each step takes a few milliseconds."""

STOP_SECONDS = 30.0  # for one step; it takes milliseconds unless a disk hangs
NICE = 10


class Background:
    """Runs tasks in order. `unseen` surrounds what the thread does."""

    def __init__(
        self, unseen: Callable[[], AbstractContextManager[None]], warn: Callable[[str], None]
    ) -> None:
        self._unseen = unseen
        self._warn = warn
        self._tasks: deque[Task] = deque()
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self.cpu_seconds = 0.0  # of all steps so far

    @property
    def busy(self) -> bool:
        return bool(self._tasks)

    def submit(self, task: Task) -> None:
        with self._lock:
            self._tasks.append(task)
            if self._thread is None:
                self._start()

    def stop(self) -> None:
        """End the thread after its present step."""
        thread = self._thread
        if thread is None or os.getpid() != self._pid:
            return
        self._stopping = True
        thread.join(STOP_SECONDS)
        if thread.is_alive():
            return  # a disk that hangs; the thread ends when it answers
        self._thread = None

    def start(self) -> None:
        """Go on with what is left."""
        with self._lock:
            if self._thread is None and self._tasks and os.getpid() == self._pid:
                self._start()

    def drain(self, tick: Callable[[], None] | None = None) -> None:
        """Do what is left right here; `tick` is called between steps, and may raise."""
        self.stop()
        if self._thread is not None or os.getpid() != self._pid:
            return
        with self._unseen():
            while self._tasks:
                self._step()
                if tick is not None:
                    tick()

    def abandon(self) -> None:
        """Forget what is left; in a forked child, where it is the parent's."""
        self._tasks.clear()
        self._thread = None

    def _start(self) -> None:
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name="flor-checkpoints", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        if sys.platform == "linux":
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        with self._unseen():
            while not self._stopping:
                if self._tasks:
                    self._step()
                    continue
                with self._lock:
                    if not self._tasks:
                        self._thread = None
                        return

    def _step(self) -> None:
        began = time.thread_time()
        task = self._tasks[0]
        try:
            next(task)
        except StopIteration:
            self._tasks.popleft()
        except Exception as error:  # noqa: BLE001 - the shield: recording never stops a training
            self._tasks.popleft()
            self._warn(f"a checkpoint could not be written: {type(error).__name__}: {error}")
        finally:
            self.cpu_seconds += time.thread_time() - began
