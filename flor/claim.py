"""Who is alive: a lock on a run's `alive` file, held for as long as its process lives.

On Linux it is an open file description lock: closing other descriptors of the file (a script that
copies its folder does) does not drop it. Children that fork close their copy. Elsewhere it is a
record lock of the process. Both are seen by a record lock's probe.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import time
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

HIGH_DESCRIPTOR = 500  # out of the way of scripts that close or count low descriptors
FRESH_SECONDS = 3600.0  # without locks, a journal that was written so lately may be a live one's
_WHOLE_FILE = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


class Claim:
    """The lock of this process on a run. Where the file system knows no locks, there is none."""

    def __init__(self, path: Path) -> None:
        self._fd = moved_up(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644))
        try:
            if hasattr(fcntl, "F_OFD_SETLK"):
                fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _WHOLE_FILE)
            else:
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pass  # the run is recorded all the same; readers look at the journal's time

    def release(self) -> None:
        """Also for a forked child, whose copy would keep the lock after its parent has gone."""
        with suppress(OSError):  # the script may have closed it
            os.close(self._fd)


def is_alive(run_dir: Path, host: str, pid: int, began: datetime) -> bool:
    """Whether the process of a run without an `end` still runs. `began` is naive UTC."""
    if pid == os.getpid() and host == os.uname().nodename and began >= _process_start():
        return True  # where locks are the process's, looking would drop it
    try:
        fd = os.open(run_dir / "alive", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return True
        return _is_fresh(run_dir)
    finally:
        os.close(fd)
    return False


def is_dead(run_dir: Path) -> bool:
    """Whether no process holds the claim on a run that another process began."""
    return not is_alive(run_dir, "", -1, datetime.min)


def moved_up(fd: int) -> int:
    """The same file under a high number."""
    import resource

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    floor = HIGH_DESCRIPTOR if limit < 0 else min(HIGH_DESCRIPTOR, limit - 16)
    try:
        high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, max(floor, 3))
    except OSError:  # there is no room up there
        return fd
    os.close(fd)
    return high


def _is_fresh(run_dir: Path) -> bool:
    try:
        written = (run_dir / "journal.jsonl").stat().st_mtime
    except OSError:
        return False
    return time.time() - written < FRESH_SECONDS


def _process_start() -> datetime:
    """When this process began, a minute early; process ids come back, in containers at once."""
    age = process_age()
    if age is None:
        return datetime.min
    start = datetime.fromtimestamp(time.time() - age - 60, timezone.utc)
    return start.replace(tzinfo=None)


def process_age() -> float | None:
    """Seconds since this process began; None if nobody tells."""
    try:
        fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        up = time.clock_gettime(time.CLOCK_BOOTTIME)
        return max(0.0, up - int(fields[19]) / os.sysconf("SC_CLK_TCK"))
    except (OSError, AttributeError, ValueError, IndexError):
        return None
