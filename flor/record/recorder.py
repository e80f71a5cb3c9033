"""Records one run: `log`, `arg` and `loop` become lines of its journal.

The hot path is `log` of a float: one dictionary look-up, one format, one write. Whatever goes
wrong in here is said once on stderr; the training goes on.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from time import perf_counter
from types import FrameType
from typing import Any, TypeVar

from flor.objects import ObjectStore
from flor.record import values
from flor.record.ending import is_interactive
from flor.record.journal import Journal
from flor.record.loops import (
    CHUNK,
    MAX_LABEL,
    Level,
    Loop,
    Times,
    current,
    is_label,
    length,
    make_loop,
)

T = TypeVar("T")

SiteKey = tuple[str, int]
"""A name and a line; the file is told by the owner of the frame that logs."""


class Recorder:
    """Writes the records of this process to one journal."""

    def __init__(
        self,
        journal: Journal,
        objects: ObjectStore,
        root: Path,
        began: float,
        warn: Callable[[str], None],
    ) -> None:
        self._journal = journal
        self._write = journal.write
        self._objects = objects
        self._root = f"{root}/"
        self._warn = warn
        self._sites: dict[SiteKey, tuple[object, int]] = {}
        self._site_numbers: dict[tuple[str, str, int, bool], int] = {}
        self._args: dict[tuple[str, int, int], str] = {}
        self._lock = threading.RLock()
        self._loops = 0
        self._scopes = 0
        self._top = Level(0, "", None)
        self._top.announced, self._top.unsaid = True, False
        self._main_level = self._top
        self._main_thread = threading.main_thread()
        self.began = began
        self.before_first_loop: Callable[[], None] | None = None
        # Asking for `f_code` raises an audit event, which costs more than the rest of `log`;
        # but the cells of a notebook all have the same globals.
        self._owner_of = attrgetter("f_code" if is_interactive() else "f_globals")
        self.log = self._make_log()

    # --- records -----------------------------------------------------------------------------

    def _make_log(self) -> Callable[[str, Any, FrameType], None]:
        """`log(name, value, frame)`. A closure over locals: it is the hot path."""
        sites, write, here, nothing = self._sites, self._write, current.get, None
        owner_of = self._owner_of

        def log(name: str, value: Any, frame: FrameType) -> None:
            try:
                owner, site = sites.get((name, frame.f_lineno), (nothing, 0))
                if owner is not owner_of(frame):
                    site = self._new_site(name, frame)
                level = here(nothing) or self._main_level
                if level.unsaid:
                    self._say(level)
                if type(value) is float:
                    text = repr(value)
                    if text[-1] in "fn":
                        text = values.encode_float(value)
                    write(b"[%d,%d,%d,%b]\n" % (site, level.id, level.iteration, text.encode()))
                    return
                text, kind = self._encode(name, value)
                tail = f',"{kind}"]\n' if kind else "]\n"
                write(f"[{site},{level.id},{level.iteration},{text}{tail}".encode())
            except Exception as error:  # noqa: BLE001 - the shield: recording never stops a training
                self.shield(f"flor.log({name!r}, …)", error)

        return log

    def arg(self, name: str, value: Any, source: str, frame: FrameType) -> None:
        """Record the value of an argument, once for each context in which it is read."""
        try:
            level = current.get() or self._main_level
            text, kind = self._encode(name, value)
            key = (name, level.id, level.iteration)
            if self._args.get(key) == text:
                return
            self._args[key] = text
            site = self._new_site(name, frame, arg=True, source=source)
            if level.unsaid:
                self._say(level)
            tail = f',"{kind}"]\n' if kind else "]\n"
            self._write(f"[{site},{level.id},{level.iteration},{text}{tail}".encode())
        except Exception as error:  # noqa: BLE001 - the shield
            self.shield(f"flor.arg({name!r}, …)", error)

    def emit(self, line: dict[str, Any]) -> None:
        """Append an object line."""
        self._write((json.dumps(line) + "\n").encode())

    def elapsed(self) -> float:
        return round(perf_counter() - self.began, 6)

    # --- loops -------------------------------------------------------------------------------

    def loop(self, name: str, iterable: Iterable[T]) -> Loop[T]:
        return make_loop(iterable, lambda items: self._iterate(str(name), items))

    def _iterate(self, name: str, iterable: Iterable[T]) -> Generator[T, None, None]:
        try:
            outer = current.get()
            level = self._enter(name, outer)
            times = Times(level.id, level.started, self.emit)
        except Exception as error:  # noqa: BLE001 - the shield: the loop runs without being recorded
            self.shield(f"flor.loop({name!r}, …)", error)
            yield from iterable
            return
        level.size = length(iterable)
        each, add = times.each, times.each.append
        done = False
        last = level.started
        begun = 0
        try:
            for index, item in enumerate(iterable):
                level.iteration = index
                begun = index + 1
                kind = type(item)
                if is_label(kind) and not (kind is int and item == index):
                    level.label = item
                    level.has_label = level.unsaid = True
                else:
                    level.has_label = False
                    level.unsaid = not level.announced
                current.set(level)
                yield item
                time = perf_counter()
                add(time - last)
                last = time
                if time > times.flush_at or len(each) >= CHUNK:
                    self._flush(level, times, time)
            done = True
        finally:
            self._leave(level, outer, times, begun, last, done)

    def _enter(self, name: str, outer: Level | None) -> Level:
        parent = outer or self._main_level
        if parent is self._top and self.before_first_loop is not None:
            self.before_first_loop()
            self.before_first_loop = None
        with self._lock:
            self._loops += 1
            level = Level(self._loops, name, parent)
        level.started = perf_counter()
        if threading.current_thread() is self._main_thread:
            self._main_level = level
        return level

    def _leave(
        self, level: Level, outer: Level | None, times: Times, begun: int, last: float, done: bool
    ) -> None:
        level.finished = True
        around = level.parent
        while around is not None and around.finished:  # loops advanced in turn, as in zip, end so
            around = around.parent
        if current.get() is level:
            current.set(around if outer is not None and around is not self._top else None)
        if self._main_level is level:
            self._main_level = around or self._top
        try:
            level.has_label = False
            level.unsaid = not level.announced
            time = perf_counter()
            if not done and len(times.each) + times.first < begun:
                times.each.append(time - last)  # the iteration that `break` or an exception ended
            self._flush(level, times, time)
            at = round(time - self.began, 6)
            self.emit({"t": "loop_end", "id": level.id, "n": begun, "at": at, "done": done})
        except Exception as error:  # noqa: BLE001 - the shield
            self.shield(f"the end of flor.loop({level.name!r}, …)", error)

    def _flush(self, level: Level, times: Times, time: float) -> None:
        try:
            if not level.announced:
                self._say(level)
            times.flush(time)
        except Exception as error:  # noqa: BLE001 - the shield
            self.shield(f"the timing of flor.loop({level.name!r}, …)", error)

    def _say(self, level: Level) -> None:
        """Write what a record in this level refers to and is not in the journal yet."""
        with self._lock:
            self._say_locked(level)

    def _say_locked(self, level: Level) -> None:
        parent = level.parent
        if parent is not None and parent.unsaid:
            self._say_locked(parent)
        if not level.announced:
            level.announced = True
            self.emit(
                {
                    "t": "loop",
                    "id": level.id,
                    "name": level.name,
                    "parent": parent.id if parent is not None else 0,
                    "iteration": level.parent_iteration,
                    "len": level.size,
                    "at": round(level.started - self.began, 6),
                }
            )
        if level.has_label:
            level.has_label = False
            label = values.encode_scalar(level.label)
            if label is not None and len(label[0]) <= MAX_LABEL:
                where = f'"loop": {level.id}, "iteration": {level.iteration}'
                self._write(f'{{"t": "value", {where}, "value": {label[0]}}}\n'.encode())
        level.unsaid = False

    def here(self) -> tuple[int, int]:
        """The loop and iteration that the calling thread is in; both are in the journal."""
        level = current.get() or self._main_level
        if level.unsaid:
            self._say(level)
        return level.id, level.iteration

    # --- scopes ------------------------------------------------------------------------------

    def scope(self, names: list[str]) -> Callable[[], None]:
        """`flor.checkpointing` began; the result ends it."""
        with self._lock:
            self._scopes += 1
            number = self._scopes
        loop, iteration = self.here()
        at = self.elapsed()
        line = {"t": "scope", "id": number, "names": names, "loop": loop, "iteration": iteration}
        self.emit(line | {"at": at})
        return lambda: self.emit({"t": "scope_end", "id": number, "at": self.elapsed()})

    # --- details -----------------------------------------------------------------------------

    def shield(self, what: str, error: Exception) -> None:
        self._warn(f"{what} was not recorded: {type(error).__name__}: {error}")

    def _encode(self, name: str, value: Any) -> values.Encoded:
        try:
            return values.encode_scalar(value) or values.encode(value, self._objects.put)
        except values.Unstorable as error:
            reason = str(error)
        except Exception as error:  # noqa: BLE001 - a foreign type may raise anything while it is read
            reason = f"cannot be read: {type(error).__name__}: {error}"
        self._warn(
            f"the value of {name!r} {reason}, which flor cannot store; its repr is kept instead. "
            "Log a number, text, list, dict, array or image"
        )
        return values.as_text(value)

    def _new_site(
        self, name: str, frame: FrameType, *, arg: bool = False, source: str | None = None
    ) -> int:
        """The number of the statement that logs, written to the journal when it is new."""
        if type(name) is not str:
            name = str(name)
        code, line = frame.f_code, frame.f_lineno
        file = code.co_filename.removeprefix(self._root)
        with self._lock:
            number = self._site_numbers.get((name, file, line, arg))
            if number is None:
                number = len(self._site_numbers) + 1
                site = {"t": "site", "id": number, "name": name, "file": file, "line": line}
                site |= {"func": code.co_name, "arg": arg}
                self.emit(site | ({"source": source} if arg else {}))
                self._site_numbers[name, file, line, arg] = number
        if not arg:
            self._sites[name, line] = self._owner_of(frame), number
        return number


def warn_on_stderr(said: set[str], text: str) -> bool:
    """Say a warning once; whether it was new."""
    if text in said:
        return False
    said.add(text)
    with suppress(Exception):  # there may be no stderr, and nobody to tell
        sys.stderr.write(f"flor: {text}\n")
    return True
