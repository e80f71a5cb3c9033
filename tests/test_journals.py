"""Bytes of a journal → lines."""

from __future__ import annotations

import fcntl
import gzip
import io
import json
import os
import socket
import subprocess
import sys
import time
import zlib
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flor.claim import is_alive
from flor.store import journals
from flor.store.journals import Unpacked, chunks, parse, started_at

PAST = datetime(2020, 1, 1)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def read(content: bytes, offset: int = 0, size: int = 64) -> tuple[list[Any], list[Any], int, int]:
    records, objects, bad_lines, end = [], [], 0, offset
    for chunk in chunks(io.BytesIO(content[offset:]), offset, size):
        records += chunk.records
        objects += chunk.objects
        bad_lines += chunk.bad_lines
        end = chunk.end
    return records, objects, bad_lines, end


@given(st.lists(st.lists(JSON) | st.dictionaries(st.text(), JSON)), st.integers(1, 200))
def test_lines_come_back(items: list[Any], size: int) -> None:
    items = [item for item in items if not (isinstance(item, dict) and item.get("t") == "child")]
    content = b"".join(json.dumps(item).encode() + b"\n" for item in items)

    records, objects, bad_lines, end = read(content, size=size)

    assert records == [item for item in items if isinstance(item, list)]
    assert objects == [item for item in items if isinstance(item, dict)]
    assert (bad_lines, end) == (0, len(content))


@given(st.binary(max_size=300), st.integers(1, 50))
def test_no_bytes_raise(content: bytes, size: int) -> None:
    records, objects, bad_lines, end = read(content, size=size)

    assert len(records) + len(objects) + bad_lines == content.count(b"\n")
    assert end == content.rfind(b"\n") + 1


@given(st.lists(st.sampled_from([b"[1,2]", b"[1,2", b"3]", b"]", b"{", b'"', b'["a', b"1,2", b""])))
def test_torn_lines_never_make_whole_ones(lines: list[bytes]) -> None:
    items, bad_lines = parse(b"".join(line + b"\n" for line in lines))

    assert items == [[1, 2]] * lines.count(b"[1,2]")
    assert bad_lines == len(lines) - len(items)


def test_torn_last_line_waits_for_its_rest() -> None:
    whole = b'[1,0,0,1]\n[1,0,0,2]\n[1,0,0,"tor'
    records, _, bad_lines, end = read(whole)
    assert (records, bad_lines) == ([[1, 0, 0, 1], [1, 0, 0, 2]], 0)

    records, _, bad_lines, _ = read(whole + b'n"]\n', offset=end)
    assert (records, bad_lines) == ([[1, 0, 0, "torn"]], 0)


def test_not_a_number_and_long_numbers() -> None:
    records, _, bad_lines, _ = read(b"[1,0,0,Infinity]\n[1,0,0," + b"9" * 5000 + b"]\n", size=10**6)

    assert records == [[1, 0, 0, float("inf")], [1, 0, 0, "9" * 5000]]
    assert bad_lines == 0


def test_deep_nesting_is_a_bad_line() -> None:
    assert parse(b"[" * 100_000 + b"\n[1]\n") == ([[1]], 1)


@pytest.mark.parametrize("size", [1, 7, 64, 10**6])
def test_line_that_is_too_long_is_skipped(size: int) -> None:
    content = b"[1,0,0,1]\n" + b"[1,0,0," + b"9" * 500 + b"]\n" + b"[1,0,0,2]\n" + b"x" * 500
    source = io.BytesIO(content)

    found = list(chunks(source, 0, size, line_bytes=100))

    records = [record for chunk in found for record in chunk.records]
    if size == 10**6:  # whole in one block, it cost nothing more
        assert len(records) == 3
    else:
        assert records == [[1, 0, 0, 1], [1, 0, 0, 2]]
        assert sum(chunk.bad_lines for chunk in found) == 1
    assert found[-1].end == content.rindex(b"\n") + 1, "the last line may still end"


def test_a_gigabyte_without_a_newline_takes_seconds() -> None:
    engine = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    million = b"a" * 2**20
    packed = b"".join([engine.compress(million) for _ in range(512)])
    source = Unpacked(packed + engine.compress(b"\n[1,0,0,5]\n") + engine.flush())
    began = time.process_time()

    (chunk,) = chunks(source)

    assert (chunk.records, chunk.bad_lines, chunk.end) == ([[1, 0, 0, 5]], 1, 2**29 + 11)
    assert source.intact
    assert time.process_time() - began < 10


@pytest.mark.parametrize(("limit", "found", "intact"), [(99, 99, False), (100, 100, True)])
def test_payload_is_unpacked_up_to_a_limit(limit: int, found: int, intact: bool) -> None:
    source = Unpacked(gzip.compress(b"x" * 100), limit)
    content = b""
    while block := source.read(30):
        content += block
    assert (len(content), source.intact) == (found, intact)


def test_very_many_members() -> None:
    source = Unpacked(gzip.compress(b"") * 20_000 + gzip.compress(b"[1]\n"))
    assert [chunk.records for chunk in chunks(source)] == [[[1]]]
    assert source.intact


def test_chunk_begins_with_each_child_line() -> None:
    lines = [{"t": "run"}, [1], {"t": "child", "pid": 1}, [2], {"t": "child", "pid": 2}, [3]]
    content = b"".join(json.dumps(line).encode() + b"\n" for line in lines)

    found = [(chunk.objects, chunk.records) for chunk in chunks(io.BytesIO(content))]

    assert found == [
        ([{"t": "run"}], [[1]]),
        ([{"t": "child", "pid": 1}], [[2]]),
        ([{"t": "child", "pid": 2}], [[3]]),
    ]


@given(st.binary(max_size=2000), st.integers(1, 100))
def test_payload_unpacks(content: bytes, size: int) -> None:
    source = Unpacked(gzip.compress(content[:100]) + gzip.compress(content[100:]))
    found = b""
    while block := source.read(size):
        found += block
    assert found == content
    assert source.intact


@given(st.binary(max_size=60), st.integers(0, 40))
def test_damaged_payload_gives_what_is_intact(noise: bytes, cut: int) -> None:
    payload = gzip.compress(b"[1,0,0,1]\n" * 50)
    source = Unpacked(payload[:cut] + noise)
    while source.read(100):
        pass


def test_cut_payload_is_not_intact() -> None:
    source = Unpacked(gzip.compress(os.urandom(5000))[:2000])
    while source.read(100):
        pass
    assert not source.intact


def test_started_at() -> None:
    assert started_at("20261118-190312-4f2a9c") == datetime(2026, 11, 18, 19, 3, 12)
    assert started_at("20269918-190312-4f2a9c") is None
    assert started_at("mine") is None


def test_main_journal_comes_first(tmp_path: Path) -> None:
    for age, name in enumerate(
        ["child-9.jsonl", "journal.jsonl", "child-10.jsonl", "opened-9.txt"]
    ):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (age, age))

    assert journals.journal_files(tmp_path) == ["journal.jsonl", "child-9.jsonl", "child-10.jsonl"]


def test_run_lives_as_long_as_its_lock(tmp_path: Path) -> None:
    code = (
        "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); "
        "print('locked', flush=True); sys.stdin.read()"
    )
    assert not is_alive(tmp_path, "here", 1, PAST), "without the file it is dead"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "alive")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert is_alive(tmp_path, "here", holder.pid, PAST)
        assert is_alive(tmp_path, "here", holder.pid, PAST), "looking does not take the lock"
        holder.kill()
    assert not is_alive(tmp_path, "here", holder.pid, PAST)


def test_own_claim_is_not_touched(tmp_path: Path) -> None:
    now = datetime.now(timezone.utc).replace(tzinfo=None)
    with (tmp_path / "alive").open("w") as claim:
        fcntl.lockf(claim, fcntl.LOCK_EX)
        assert is_alive(tmp_path, socket.gethostname(), os.getpid(), now)
        probe = (
            "import fcntl, sys\n"
            "try: fcntl.lockf(open(sys.argv[1], 'a'), fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
            "except OSError: print('held')"
        )
        command = [sys.executable, "-c", probe, str(tmp_path / "alive")]
        assert subprocess.run(command, capture_output=True, check=True).stdout == b"held\n"


@pytest.mark.skipif(sys.platform != "linux", reason="process start is read from /proc")
def test_process_ids_come_back(tmp_path: Path) -> None:
    """A run of long ago with this process's id is not this process's run."""
    long_ago = datetime.now(timezone.utc).replace(tzinfo=None) - timedelta(days=400)
    (tmp_path / "alive").touch()

    assert not is_alive(tmp_path, socket.gethostname(), os.getpid(), long_ago)
