"""flor.record.journal: bytes to disk."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

from flor.claim import Claim, is_dead
from flor.record.journal import Journal


def test_lines_are_appended(tmp_path: Path) -> None:
    warnings: list[str] = []
    journal = Journal(tmp_path / "journal", warnings.append)
    journal.write(b"a\n")
    journal.write(b"b\n")
    assert (tmp_path / "journal").read_bytes() == b"a\nb\n"
    journal.close()
    journal.write(b"too late\n")
    assert (tmp_path / "journal").read_bytes() == b"a\nb\n"
    assert warnings == []


def test_a_full_disk_is_said_once_and_tried_again(tmp_path: Path) -> None:
    """The line that only half fitted is torn; everything follows whole once there is room."""
    warnings: list[str] = []
    journal = Journal(tmp_path / "journal", warnings.append)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        for number in range(5):
            journal.write(b"line %d\n" % number)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert len(warnings) == 1
    assert "training goes on" in warnings[0]
    journal.close()
    lines = (tmp_path / "journal").read_bytes().split(b"\n")
    assert lines == [b"line 0", b"lin?", *(b"line %d" % n for n in range(1, 5)), b""]
    assert len(warnings) == 1


def test_lines_that_never_fit_are_counted(tmp_path: Path) -> None:
    warnings: list[str] = []
    journal = Journal(tmp_path / "journal", warnings.append)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        journal.write(b"a\n")
        journal.write(b"b\n")
        journal.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert warnings[1].startswith("2 lines")


def test_a_claim_lasts_as_long_as_its_process(tmp_path: Path) -> None:
    assert is_dead(tmp_path)
    code = (
        "import pathlib, sys; from flor.claim import Claim;"
        "claim = Claim(pathlib.Path(sys.argv[1])); print('ready', flush=True); input()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "alive")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    assert not is_dead(tmp_path)
    holder.kill()
    holder.communicate()
    assert is_dead(tmp_path)


def test_descriptors_are_out_of_the_way(tmp_path: Path) -> None:
    claim = Claim(tmp_path / "alive")
    journal = Journal(tmp_path / "journal", print)
    assert journal.fd > 100 or resource.getrlimit(resource.RLIMIT_NOFILE)[0] <= 500
    assert not os.get_inheritable(journal.fd)
    journal.close()
    claim.release()


def test_a_line_that_lacks_only_its_end_is_not_a_record_twice(tmp_path: Path) -> None:
    """7 of the 8 bytes fit: `[1,0,0]` without its newline."""
    journal = Journal(tmp_path / "journal", lambda text: None)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (7, before[1]))
    try:
        journal.write(b"[1,0,0]\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    journal.close()
    assert (tmp_path / "journal").read_bytes() == b"[1,0,0]?\n[1,0,0]\n"
