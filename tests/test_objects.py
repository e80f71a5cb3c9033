"""Large values on disk."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from flor.errors import ObjectMissing
from flor.objects import ObjectStore, open_object
from tests.storage import irregular


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return ObjectStore(tmp_path / "objects")


def test_put_then_get(store: ObjectStore) -> None:
    digest = store.put(b"weights")

    assert digest == hashlib.blake2b(b"weights", digest_size=32).hexdigest()
    assert store.has(digest)
    assert store.get(digest) == b"weights"


def test_nothing_is_written_twice_but_counts_as_used(store: ObjectStore) -> None:
    path = store.path(store.put(b"weights"))
    os.utime(path, (1, 1))
    before = path.stat().st_ino

    store.put(b"weights")

    assert path.stat().st_ino == before
    assert path.stat().st_mtime > 1
    assert [item.name for item in path.parent.iterdir()] == [path.name]


def test_torn_object_is_written_again(store: ObjectStore) -> None:
    digest = store.put(b"weights")
    store.path(digest).write_bytes(b"wei")

    store.put(b"weights")

    assert store.get(digest) == b"weights"


def test_missing_object_says_where_it_should_be(store: ObjectStore) -> None:
    digest = hashlib.blake2b(b"never", digest_size=32).hexdigest()

    assert not store.has(digest)
    with pytest.raises(ObjectMissing, match=f"{digest} is not in .*objects"):
        store.get(digest)


def test_damaged_object_is_refused(store: ObjectStore) -> None:
    digest = store.put(b"weights")
    store.path(digest).write_bytes(b"WEIGHTS")

    with pytest.raises(ObjectMissing, match="damaged"):
        store.get(digest)


@pytest.mark.parametrize("name", ["../../etc/passwd", "", "AB" * 32, "ab" * 31 + "/."])
def test_digest_leads_nowhere_else(store: ObjectStore, name: str) -> None:
    with pytest.raises(ObjectMissing, match="not the digest"):
        store.path(name)


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_what_is_no_regular_file_is_no_object(store: ObjectStore, kind: str) -> None:
    """A pipe would be waited for, a device read for ever."""
    digest = store.put(b"")
    path = store.path(digest)
    irregular(kind, path)

    assert (store.has(digest), store.use(digest, 0)) == (False, False)
    for ask in (store.get, store.local):
        with pytest.raises(ObjectMissing, match=rf"{path} is a pipe.*remove it"):
            ask(digest)
    with pytest.raises(OSError, match="no regular file"):
        open_object(path)


def test_a_pipe_gives_way_to_what_is_stored(store: ObjectStore) -> None:
    digest = store.put(b"content")
    store.path(digest).unlink()
    os.mkfifo(store.path(digest))
    assert store.put(b"content") == digest
    assert store.get(digest) == b"content"


def test_an_object_may_lie_on_another_disk(store: ObjectStore, tmp_path: Path) -> None:
    digest = store.put(b"content")
    store.path(digest).rename(tmp_path / "elsewhere")
    store.path(digest).symlink_to(tmp_path / "elsewhere")
    assert store.get(digest) == b"content"
