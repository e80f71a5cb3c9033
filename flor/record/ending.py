"""How a run ended: exit codes, uncaught exceptions, Ctrl-C, `os._exit`.

Nothing is installed for signals: what kills the process leaves a journal without an end, and the
lock on `alive` free; whoever reads it knows.
"""

from __future__ import annotations

import os
import sys
import traceback
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


class _Exit(SystemExit):
    """A SystemExit that knows, when it is dropped, whether somebody caught it.

    When the outermost frame that it passed is no longer running, nobody did.
    """

    def __del__(self) -> None:
        global _exit_code
        with suppress(Exception):
            trace = self.__traceback__
            frame: Any = sys._getframe()
            while frame is not None and trace is not None:
                if frame is trace.tb_frame:
                    return
                frame = frame.f_back
            _exit_code = self.code


_Exit.__name__ = _Exit.__qualname__ = "SystemExit"
_Exit.__module__ = "builtins"


def watch_exits(before_hard_exit: Callable[[Ending], None]) -> None:
    """See `sys.exit` codes, and call back before `os._exit` ends the process without a word."""
    hard_exit = os._exit

    def exit_(status: Any = None, /) -> NoReturn:
        raise _Exit(status)

    def hard_exit_(status: int) -> NoReturn:
        with suppress(Exception):
            before_hard_exit(from_code(status))
        hard_exit(status)

    exit_.__name__, exit_.__doc__ = "exit", sys.exit.__doc__
    hard_exit_.__name__, hard_exit_.__doc__ = "_exit", hard_exit.__doc__
    sys.exit = exit_
    os._exit = hard_exit_


def from_code(code: Any) -> Ending:
    if code is None or code == 0:
        return Ending(Status.FINISHED, 0)
    if not isinstance(code, int):
        return Ending(Status.FAILED, 1, error=str(code))
    if code in SIGNAL_CODES:
        return Ending(Status.KILLED, code, error=f"exit code {code}")
    return Ending(Status.FAILED, code, error=f"exit code {code}")


def at_exit() -> Ending:
    """How the interpreter came to its end, seen from an exit handler."""
    if is_interactive():
        return Ending(Status.FINISHED, 0)  # an error in one cell is not the end of the session
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
