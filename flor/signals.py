"""Tells what a signal handler of the script's raised from what failed in flor.

A handler runs wherever the main thread is, and that may be inside of flor, where failures are
caught. What it raises (a time limit, a preemption) is meant for the script.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any


def is_from_handler(error: BaseException) -> bool:
    """Whether a handler of the script's that is installed now raised the error."""
    signal = sys.modules.get("signal")
    trace = error.__traceback__
    if signal is None or trace is None:
        return False
    codes = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()}
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        trace = trace.tb_next
    return False


def _code_of(handler: Any) -> CodeType | None:
    while hasattr(handler, "func") or hasattr(handler, "__func__"):  # partial, method
        handler = getattr(handler, "func", None) or handler.__func__
    if callable(handler) and not hasattr(handler, "__code__"):
        handler = getattr(type(handler).__call__, "__func__", type(handler).__call__)
    code = getattr(handler, "__code__", None)
    return code if isinstance(code, CodeType) else None


@contextmanager
def quiet() -> Iterator[None]:
    """What fails in the block is nobody's concern, unless a handler of the script's raised it."""
    try:
        yield
    except Exception as error:
        if is_from_handler(error):
            raise
