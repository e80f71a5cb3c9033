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

from flor.signals import is_from_handler

Task = Iterator[None]
"""Work; each step takes a few milliseconds."""

STOP_SECONDS = 30.0  # for one step; it takes milliseconds unless a disk hangs
TICK_SECONDS = 0.1
NICE = 10


class Background:
    """Runs tasks in order. `unseen` surrounds what the thread does."""

    def __init__(
        self, unseen: Callable[[], AbstractContextManager[None]], warn: Callable[[str], None]
    ) -> None:
        self._unseen = unseen
        self._warn = warn
        self._tasks: deque[Task] = deque()
        self._thread: threading.Thread | None = None  # the newest
        self._working = False  # it takes steps
        self._stops = 0  # that wait for their `start`
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._told: set[tuple[type, int | None]] = set()  # kinds of errors
        self.cpu_seconds = 0.0  # of all steps so far

    @property
    def busy(self) -> bool:
        return bool(self._tasks)

    def submit(self, task: Task) -> None:
        with self._lock:
            self._tasks.append(task)
            self._go_on()

    def stop(self) -> None:
        """End the thread after its present step, and have no other until `start`."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._stops += 1
            thread = self._thread
        if thread is not None:
            thread.join(STOP_SECONDS)  # where a disk hangs, it ends when that answers

    def start(self) -> None:
        """Go on with what is left, unless another `stop` waits for its own `start`."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._stops = max(self._stops - 1, 0)  # there may have been no `stop`
            self._go_on()

    def drain(self, tick: Callable[[], None] = lambda: None) -> None:
        """Do what is left right here; `tick` is called between steps, and may raise."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._stops += 1
        try:
            while self._working and self._thread is not None:
                self._thread.join(TICK_SECONDS)
                tick()
            with self._unseen():
                while self._tasks:
                    self._step(self._tasks[0])
                    tick()
        except BaseException:
            with self._lock:
                self._stops -= 1
            raise
        self.start()

    def abandon(self) -> None:
        """Forget what is left; in a forked child, where it is the parent's."""
        if os.getpid() != self._pid:
            self._lock = threading.Lock()  # a thread that is not here may have held it
        with self._lock:
            self._tasks.clear()
            self._thread, self._working = None, False

    def _go_on(self) -> None:
        if self._tasks and not self._working and not self._stops:
            thread = threading.Thread(target=self._work, name="flor-checkpoints", daemon=True)
            self._thread, self._working = thread, True
            try:
                thread.start()
            except RuntimeError:  # no more threads for this process: `drain` does the work
                self._thread, self._working = None, False

    def _work(self) -> None:
        if sys.platform == "linux":
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        try:
            with self._unseen():
                while (task := self._next()) is not None:
                    self._step(task)
        finally:
            with self._lock:
                if self._thread is threading.current_thread():
                    self._working = False  # whatever ended it, nobody waits for it

    def _next(self) -> Task | None:
        """The task of the thread that asks; None if it is to end."""
        with self._lock:
            if self._thread is not threading.current_thread():
                return None  # it hung, and was given up
            if self._tasks and not self._stops:
                return self._tasks[0]
            self._working = False
            return None

    def _step(self, task: Task) -> None:
        began = time.thread_time()
        try:
            next(task)
        except StopIteration:
            self._drop(task)
        except Exception as error:
            self._drop(task)
            if is_from_handler(error):
                raise
            kind = (type(error), getattr(error, "errno", None))
            if kind not in self._told:  # the text holds another path each time
                self._told.add(kind)
                self._warn(f"a checkpoint could not be written: {type(error).__name__}: {error}")
        finally:
            self.cpu_seconds += time.thread_time() - began

    def _drop(self, task: Task) -> None:
        with suppress(ValueError):  # it was abandoned meanwhile
            self._tasks.remove(task)
