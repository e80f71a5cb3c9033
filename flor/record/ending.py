"""How a run ended: exit codes, uncaught exceptions, Ctrl-C, `os._exit`.

Nothing is installed for signals: what kills the process leaves a journal without an end, and the
lock on `alive` free; whoever reads it knows.
"""

from __future__ import annotations

import builtins
import functools
import gc
import os
import sys
import threading
import traceback
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from flor.model import Status

SIGNAL_CODES = {130, 137, 143}  # what shells and handlers say for SIGINT, SIGKILL, SIGTERM


@dataclass(frozen=True)
class Ending:
    status: Status
    exit_code: int | None = None
    error: str | None = None
    traceback: str | None = None


_exit_code: Any = None  # of the SystemExit that ended the script, once it has


_witnesses: weakref.WeakSet[_Witness] = weakref.WeakSet()


class _Witness:
    """Hangs on a SystemExit; when that is dropped and the script runs no more, nobody caught it."""

    def __init__(self, code: Any) -> None:
        self.code = code

    def __del__(self) -> None:
        global _exit_code
        with suppress(Exception):
            script = sys.modules["__main__"].__dict__
            frame: Any = sys._getframe()
            while frame is not None:
                if frame.f_globals is script:
                    return
                frame = frame.f_back
            _exit_code = self.code

    def __reduce__(self) -> tuple[Any, ...]:
        return bool, ()  # the exception may be pickled, to another process of a pool


def watch_exits(before_hard_exit: Callable[[Ending], None]) -> None:
    """See `sys.exit` codes, and call back before `os._exit` ends the process without a word."""
    soft_exit, hard_exit = sys.exit, os._exit

    @functools.wraps(soft_exit)
    def exit_(*args: Any, **kwargs: Any) -> NoReturn:
        try:
            soft_exit(*args, **kwargs)
        except SystemExit as error:
            args = ()  # or the exception would hold itself, through its traceback
            if threading.current_thread() is not threading.main_thread():
                raise  # it ends its thread only
            with suppress(Exception):
                error._flor = witness = _Witness(error.code)  # type: ignore[attr-defined]
                _witnesses.add(witness)
                del witness
            raise

    @functools.wraps(hard_exit)
    def hard_exit_(status: int) -> NoReturn:
        with suppress(Exception):
            before_hard_exit(from_code(status))
        hard_exit(status)

    quitter: Any = type(getattr(builtins, "exit", None))  # exit() and quit(); not with python -S
    if quitter.__name__ == "Quitter":
        quitter.__call__ = lambda self, code=None: exit_(code)
    sys.exit = exit_
    os._exit = hard_exit_


def from_code(code: Any) -> Ending:
    if code is None or code == 0:
        return Ending(Status.FINISHED, 0)
    if isinstance(code, bool):
        code = int(code)
    if not isinstance(code, int):
        return Ending(Status.FAILED, 1, error=str(code))
    if code in SIGNAL_CODES:
        return Ending(Status.KILLED, code, error=f"exit code {code}")
    return Ending(Status.FAILED, code, error=f"exit code {code}")


def at_exit() -> Ending:
    """How the interpreter came to its end, seen from an exit handler."""
    if is_interactive():
        return Ending(Status.FINISHED, 0)  # an error in one cell is not the end of the session
    if _witnesses:
        gc.collect()  # a SystemExit that a frame of its own traceback holds
    error = getattr(sys, "last_value", None)
    if error is None:
        return from_code(_exit_code)
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    summary = traceback.format_exception_only(type(error), error)[-1].strip()
    if isinstance(error, KeyboardInterrupt):
        return Ending(Status.KILLED, 130, "KeyboardInterrupt", text)
    return Ending(Status.FAILED, 1, summary, text)


def is_interactive() -> bool:
    return hasattr(sys, "ps1") or "ipykernel" in sys.modules
