"""ETags that are remembered, whatever happens to the file."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest

from flor.store.receipts import FILE, Receipts


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / FILE


def known(path: Path, count: int, place: str = "here") -> list[str | None]:
    return [Receipts(path, place).get(str(number)) for number in range(count)]


def test_the_last_etag_of_an_object_in_a_bucket_counts(path: Path) -> None:
    receipts = Receipts(path, "here")
    for etag in ("old", "new", "new", None, ""):
        receipts.add("0", etag)
    Receipts(path, "there").add("0", "other")
    assert (receipts.get("0"), known(path, 2), known(path, 1, "there")) == (
        *("new", ["new", None], ["other"]),
    )
    assert path.read_bytes().count(b"new") == 1


def test_without_a_file_they_last_as_long_as_the_process() -> None:
    receipts = Receipts(None, "here")
    receipts.add("0", "etag")
    assert receipts.get("0") == "etag"


def test_a_torn_line_costs_only_itself(path: Path) -> None:
    Receipts(path, "here").add("0", "zero")
    Receipts(path, "here").add("1", "one")
    path.write_bytes(path.read_bytes()[:-4] + b"")
    Receipts(path, "here").add("2", "two")
    assert known(path, 3) == ["zero", None, "two"]


@pytest.mark.parametrize(
    "content", [b"\xff\x00", b"[1, 2, 3]\n", b'{"here": 1}\n', b"[" * 99999, b"null\n", b"[]"]
)
def test_what_is_no_receipt_is_passed_over(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    Receipts(path, "here").add("0", "zero")
    assert known(path, 1) == ["zero"]


def test_a_pipe_in_its_place_is_no_receipt(path: Path) -> None:
    os.mkfifo(path)
    Receipts(path, "here").add("0", "zero")
    assert known(path, 1) == [None]


def test_a_folder_that_takes_no_file_costs_only_time(tmp_path: Path) -> None:
    receipts = Receipts(tmp_path / "nowhere" / FILE, "here")
    receipts.add("0", "zero")
    assert receipts.get("0") == "zero"
    assert list(tmp_path.iterdir()) == []


def _write(path: Path, first: int, count: int) -> None:
    receipts = Receipts(path, "here")
    for number in range(first, first + count):
        receipts.add(str(number), f"etag of {number}")


def test_several_processes_write_at_once(path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    writers = [fork.Process(target=_write, args=(path, 200 * n, 200)) for n in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert known(path, 800) == [f"etag of {number}" for number in range(800)]
