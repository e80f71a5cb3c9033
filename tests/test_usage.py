"""Who needs which object."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flor.config import Settings
from flor.errors import BucketError
from flor.git import open_repository
from flor.store.ingest import ingest_branch
from flor.store.pins import pin, read_pins
from flor.store.project import opened
from flor.store.usage import Usage, read_usage
from tests.storage import Storage, digest_of

A, B = "20261118-190312-aaaaaa", "20261118-200312-bbbbbb"


class Held:
    """A bucket in memory, as far as reading manifests needs one."""

    url = "s3://memory"

    def __init__(self, *contents: bytes, down: bool = False) -> None:
        self.objects = {digest_of(content): content for content in contents}
        self.down = down

    def list(self) -> dict[str, int]:
        if self.down:
            raise BucketError("cannot list s3://memory: connection refused; try again")
        return {digest: len(content) for digest, content in self.objects.items()}

    def read(self, digest: str) -> bytes | None:
        return self.objects.get(digest)

    def fetch(self, digest: str, path: Path, advance: Callable[[int], None] = print) -> bool:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.objects[digest])
        return True


@pytest.fixture(params=["sqlite", "postgres"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else ""
    (tmp_path / "project").mkdir()
    return Settings(root=tmp_path / "project", projid="proj", database=url)


@pytest.fixture
def storage(settings: Settings) -> Storage:
    return Storage(settings)


def read(settings: Settings, bucket: Held | None = None, keep: bool = True) -> Usage:
    with opened(settings) as project:
        return read_usage(project, bucket, keep_manifests=keep)  # type: ignore[arg-type]


# --- who needs what -----------------------------------------------------------------------


def test_checkpoints_and_values_need_their_objects(settings: Settings, storage: Storage) -> None:
    """Two runs share a tensor; a third one logs it."""
    manifests = storage.training(A, 3, shared=[b"shared"])
    storage.training(B, 2, shared=[b"shared"])
    storage.value(storage.run("20261118-210312-cccccc"), b"shared")
    orphan = storage.store.put(b"orphan")

    usage = read(settings)

    assert usage.doubts == ()
    assert usage.users[digest_of(b"shared")] == {A, B, "20261118-210312-cccccc"}
    assert usage.users[manifests[0]] == {A}
    assert set(usage.needed) == storage.here() - {orphan}
    assert usage.orphans == [orphan]
    assert [len(run.there) for run in usage.runs] == [3, 2, 0]
    assert usage.runs[0].objects == set().union(*map(storage.needs, manifests))
    assert usage.runs[0].logical_bytes == 3 * (1000 + len(b"shared"))
    assert usage.local_bytes == sum(p.stat().st_size for p in settings.objects_dir.glob("*/*"))
    assert not usage.busy


def test_a_checkpoint_without_its_manifest_needs_nothing(
    settings: Settings, storage: Storage
) -> None:
    first, second = storage.training(A, 2)
    gone = storage.needs(first)
    storage.store.path(first).unlink()

    usage = read(settings)

    assert [item.manifest for item in usage.runs[0].there] == [second]
    assert len(usage.runs[0].checkpoints) == 2
    assert set(usage.orphans) == gone - {first}
    assert usage.doubts == ()


def test_checkpoints_of_child_processes_count(settings: Settings, storage: Storage) -> None:
    child = storage.run(A).child(77)
    child.loop(1, "epoch")
    manifest = storage.checkpoint(child, 0, [b"child's"])
    assert storage.needs(manifest) <= set(read(settings).needed)


def test_runs_of_the_branch_count(settings: Settings, storage: Storage) -> None:
    """Their journals are not in `.flor/runs`, their objects were pulled."""
    journal = storage.run(A)
    manifest = storage.checkpoint(journal, 0, [b"theirs"])
    payload = journal.gzipped()
    journal.path.unlink()
    journal.folder.rmdir()
    with opened(settings) as project:
        ingest_branch(project.db, [(A, payload)])
        usage = read_usage(project, None)
    assert storage.needs(manifest) <= set(usage.needed)
    assert not usage.runs[0].alive


def test_a_run_in_progress_is_alive(settings: Settings, storage: Storage) -> None:
    journal = storage.run(A, end=False)
    storage.checkpoint(journal, 0, [b"tensor"])
    code = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print(1, flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, str(journal.folder / "alive")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as training:
        assert training.stdout is not None
        training.stdout.readline()
        usage = read(settings)
        training.communicate(b"")
    assert usage.busy
    assert usage.held_runs()[0].alive
    assert not read(settings).busy


def test_files_of_others_are_nobodys_business(settings: Settings, storage: Storage) -> None:
    storage.training(A, 1)
    here = settings.objects_dir / "ab"
    here.mkdir(exist_ok=True)
    (here / "README").write_text("mine")
    (settings.objects_dir / "notes.txt").write_text("mine")
    (here / ("0" * 62)).mkdir()
    (here / ".half.7-abcd").write_bytes(b"half")
    (here / f".trash-{'1' * 62}").write_bytes(b"going")

    usage = read(settings)

    assert usage.orphans == []
    assert [item.path.name for item in usage.partials] == [".half.7-abcd"]
    assert usage.doubts == ()


def test_nothing_at_all(settings: Settings) -> None:
    usage = read(settings)
    assert (usage.runs, dict(usage.local), usage.doubts) == ((), {}, ())


def test_runs_come_by_their_last_use(settings: Settings, storage: Storage) -> None:
    for run_id in (A, B):
        storage.training(run_id, 2)
    storage.age(9000)
    storage.age(10, [read(settings).runs[0].there[0].manifest])
    assert [run.run_id for run in read(settings).held_runs()] == [B, A]


# --- doubts -------------------------------------------------------------------------------


def test_journals_that_cannot_be_read_are_a_doubt(settings: Settings, storage: Storage) -> None:
    storage.training(A, 1)
    (settings.runs_dir / A / "child-9.jsonl").mkdir()
    with pytest.warns(UserWarning, match="cannot be read"):
        usage = read(settings)
    assert len(usage.doubts) == 1
    assert str(settings.runs_dir / A) in usage.doubts[0]


def test_a_journal_that_is_not_understood_is_a_doubt(settings: Settings, storage: Storage) -> None:
    storage.training("_odd", 1)
    (doubt,) = read(settings).doubts
    assert "_odd" in doubt


def test_a_branch_that_cannot_be_read_is_a_doubt(settings: Settings, storage: Storage) -> None:
    storage.training(A, 1)
    subprocess.run(["git", "init", "-q", str(settings.root)], check=True)
    (settings.root / ".git" / "HEAD").write_text("nonsense")
    (doubt,) = read(settings).doubts
    assert "branch flor cannot be read" in doubt


@pytest.mark.parametrize("content", [b"", b"{}", b'{"format": 99}', b"\0" * 300])
def test_a_damaged_manifest_is_a_doubt(
    settings: Settings, storage: Storage, content: bytes
) -> None:
    (manifest,) = storage.training(A, 1)
    storage.store.path(manifest).write_bytes(content)
    usage = read(settings)
    (doubt,) = usage.doubts
    assert str(storage.store.path(manifest)) in doubt
    assert "remove it" in doubt
    assert manifest in usage.needed


def test_a_manifest_of_a_newer_flor_is_a_doubt(settings: Settings, storage: Storage) -> None:
    journal = storage.run(A)
    storage.checkpoint(journal, 0, [b"tensor"])
    newer = storage.store.put(b'{"format": 2}')
    text = journal.path.read_text().splitlines()
    line = json.loads(text[-1]) | {"number": 5, "manifest": newer}
    journal.lines(line)
    (doubt,) = read(settings).doubts
    assert "upgrade flor" in doubt


def test_a_damaged_manifest_that_is_intact_in_the_bucket_is_taken_from_there(
    settings: Settings, storage: Storage
) -> None:
    (manifest,) = storage.training(A, 1)
    path = storage.store.path(manifest)
    content, needs = path.read_bytes(), storage.needs(manifest)
    path.write_bytes(b"damaged")

    looked = read(settings, Held(content), keep=False)
    assert (looked.doubts, path.read_bytes()) == ((), b"damaged")
    assert needs <= set(looked.needed)

    usage = read(settings, Held(content))
    assert (usage.doubts, path.read_bytes()) == ((), content)
    assert needs <= set(usage.needed)


def test_a_manifest_that_is_only_in_the_bucket_counts(settings: Settings, storage: Storage) -> None:
    (manifest,) = storage.training(A, 1)
    path = storage.store.path(manifest)
    content, needs = path.read_bytes(), storage.needs(manifest)
    path.unlink()

    looked = read(settings, Held(content), keep=False)
    assert needs <= set(looked.needed)
    assert not path.exists()

    assert needs <= set(read(settings, Held(content)).needed)
    assert path.read_bytes() == content


def test_a_bucket_that_does_not_answer_is_a_doubt_if_it_matters(
    settings: Settings, storage: Storage
) -> None:
    (manifest,) = storage.training(A, 1)
    usage = read(settings, Held(down=True))
    assert (usage.doubts, usage.remote) == ((), None)
    assert usage.trouble is not None

    storage.store.path(manifest).unlink()
    (doubt,) = read(settings, Held(down=True)).doubts
    assert "connection refused" in doubt


# --- journals that are not wholly understood ----------------------------------------------


def test_a_damaged_line_is_searched_for_names(settings: Settings, storage: Storage) -> None:
    """A flipped byte in the line of a checkpoint: it is not listed, and stays all the same."""
    journal = storage.run(A)
    manifest = storage.checkpoint(journal, 0, [b"tensor"])
    lines = journal.path.read_bytes().splitlines(keepends=True)
    lines[-1] = lines[-1].replace(b'"iteration": 0', b'"iteration": O')
    journal.path.write_bytes(b"".join(lines))

    usage = read(settings)

    assert usage.runs[0].checkpoints == ()
    assert storage.needs(manifest) <= set(usage.needed)
    assert usage.doubts == ()


def test_a_journal_that_grew_after_its_end_is_searched_too(
    settings: Settings, storage: Storage
) -> None:
    journal = storage.run(A)
    read(settings)
    manifest = storage.checkpoint(journal, 0, [b"late"])
    usage = read(settings)
    assert usage.runs[0].checkpoints == ()
    assert storage.needs(manifest) <= set(usage.needed)


def test_a_damaged_journal_on_the_branch_is_searched_too(
    settings: Settings, storage: Storage
) -> None:
    journal = storage.run(A)
    manifest = storage.checkpoint(journal, 0, [b"tensor"])
    content = journal.path.read_bytes().replace(b'"iteration": 0', b'"iteration": O')
    journal.path.unlink()
    journal.folder.rmdir()
    repository = open_repository(settings.root, settings.flor_dir)
    repository.attach_journal(None, A, gzip.compress(content), "run")
    usage = read(settings)
    assert usage.runs[0].checkpoints == ()
    assert storage.needs(manifest) <= set(usage.needed)


def test_a_manifest_that_no_row_lists_is_looked_for_in_its_journal(
    settings: Settings, storage: Storage
) -> None:
    """The journal was read by a flor that did not know of checkpoints."""
    listed, other = storage.training(A, 2)
    unlisted = storage.store.put(storage.store.path(other).read_bytes().replace(b"1", b"7"))
    with opened(settings) as project:
        project.db.execute("delete from checkpoints")
        usage = read_usage(project, None)
    assert usage.runs[0].checkpoints == ()
    assert storage.needs(listed) | storage.needs(other) <= set(usage.needed)
    assert usage.orphans == [unlisted]


# --- pins ---------------------------------------------------------------------------------


def test_a_pin_holds_while_its_block_runs(settings: Settings, storage: Storage) -> None:
    manifest, other = storage.training(A, 2)
    with pin(settings, [manifest], "replaying"):
        usage = read(settings)
        assert usage.pinned == storage.needs(manifest)
        assert usage.busy
        assert [item.pinned for item in usage.held_runs()[0].checkpoints] == [True, False]
        assert other not in usage.pinned
    assert read_pins(settings) == []
    assert read(settings).pinned == frozenset()


def test_a_pin_protects_what_no_journal_lists(settings: Settings, storage: Storage) -> None:
    journal = storage.run(A)
    manifest = storage.checkpoint(journal, 0, [b"tensor"])
    journal.path.write_bytes(journal.path.read_bytes().rpartition(b'{"t": "checkpoint"')[0])
    assert manifest in read(settings).orphans
    with pin(settings, [manifest], "unpacking"):
        assert read(settings).orphans == []


@pytest.mark.parametrize(
    ("who", "counts"),
    [
        ({"pid": os.getpid(), "host": os.uname().nodename}, True),
        ({"pid": 2**22 + 1, "host": os.uname().nodename}, False),
        ({"pid": os.getpid(), "host": os.uname().nodename, "began": 1}, False),
        ({"pid": 1, "host": "elsewhere"}, True),
    ],
    ids=["alive", "dead", "its number was taken by another", "elsewhere"],
)
def test_a_pin_counts_while_its_process_lives(
    settings: Settings, storage: Storage, who: dict[str, object], counts: bool
) -> None:
    (manifest,) = storage.training(A, 1)
    storage.pin(manifests=[manifest], why="", **who)
    assert bool(read(settings).pinned) == counts


def test_a_pin_of_a_killed_process_no_longer_counts(settings: Settings, storage: Storage) -> None:
    (manifest,) = storage.training(A, 1)
    code = (
        "import sys; from pathlib import Path; from flor.config import Settings\n"
        "from flor.store.pins import pin\n"
        "with pin(Settings(root=Path(sys.argv[1])), [sys.argv[2]], 'replay'):\n"
        "    print('pinned', flush=True); sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code, str(settings.root), manifest]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as replay:
        assert replay.stdout is not None
        assert replay.stdout.readline() == b"pinned\n"
        assert manifest in read(settings).pinned
        replay.kill()
    assert read(settings).pinned == frozenset()
    assert [item.alive for item in read_pins(settings)] == [False]


@pytest.mark.parametrize(
    "text", ["", "[]", '{"pid": 1}', '{"pid": "x", "host": "", "manifests": 1}']
)
def test_a_pin_that_cannot_be_read_is_a_doubt(
    settings: Settings, storage: Storage, text: str
) -> None:
    storage.training(A, 1)
    folder = settings.flor_dir / "pins"
    folder.mkdir()
    (folder / "one.json").write_text(text)
    (doubt,) = read(settings).doubts
    assert "one.json" in doubt
