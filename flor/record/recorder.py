"""Records one run: `log`, `arg` and `loop` become lines of its journal.

The hot path is `log` of a float: one dictionary look-up, one format, one write. Whatever goes
wrong in here is said once on stderr; the training goes on.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from time import perf_counter
from types import FrameType
from typing import Any, TypeVar

from flor.errors import with_single_stops
from flor.model import Context, Step
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
from flor.signals import is_from_handler, quiet

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
        self._args: dict[str, tuple[int, int, str]] = {}
        self._lock = threading.RLock()
        self._next_site = itertools.count(1)
        self._next_loop = itertools.count(1)
        self._next_scope = itertools.count(1)
        self._top = Level(0, "", None, self)
        self._top.announced, self._top.unsaid = True, False
        self._main_level = self._top
        self._main_thread = threading.main_thread()
        self._live: set[Level] = set()
        self._ended = False
        self.began = began
        self.before_first_loop: Callable[[], None] | None = None
        self.open_scope: Callable[[int, dict[str, Any]], Any] | None = None
        self._scopes: list[Any] = []  # the checkpointing blocks that are open, innermost last
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
                self.shield("flor.log", name, error)

        return log

    def arg(self, name: str, value: Any, source: str, frame: FrameType) -> None:
        """Record the value of an argument, once for each context in which it is read."""
        try:
            level = current.get() or self._main_level
            text, kind = self._encode(name, value)
            if level.unsaid:
                self._say(level)
            latest = (level.id, level.iteration, text)
            if self._args.get(name) == latest:
                return
            self._args[name] = latest
            site = self._new_site(name, frame, arg=True, source=source)
            tail = f',"{kind}"]\n' if kind else "]\n"
            self._write(f"[{site},{level.id},{level.iteration},{text}{tail}".encode())
        except Exception as error:  # noqa: BLE001 - the shield
            self.shield("flor.arg", name, error)

    def emit(self, line: dict[str, Any]) -> None:
        """Append an object line."""
        self._write((json.dumps(line) + "\n").encode())

    def elapsed(self) -> float:
        return round(perf_counter() - self.began, 6)

    def end(self) -> None:
        """Another recorder follows, while loops may go on: it adopts those that log."""
        self._ended = True
        for level in list(self._live):
            level.orphan()

    def inherit(self, parent: Recorder) -> None:
        """In a forked child: go on where the parent was when it forked."""
        parent.end()
        self._main_thread = threading.current_thread()
        self._main_level = current.get() or parent._main_level
        if self._main_level.parent is None:
            self._main_level = self._top

    # --- loops -------------------------------------------------------------------------------

    def loop(self, name: str, iterable: Iterable[T]) -> Loop[T]:
        return make_loop(iterable, lambda items: self._iterate(name, items))

    def _iterate(  # noqa: PLR0915 - one generator: each call more costs every iteration
        self, name: str, iterable: Iterable[T]
    ) -> Iterator[T]:
        """The items, one a generator step. Nothing here keeps an item alive after it is yielded:
        scripts that delete a batch mean it."""
        try:
            outer = current.get()
            level = self._enter(str(name), outer)
            level.size = length(iterable)
            self._watch(level, sys._getframe(1), iterable)
            times = Times(level.started)
        except Exception as error:  # noqa: BLE001 - the shield: the loop runs without being recorded
            self.shield("flor.loop", name, error)
            yield from iterable
            return
        each, add = times.each, times.each.append
        done = False
        last = level.started
        index = -1
        main_of = level.main_of
        try:
            advance = iter(iterable).__next__
            while True:
                try:
                    box = [advance()]
                except StopIteration:
                    break
                index += 1
                level.iteration = index
                kind = type(box[0])
                if is_label(kind) and not (kind is int and box[0] == index):
                    level.label = box[0]
                    level.labelled = level.label_unsaid = level.unsaid = True
                else:
                    level.labelled = level.label_unsaid = False
                    level.unsaid = not level.announced
                current.set(level)
                yield box.pop()
                time = perf_counter()
                add(time - last)
                last = time
                if main_of is not None:
                    each[-1] -= self._guarded(main_of.iteration_ended, sys._getframe(1))
                    last = perf_counter()
                if time > times.flush_at or len(each) >= CHUNK:
                    _flush(level, times, time)
            done = True
        finally:
            level.finished = True
            self._restore(level, outer)
            if not done and len(times.each) + times.first <= index:
                add(perf_counter() - last)  # the iteration that `break` or an exception ended
            _flush(level, times, perf_counter())
            with quiet():
                level.owner.leave(level, index + 1, done)
            # Where a generator around it is closed, there may be no frame that called.
            self._tell_scopes(level, sys._getframe().f_back, index + 1, done)

    def _enter(self, name: str, outer: Level | None) -> Level:
        parent = outer or self._main_level
        if parent is self._top and self.before_first_loop is not None:
            before, self.before_first_loop = self.before_first_loop, None
            before()
        level = Level(next(self._next_loop), name, parent, self)
        level.started = perf_counter()
        self._live.add(level)
        if threading.current_thread() is self._main_thread:
            self._main_level = level
        return level

    def _restore(self, level: Level, outer: Level | None) -> None:
        """Put the loop around back in place; loops that advance in turn end in any order."""
        around = level.parent
        while around is not None and around.finished:
            around = around.parent
        is_top = around is None or around.parent is None
        here = current.get()
        if here is not None and level in here.chain():  # or in a loop inside that was left open
            current.set(None if outer is None or is_top else around)
        if level in level.owner._main_level.chain():
            level.owner._main_level = level.owner._top if is_top else around

    def leave(self, level: Level, entries: int, done: bool) -> None:
        """Write the end of a loop."""
        self._live.discard(level)
        if self._ended:
            return  # and nobody adopted it
        if not level.announced:
            self._say(level)
        line = {"t": "loop_end", "id": level.id, "n": entries, "at": self.elapsed()}
        self.emit(line | {"done": done})

    def flush(self, level: Level, times: Times, now: float) -> None:
        """Write the iteration times that are collected."""
        if self._ended:
            times.drop()
            return
        self._journal.check()
        level.labelled = level.label_unsaid = False  # of an iteration that is over
        if not level.announced:
            self._say(level)
        times.flush(level.id, now, self.emit)

    def _say(self, level: Level) -> None:
        """Write what a record in this level refers to and is not in the journal yet.

        Marks follow the lines: a signal handler that logs in between writes a line twice rather
        than a record before it.
        """
        with self._lock:
            for inner in level.chain():
                if inner.unsaid:
                    self._say_one(inner)

    def _say_one(self, level: Level) -> None:
        if level.owner is not self:
            self._live.add(level)
            level.id, level.owner = next(self._next_loop), self
        if not level.announced:
            parent = level.parent
            self.emit(
                {
                    "t": "loop",
                    "id": level.id,
                    "name": level.name,
                    "parent": parent.id if parent is not None else 0,
                    "iteration": level.parent_iteration,
                    "len": level.size,
                    "at": round(max(level.started - self.began, 0.0), 6),
                }
            )
            level.announced = True
        if level.label_unsaid:
            label = values.encode_scalar(level.label)
            if label is not None and len(label[0]) <= MAX_LABEL:
                where = f'"loop": {level.id}, "iteration": {level.iteration}'
                self._write(f'{{"t": "value", {where}, "value": {label[0]}}}\n'.encode())
            level.label_unsaid = False
        level.unsaid = False

    def here(self) -> tuple[int, int]:
        """The loop and iteration that the calling thread is in; both are in the journal."""
        level = current.get() or self._main_level
        if level.unsaid:
            self._say(level)
        return level.id, level.iteration

    # --- scopes ------------------------------------------------------------------------------

    def scope(self, objects: dict[str, Any]) -> Callable[[bool], None]:
        """`flor.checkpointing` began; the result ends it, told whether by an exception."""
        number = next(self._next_scope)
        loop, iteration = self.here()
        line = {"t": "scope", "id": number, "names": sorted(objects), "loop": loop}
        self.emit(line | {"iteration": iteration, "at": self.elapsed()})
        scope = None
        if threading.current_thread() is not self._main_thread:
            self._warn(
                "flor.checkpointing takes no checkpoints in a thread; begin the block in the main "
                "thread to have them"
            )
        elif self.open_scope is not None:
            scope = self.open_scope(number, objects)
        if scope is not None:
            self._scopes.append(scope)

        def end(failed: bool) -> None:
            if scope is not None:
                self._scopes.remove(scope)
                scope.close(failed=failed)
            self.emit({"t": "scope_end", "id": number, "at": self.elapsed()})

        return end

    def place(self, level: Level) -> Context:
        """Where a loop stands; the journal has it from here on."""
        if level.unsaid:
            self._say(level)
        return tuple(
            Step(inner.name, inner.iteration, inner.label if inner.labelled else None)
            for inner in level.chain()
        )

    def _watch(self, level: Level, frame: FrameType, iterable: Any) -> None:
        """Show a loop that begins to the checkpointing blocks around it."""
        if self._scopes and threading.current_thread() is self._main_thread:
            for scope in self._scopes:
                innermost = scope is self._scopes[-1]
                self._guarded(scope.entered, level, frame, iterable, innermost=innermost)
            level.started = perf_counter()

    def _tell_scopes(self, level: Level, frame: FrameType | None, entries: int, done: bool) -> None:
        for scope in level.block_of:
            self._guarded(scope.block_ended, level, frame, done=done)
        if level.main_of is not None:
            self._guarded(level.main_of.main_ended, frame, entries, done=done)

    def _guarded(self, hook: Callable[..., Any], *args: Any, **more: Any) -> Any:
        """Call a checkpointing block; nothing that goes wrong there stops a training."""
        try:
            return hook(*args, **more) or 0.0
        except Exception as error:
            if is_from_handler(error):
                raise
            with suppress(Exception):
                self._warn(f"no checkpoint was taken: {type(error).__name__}: {error}")
            return 0.0

    # --- details -----------------------------------------------------------------------------

    def shield(self, what: str, name: object, error: Exception) -> None:
        """Tell what could not be recorded. What a signal handler raised is raised again."""
        if is_from_handler(error):
            raise error
        with suppress(Exception):
            self._warn(f"{what}({name!r}, …) was not recorded: {type(error).__name__}: {error}")

    def _encode(self, name: str, value: Any) -> values.Encoded:
        try:
            return values.encode_scalar(value) or values.encode(value, self._objects.put)
        except values.Unstorable as error:
            reason = str(error)
        except Exception as error:
            if is_from_handler(error):
                raise
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
                number = next(self._next_site)
                site = {"t": "site", "id": number, "name": name, "file": file, "line": line}
                site |= {"func": code.co_name, "arg": arg}
                self.emit(site | ({"source": source} if arg else {}))
                self._site_numbers[name, file, line, arg] = number
        if not arg:
            self._sites[name, line] = self._owner_of(frame), number
        return number


def _flush(level: Level, times: Times, now: float) -> None:
    with quiet():  # times only: nothing that a user logged
        level.owner.flush(level, times, now)


class Warnings:
    """What was said on stderr: each text once, and not without end."""

    MOST = 20

    def __init__(self) -> None:
        self._said: set[str] = set()

    def say(self, text: str) -> bool:
        """Whether it was new."""
        text = with_single_stops(text)
        if text in self._said or len(self._said) > self.MOST:
            return False
        self._said.add(text)
        if len(self._said) > self.MOST:
            text = "there are more warnings; they are not shown"
        with suppress(Exception):  # there may be no stderr, and nobody to tell
            sys.stderr.write(f"flor: {text}\n")
        return True
