"""Leaves → objects → manifest: flor.checkpoint.writing."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import gc
import hashlib
import os
import tempfile
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flor.checkpoint import signing
from flor.checkpoint.leaves import Leaves
from flor.checkpoint.manifest import Leaf, Manifest
from flor.checkpoint.memory import PAGE
from flor.checkpoint.staging import SMALL_BYTES, Pending, Staging
from flor.checkpoint.writing import (
    DIRECT_BYTES,
    FREE_BYTES,
    STEP_BYTES,
    NoRoom,
    Objects,
    Written,
    write,
)
from flor.objects import ObjectStore

EMPTY = Manifest("run", 1, (), None, False, {})


class Pickle(bytes):
    """Bytes that would be unpickled."""


class Writer:
    """Writes checkpoints to a store and reads them back. A bytearray is a block of memory."""

    def __init__(self, folder: Path) -> None:
        self.store = ObjectStore(folder)
        self.staging = Staging()
        self.objects = Objects(self.store)
        self.listed: list[tuple[Written, list[Leaf]]] = []

    def steps(self, *contents: bytes | bytearray) -> Iterator[None]:
        self.staging.begin()
        for content in contents:
            if isinstance(content, bytearray):
                address = ctypes.addressof(ctypes.c_char.from_buffer(content)) if content else 0
                self.staging.put_block(address, len(content), None, content)
            else:
                self.staging.put_bytes(bytes(content), code=isinstance(content, Pickle))
        return self.finish(self.staging.end())

    def finish(self, pending: list[Pending]) -> Iterator[None]:
        def done(written: Written, leaves: list[Leaf]) -> None:
            self.staging.remember(pending, leaves)
            self.listed.append((written, leaves))

        return write(EMPTY, pending, self.objects, done)

    def write(self, *contents: bytes | bytearray) -> list[Leaf]:
        for _ in self.steps(*contents):
            pass
        return self.listed[-1][1]

    def read(self) -> list[bytes]:
        """The newest checkpoint's leaves."""
        written = self.listed[-1][0]
        manifest = Manifest.from_bytes(self.store.get(written.digest))
        assert manifest == written.manifest
        found = Leaves(self.store, manifest.leaves)
        found.load()
        return [bytes(found[number]) for number in range(len(manifest.leaves))]

    def files(self) -> list[Path]:
        return [path for path in self.store.folder.glob("*/*") if path.is_file()]

    def is_whole(self) -> bool:
        """Whether each object is what its name says, and nothing else is there."""
        return all(
            hashlib.blake2b(path.read_bytes(), digest_size=32).hexdigest()
            == path.parent.name + path.name
            for path in self.files()
        )


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    return Writer(tmp_path / "objects")


@pytest.fixture(autouse=True)
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def noise(size_bytes: int, seed: int = 0) -> bytes:
    return hashlib.shake_128(seed.to_bytes(4, "big")).digest(size_bytes)


def block(size_bytes: int, seed: int = 0) -> bytearray:
    return bytearray(noise(size_bytes, seed))


# Small ones, a pickle, large bytes, a block for direct writing that fills no page.
SOME: list[bytes | bytearray] = [
    *(b"", b"a" * 5, noise(100), Pickle(b"pickled"), noise(SMALL_BYTES + 7)),
    block(STEP_BYTES + DIRECT_BYTES + 77),
]


def open_files() -> set[str]:
    gc.collect()
    return set(os.listdir("/proc/self/fd"))


def child_of(action: Callable[[], None]) -> None:
    """Do something in a forked child, which then dies at once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other tests' threads
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            action()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0


# --- the order -----------------------------------------------------------------------------


def test_what_was_written_is_read_back(writer: Writer) -> None:
    writer.write(*SOME)

    assert writer.read() == SOME
    assert writer.is_whole()


def test_a_checkpoint_is_listed_when_all_that_it_needs_is_there(writer: Writer) -> None:
    there: list[bool] = []

    def done(written: Written, leaves: list[Leaf]) -> None:
        needed = written.manifest.digests | {written.digest}
        there.append(all(writer.store.has(digest) for digest in needed) and writer.is_whole())
        assert written.manifest.leaves == tuple(leaves)

    writer.staging.begin()
    for content in SOME:
        writer.staging.put_bytes(bytes(content))
    for _ in write(EMPTY, writer.staging.end(), writer.objects, done):
        assert there == []
    assert there == [True]


def test_a_writer_that_stops_anywhere_leaves_nothing_torn(tmp_path: Path) -> None:
    """No listed checkpoint, no file that is not what its name says, no open file."""
    count = sum(1 for _ in Writer(tmp_path / "all").steps(*SOME))
    assert count > 10
    before = open_files()

    for stop in range(count):
        writer = Writer(tmp_path / str(stop))
        steps = writer.steps(*SOME)
        for _ in range(stop + 1):
            next(steps)
        assert not writer.listed
        del steps
        assert writer.is_whole()
    assert open_files() == before


def test_a_killed_writer_leaves_no_torn_object(tmp_path: Path) -> None:
    """What it was writing has another name."""
    count = sum(1 for _ in Writer(tmp_path / "all").steps(*SOME))
    for stop in range(count):
        writer = Writer(tmp_path / str(stop))

        def killed(writer: Writer = writer, stop: int = stop) -> None:
            steps = writer.steps(*SOME)
            for _ in range(stop + 1):
                next(steps)
            os._exit(0)

        child_of(killed)
        for path in writer.files():
            if path.name.startswith("."):
                path.unlink()
        assert writer.is_whole()


def test_a_forked_child_does_not_take_the_parent_s_file_away(writer: Writer) -> None:
    steps = writer.steps(*SOME)
    while not any(path.name.startswith(".") for path in writer.files()):
        next(steps)

    def dropped() -> None:
        nonlocal steps
        del steps
        gc.collect()

    child_of(dropped)
    for _ in steps:
        pass
    assert writer.read() == SOME


# --- disks ---------------------------------------------------------------------------------


@pytest.mark.parametrize("call", range(5))
def test_a_full_disk_ends_the_checkpoint(
    writer: Writer, call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, real, calls = open_files(), os.pwrite, iter(range(100))

    def pwrite(fd: int, content: memoryview, place: int) -> int:
        if next(calls) == call:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, content, place)

    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(OSError, match="No space left"):
        writer.write(*SOME)

    assert not writer.listed
    assert writer.is_whole()
    assert open_files() == before
    writer.write(*SOME)
    assert writer.read() == SOME


def test_a_disk_is_not_filled_to_the_last(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.statvfs

    def statvfs(path: Any) -> Any:
        found = list(real(path))
        found[4] = (FREE_BYTES + SMALL_BYTES) // found[1]  # f_bavail
        return os.statvfs_result(found)

    monkeypatch.setattr(os, "statvfs", statvfs)
    with pytest.raises(NoRoom, match=r"1\.0 GiB are left on the disk of .*flor gc"):
        writer.write(block(2 * SMALL_BYTES))
    assert (writer.listed, writer.files()) == ([], [])

    writer.write(b"small")
    assert writer.read() == [b"small"]


def test_a_file_system_without_direct_writes(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says so when a file is opened, and is asked once."""
    real, asked = os.open, []

    def opened(path: Any, flags: int, *args: int) -> int:
        if flags & os.O_DIRECT:
            asked.append(path)
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(path, flags, *args)

    monkeypatch.setattr(os, "open", opened)
    contents = [*SOME, block(2 * DIRECT_BYTES, 1)]
    writer.write(*contents)

    assert len(asked) == 1
    assert writer.read() == contents


@pytest.mark.parametrize("call", [0, 1])
def test_a_file_system_that_refuses_a_direct_write(
    writer: Writer, call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It opened the file, and says so in the middle."""
    real, direct = os.pwrite, iter(range(100))

    def pwrite(fd: int, content: memoryview, place: int) -> int:
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT and next(direct) >= call:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(fd, content, place)

    monkeypatch.setattr(os, "pwrite", pwrite)
    contents = [*SOME, block(2 * DIRECT_BYTES, 1)]
    writer.write(*contents)

    assert next(direct) > call
    assert writer.read() == contents
    assert writer.is_whole()


@pytest.mark.parametrize("most", [1000, PAGE, 3 * PAGE + 1, STEP_BYTES - 512])
def test_a_system_that_writes_less_than_asked(
    writer: Writer, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, part, place: real(fd, part[:most], place))
    contents: list[bytes | bytearray] = [noise(SMALL_BYTES), block(DIRECT_BYTES + 5 * PAGE + 1)]

    writer.write(*contents)

    assert writer.read() == contents


def test_an_endless_refusal_is_an_error(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    def pwrite(fd: int, content: memoryview, place: int) -> int:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(OSError, match="Invalid argument"):
        writer.write(*SOME)
    assert writer.is_whole()


def test_another_error_of_opening_is_not_hidden(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(*args: Any) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", opened)
    with pytest.raises(PermissionError):
        writer.write(block(DIRECT_BYTES))
    assert not writer.listed


def test_on_a_file_system_in_memory() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        writer = Writer(Path(folder))
        writer.write(*SOME)
        assert writer.read() == SOME


# --- sizes ---------------------------------------------------------------------------------

EDGES = (0, PAGE, SMALL_BYTES, DIRECT_BYTES, DIRECT_BYTES + PAGE, STEP_BYTES, 2 * STEP_BYTES)
SIZES = sorted({max(edge + off, 0) for edge in EDGES for off in (-1, 0, 1)})


@pytest.mark.parametrize("size_bytes", SIZES)
def test_every_size(writer: Writer, size_bytes: int) -> None:
    contents: list[bytes | bytearray] = [noise(size_bytes), block(size_bytes, 1)]

    leaves = writer.write(*contents)

    assert writer.read() == contents
    assert [leaf.size_bytes for leaf in leaves] == [size_bytes] * 2
    assert writer.is_whole()


# --- what is there already -----------------------------------------------------------------


def test_equal_contents_are_stored_once(writer: Writer) -> None:
    size_bytes = DIRECT_BYTES + 1
    leaves = writer.write(block(size_bytes), noise(size_bytes), b"small", b"small")

    assert leaves[0] == leaves[1]
    assert leaves[2] == leaves[3]
    assert len(writer.files()) == 3
    sizes = sum(path.stat().st_size for path in writer.files())
    assert writer.listed[0][0].new_bytes == sizes


def test_what_was_written_before_is_not_written_again_but_used(writer: Writer) -> None:
    leaves = writer.write(*SOME)
    for path in writer.files():
        os.utime(path, (1, 1))

    assert writer.write(*SOME) == leaves
    assert writer.listed[1][0].new_bytes == 0
    assert all(path.stat().st_mtime > 1 for path in writer.files())


@pytest.mark.parametrize("damage", ["removed", "torn"])
def test_an_object_that_is_gone_is_written_again(writer: Writer, damage: str) -> None:
    """All leaves are known, and nothing has changed."""
    writer.write(*SOME)
    for path in writer.files():
        if damage == "removed":
            path.unlink()
        else:
            os.truncate(path, 1)

    writer.write(*SOME)

    assert writer.read() == SOME
    assert writer.is_whole()


def test_an_object_removed_at_any_step_is_never_listed_as_there(tmp_path: Path) -> None:
    """Somebody else tidies the store while the checkpoint is written."""
    count = sum(1 for _ in Writer(tmp_path / "all").steps(*SOME))
    refused = 0
    for stop in range(count - 1):
        writer = Writer(tmp_path / str(stop))
        steps = writer.steps(*SOME)
        for _ in range(stop + 1):
            next(steps)
        needed = writer.files()
        for path in needed:
            if not path.name.startswith("."):
                path.unlink()
        try:
            for _ in steps:
                pass
        except FileNotFoundError:
            refused += 1
            assert not writer.listed
        else:
            assert writer.read() == SOME
        writer.write(*SOME)
        assert writer.read() == SOME
    assert refused


# --- the manifest --------------------------------------------------------------------------


def test_pickles_are_signed(writer: Writer) -> None:
    writer.write(Pickle(b"one"), b"data", Pickle(b"two"))

    manifest = writer.listed[0][0].manifest
    assert manifest.pickles == (0, 2)
    assert signing.is_own(manifest.signature, map(signing.digest, (b"one", b"two")))


def test_without_pickles_nothing_is_signed(writer: Writer, tmp_path: Path) -> None:
    writer.write(b"data")

    assert writer.listed[0][0].manifest.signature is None
    assert not (tmp_path / "state").exists()


def test_bytes_of_a_device_are_waited_for(writer: Writer) -> None:
    """They are asked for when it is their turn, and no sooner."""
    contents, asked = [b"few", noise(DIRECT_BYTES + 5)], list[int]()

    def content_of(number: int) -> bytes:
        asked.append(number)
        return contents[number]

    writer.staging.begin()
    for number, content in enumerate(contents):
        assert writer.staging.put_later() == number
        writer.staging.arrives(number, len(content), partial(content_of, number))
    pending = writer.staging.end()
    assert asked == []
    for _ in writer.finish(pending):
        pass

    assert set(asked) == {0, 1}
    assert writer.read() == contents


def test_an_object_of_others_that_is_damaged_is_written_again(tmp_path: Path) -> None:
    content = bytes(range(256)) * 1000
    first = ObjectStore(tmp_path)
    digest = first.put(content)
    first.path(digest).write_bytes(bytes(len(content)))

    deque(Objects(ObjectStore(tmp_path)).put(content), maxlen=0)

    assert first.get(digest) == content


@pytest.mark.parametrize("lanes", [2, 3, 50])
def test_several_leaves_are_written_at_once(tmp_path: Path, lanes: int) -> None:
    writer = Writer(tmp_path)
    writer.objects.lanes = lambda: lanes
    contents = [block(STEP_BYTES * (1 + n % 3) + n, seed=n) for n in range(7)]
    expected = [bytes(content) for content in contents]

    deque(writer.steps(*contents), maxlen=0)

    assert writer.read() == expected
    assert writer.listed[0][0].new_bytes > sum(map(len, expected))


def test_an_error_in_one_lane_ends_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Writer(tmp_path)
    writer.objects.lanes = lambda: 4
    before = open_files()

    def refuse(fd: int, content: Any, offset: int) -> int:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "pwrite", refuse)
    with pytest.raises(OSError, match="no space"):
        deque(writer.steps(*(block(2 * STEP_BYTES, seed=n) for n in range(6))), maxlen=0)

    assert open_files() == before
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not writer.listed
