"""Objects between a project and a bucket, against a real S3 server on loopback."""

from __future__ import annotations

import json
import os
import pty
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flor.checkpoint.manifest import Manifest
from flor.config import Settings
from flor.errors import BucketError, ConfigError, ObjectMissing
from flor.objects import ObjectStore
from flor.store.bucket import PART_BYTES, Bucket, store_of
from flor.store.sweeping import alone
from tests.e2e.conftest import Project, S3Server, Wire
from tests.storage import Storage, digest_of, irregular

A, B = "20261118-190312-aaaaaa", "20261118-200312-bbbbbb"
LARGE = 3 * PART_BYTES + 12345  # bytes of an object that goes in parts


def content_of(size_bytes: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size_bytes)


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    """A prefix of its own for each test."""
    return f"s3://data/{request.node.name.replace('[', '-').rstrip(']')}"


@pytest.fixture
def keys(s3_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in s3_environment.items():
        monkeypatch.setenv(name, value)
    return s3_environment


@pytest.fixture
def bucket(keys: dict[str, str], url: str) -> Bucket:
    return Bucket(url, patience_seconds=10)


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return ObjectStore(tmp_path / "objects")


def put(bucket: Bucket, store: ObjectStore, content: bytes) -> str:
    digest = store.put(content)
    bucket.put(digest, store.path(digest))
    return digest


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


# --- one object ---------------------------------------------------------------------------


@pytest.mark.parametrize("size_bytes", [0, 1, PART_BYTES, PART_BYTES + 1, LARGE])
def test_an_object_goes_there_and_comes_back(
    bucket: Bucket, store: ObjectStore, tmp_path: Path, size_bytes: int
) -> None:
    content = content_of(size_bytes)
    digest = store.put(content)
    there, back = tmp_path / "new" / "there", []
    assert (bucket.has(digest), bucket.fetch(digest, there), bucket.read(digest)) == (
        *(False, False, None),
    )

    gone: list[int] = []
    assert bucket.put(digest, store.path(digest), gone.append)
    assert not bucket.put(digest, store.path(digest))

    assert (bucket.size(digest), bucket.list()) == (size_bytes, {digest: size_bytes})
    assert bucket.fetch(digest, there, back.append)
    assert there.read_bytes() == bucket.read(digest) == content
    assert (sum(gone), sum(back)) == (size_bytes, size_bytes)
    assert files(tmp_path / "new") == {"there"}


def test_prefixes_and_keys_of_others_are_kept_apart(bucket: Bucket, store: ObjectStore) -> None:
    digest = put(bucket, store, b"mine")
    other = Bucket(f"{bucket.url}/deeper/")
    theirs = put(other, store, b"theirs")
    client = bucket._quick
    for key in ("notes.txt", "objects/README", f"objects/{digest}", f"objects/ab/{digest[2:]}x"):
        bucket._obstore.put(client, key, b"foreign")
    assert bucket.list() == {digest: 4}
    assert other.list() == {theirs: 6}


def test_a_store_fetches_what_is_not_here(
    bucket: Bucket, store: ObjectStore, tmp_path: Path
) -> None:
    digest = put(bucket, store, b"weights")
    settings = Settings(root=tmp_path / "elsewhere", bucket=bucket.url)
    assert store_of(settings).get(digest) == b"weights"
    assert files(settings.objects_dir) == {f"{digest[:2]}/{digest[2:]}"}
    with pytest.raises(ObjectMissing, match="nor in the bucket"):
        store_of(settings).get(digest_of(b"nothing"))


@pytest.mark.parametrize("size_bytes", [10, LARGE])
def test_a_damaged_file_does_not_spread(
    bucket: Bucket, store: ObjectStore, size_bytes: int
) -> None:
    digest = store.put(content_of(size_bytes))
    store.path(digest).write_bytes(content_of(size_bytes, seed=2))
    with pytest.raises(ObjectMissing, match="is damaged and was not uploaded"):
        bucket.put(digest, store.path(digest))
    assert bucket.list() == {}


@pytest.mark.parametrize("size_bytes", [10, LARGE])
def test_a_damaged_download_leaves_nothing(
    bucket: Bucket, store: ObjectStore, tmp_path: Path, size_bytes: int
) -> None:
    digest = store.put(content_of(size_bytes))
    key = f"objects/{digest[:2]}/{digest[2:]}"
    bucket._obstore.put(bucket._quick, key, content_of(size_bytes, seed=2))
    there = tmp_path / "new" / "there"
    there.parent.mkdir()
    there.write_bytes(b"before")
    with pytest.raises(BucketError, match=rf"{key} is damaged.*flor objects push"):
        bucket.fetch(digest, there)
    assert (files(there.parent), there.read_bytes()) == ({"there"}, b"before")


def test_an_object_that_is_torn_in_the_bucket_is_replaced(
    bucket: Bucket, store: ObjectStore
) -> None:
    digest = store.put(b"whole")
    bucket._obstore.put(bucket._quick, f"objects/{digest[:2]}/{digest[2:]}", b"who")
    assert bucket.put(digest, store.path(digest))
    assert bucket.read(digest) == b"whole"


def test_breaking_off_leaves_nothing(bucket: Bucket, store: ObjectStore, tmp_path: Path) -> None:
    def stop(size_bytes: int) -> None:
        raise KeyboardInterrupt

    large = store.put(content_of(LARGE))
    with pytest.raises(KeyboardInterrupt):
        bucket.put(large, store.path(large), stop)
    assert bucket.list() == {}
    bucket.put(large, store.path(large))
    with pytest.raises(KeyboardInterrupt):
        bucket.fetch(large, tmp_path / "new" / "there", stop)
    assert files(tmp_path / "new") == set()


# --- what can be wrong --------------------------------------------------------------------


def test_wrong_keys_are_said_at_once(
    bucket: Bucket, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    digest = store.put(b"x")
    began = time.monotonic()
    for ask in (bucket.list, lambda: bucket.put(digest, store.path(digest))):
        with pytest.raises(BucketError, match=r"HTTP 403.*check AWS_ACCESS_KEY_ID"):
            ask()
    assert time.monotonic() - began < 5


def test_without_credentials_nobody_is_asked_for_some(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even the cloud's own address, which would take its time to not answer."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    with pytest.raises(BucketError, match="no credentials for s3://data: set AWS_ACCESS_KEY_ID"):
        Bucket("s3://data").list()


def test_a_bucket_that_is_not_there_is_no_empty_bucket(
    keys: dict[str, str], store: ObjectStore
) -> None:
    nowhere = Bucket("s3://nowhere")
    for ask in (nowhere.list, lambda: nowhere.read(digest_of(b"x"))):
        with pytest.raises(BucketError, match=r"NoSuchBucket.*correct the setting `bucket`"):
            ask()


@pytest.mark.parametrize("text", ["data", "gs://data", "s3://", "s3:///x", "s3://a?b=c"])
def test_a_url_that_makes_no_sense(text: str) -> None:
    with pytest.raises(ConfigError, match="give s3://name"):
        Bucket(text)


def test_an_unencrypted_endpoint_must_be_wanted(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    with pytest.raises(BucketError, match="AWS_ALLOW_HTTP=true"):
        bucket.list()


def test_without_the_client_it_says_what_to_install(project: Project) -> None:
    code = (
        "import sys; sys.modules['obstore'] = None\n"
        "from flor.store.bucket import Bucket\n"
        "Bucket('s3://data').list()\n"
    )
    done = project.python("-c", code, code=1, AWS_ACCESS_KEY_ID="a", AWS_SECRET_ACCESS_KEY="b")
    assert "pip install 'flor-hindsight[s3]'" in done.stderr


def test_a_forked_process_is_told_instead_of_hanging(
    project: Project, keys: dict[str, str]
) -> None:
    """The client's threads are not in the child."""
    code = (
        "import os, sys\nfrom flor.errors import BucketError\nfrom flor.store.bucket import Bucket\n"
        "bucket = Bucket('s3://data'); bucket.list()\n"
        "if os.fork() == 0:\n"
        "    try: bucket.list()\n"
        "    except BucketError as error: print(error, flush=True)\n"
        "    os._exit(0)\n"
        "os.wait()\n"
    )
    assert "forked" in project.python("-c", code, **keys).stdout


# --- networks -----------------------------------------------------------------------------


@pytest.fixture
def wired(
    keys: dict[str, str], wire: Wire, url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Bucket]:
    """The bucket, at the other end of a connection that can break."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", wire.url)
    yield Bucket(url, patience_seconds=10)


def test_a_server_that_is_down_is_said_in_the_end(
    wired: Bucket, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire.refuse()
    hasty = Bucket(wired.url, patience_seconds=0.5)
    began = time.monotonic()
    with pytest.raises(
        BucketError, match=rf"cannot list {wired.url} at {wire.url}.*refused.*again"
    ):
        hasty.list()
    assert 0.2 < time.monotonic() - began < 5


def test_a_server_that_comes_back_is_found(wired: Bucket, wire: Wire, store: ObjectStore) -> None:
    wire.refuse()
    threading.Timer(0.7, wire.connect).start()
    digest = put(wired, store, b"late")
    assert wired.read(digest) == b"late"


def test_a_download_goes_on_where_it_broke(
    wired: Bucket, wire: Wire, store: ObjectStore, tmp_path: Path
) -> None:
    content = content_of(LARGE)
    digest = put(wired, store, content)
    came: list[int] = []
    wire.at(LARGE // 2, wire.cut, down=True)
    assert wired.fetch(digest, tmp_path / "there", came.append)
    assert (tmp_path / "there").read_bytes() == content
    assert sum(came) == LARGE


def test_an_upload_that_broke_is_done_again(wired: Bucket, wire: Wire, store: ObjectStore) -> None:
    content = content_of(LARGE)
    digest = store.put(content)
    went: list[int] = []
    wire.at(LARGE // 2, wire.cut)
    assert wired.put(digest, store.path(digest), went.append)
    assert wired.read(digest) == content
    assert sum(went) == LARGE


def test_a_server_that_is_killed_in_the_middle_of_an_upload(
    tmp_path: Path, store: ObjectStore, keys: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is started again, and has what it had; the upload ends well."""
    (tmp_path / "s3").mkdir()
    server = S3Server(tmp_path / "s3")
    server.start()
    wire = Wire(server.url)
    monkeypatch.setenv("AWS_ENDPOINT_URL", wire.url)
    bucket = Bucket("s3://data/killed", patience_seconds=60)
    try:
        before = put(bucket, store, b"before")
        restarted = threading.Thread(target=lambda: (server.kill(), server.start()))
        wire.at(LARGE // 2, restarted.start)
        digest = put(bucket, store, content_of(LARGE))
        restarted.join()
        assert bucket.list() == {before: 6, digest: LARGE}
        assert bucket.read(digest) == content_of(LARGE)
    finally:
        wire.refuse()
        server.kill()


# --- a project ----------------------------------------------------------------------------


class Shop:
    """A project with checkpoints made by hand, and a bucket."""

    def __init__(self, project: Project, keys: dict[str, str], url: str) -> None:
        self.project = project
        self.bucket = Bucket(url)
        project.env = {**keys, "FLOR_BUCKET": url}
        self.settings = Settings(root=project.root, projid="proj", bucket=url)
        self.storage = Storage(self.settings)

    def restores(self) -> bool:
        """Whether every listed checkpoint and value is to be had, whole, wherever it is."""
        store = store_of(self.settings)
        for path in self.settings.runs_dir.glob("*/*.jsonl"):
            for line in map(json.loads, path.read_text().splitlines()):
                if isinstance(line, dict) and line["t"] == "checkpoint":
                    manifest = Manifest.from_bytes(store.get(line["manifest"]))
                    for digest in manifest.digests:
                        store.get(digest)
                elif isinstance(line, list) and len(line) > 4:
                    store.get(line[3]["digest"])
        return True

    def whole_in_bucket(self) -> int:
        """The checkpoints whose manifest is in the bucket; all that they need is there too."""
        there = self.bucket.list()
        manifests = 0
        for digest in there:
            content = self.bucket.read(digest) or b""
            if content.startswith(b'{"run_id"'):
                manifests += 1
                assert Manifest.from_bytes(content).digests <= there.keys()
        return manifests

    def asked(self, *words: str, code: int = 0, **env: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.project.flor(*words, "--json", code=code, **env))
        return found

    def paths(self) -> dict[str, tuple[int, int]]:
        folder = self.settings.flor_dir
        found = (*folder.joinpath("objects").rglob("*"), *folder.glob("*.lock"))
        return {str(p): (p.stat().st_mtime_ns, p.stat().st_ino) for p in found}


@pytest.fixture
def shop(project: Project, keys: dict[str, str], url: str) -> Shop:
    return Shop(project, keys, url)


def test_spooling_over_the_limit_and_fetching_on_demand(shop: Shop) -> None:
    """The oldest objects go, manifests stay, and everything is to be had."""
    storage = shop.storage
    old = storage.training(A, 5, 1_000_000, shared=[b"s" * 500_000])
    new = storage.training(B, 5, 1_000_000, shared=[b"s" * 500_000])
    value = storage.value(storage.run("20261118-210312-cccccc"), b"v" * 100_000)
    storage.age(9000)
    storage.age(60, set().union(*map(storage.needs, new)))
    needs = {digest: storage.needs(digest) for digest in (*old, *new)}

    done = shop.asked("gc", "--limit", "0.0062", "--yes")

    assert done["refusals"] == []
    assert done["done"]["spooled_bytes"] >= 4_000_000
    here = storage.here()
    sizes = {digest: storage.store.path(digest).stat().st_size for digest in here}
    assert sum(sizes.values()) <= 6_200_000 * 0.9
    assert here >= {*old, *new}
    assert not here & (set().union(*(needs[m] for m in old)) - set(old) - needs[new[0]])
    assert value not in here
    assert here >= needs[new[-1]] - needs[old[0]]
    assert shop.whole_in_bucket() == 10
    assert "nothing to do" in shop.project.flor("gc", "--limit", "0.0062")
    assert shop.restores()
    assert storage.here() == here | set().union(*needs.values()) | {value}


def test_pushing_and_pulling_between_machines(shop: Shop, tmp_path: Path) -> None:
    storage = shop.storage
    storage.training(A, 3, shared=[b"shared"])
    journal = storage.run(B)
    storage.checkpoint(journal, 0, [b"b", b"shared"])
    value = storage.value(journal, b"value")

    assert "would upload 4 objects" in shop.project.flor("objects", "push", "latest", "--dry-run")
    assert shop.whole_in_bucket() == 0
    assert "uploaded 4 objects" in shop.project.flor("objects", "push", "latest")
    assert shop.whole_in_bucket() == 1
    assert "; 4 were there" in shop.project.flor("objects", "push")
    assert shop.whole_in_bucket() == 4
    assert "uploaded 0 objects" in shop.project.flor("objects", "push")

    other = Project(tmp_path / "other")
    shutil.copytree(shop.settings.runs_dir, other.root / ".flor" / "runs")
    theirs = Shop(other, shop.project.env, shop.bucket.url)
    runs = {run["run_id"]: run for run in theirs.asked("objects")["runs"]}
    assert (runs[A]["checkpoints"], runs[B]["checkpoints"]) == (3, 1)
    assert (runs[A]["missing"], runs[B]["missing"]) == (0, 0)
    assert "would download 3 objects" in other.flor("objects", "pull", "-1", "--dry-run")
    assert "downloaded 3 objects" in other.flor("objects", "pull", "-1")
    assert theirs.storage.store.get(value) == b"value"
    assert theirs.storage.here() < storage.here()
    other.flor("objects", "pull", A)
    assert theirs.storage.here() == storage.here()
    assert theirs.restores()


def test_what_is_missing_or_damaged_is_said_and_the_rest_goes(shop: Shop) -> None:
    storage = shop.storage
    first, second, third = storage.training(A, 3)
    (lost,) = storage.needs(first) - {first}
    (bad,) = storage.needs(second) - {second}
    storage.store.path(lost).unlink()
    storage.store.path(bad).write_bytes(b"?" * 1000)

    done = shop.project.python("-m", "flor", "objects", "push", code=1)

    assert f"{lost[:12]}…" in done.stderr
    assert str(storage.store.path(bad)) in done.stderr
    assert set(shop.bucket.list()) == storage.needs(third)
    run = shop.asked("objects")["runs"][0]
    assert (run["checkpoints"], run["incomplete"], run["missing"]) == (3, 1, 1)
    done = shop.project.python("-m", "flor", "objects", "pull", "latest", code=1)
    assert f"{lost[:12]}…" in done.stderr


def test_a_push_that_is_killed_loses_nothing(shop: Shop, wire: Wire) -> None:
    """Killed in the middle of the second large checkpoint; done again, it is whole."""
    storage = shop.storage
    storage.training(A, 3, size_bytes=LARGE)
    before = storage.here()
    client = shop.project.start("-m", "flor", "objects", "push", AWS_ENDPOINT_URL=wire.url)
    wire.at(LARGE + LARGE // 2, client.kill)
    client.communicate(timeout=60)

    assert client.returncode == -signal.SIGKILL
    assert storage.here() == before
    assert shop.whole_in_bucket() < 3
    assert shop.restores()

    shop.project.flor("objects", "push")
    assert shop.whole_in_bucket() == 3
    shutil.rmtree(shop.settings.objects_dir)
    assert shop.restores()


def test_a_sweep_that_is_killed_loses_nothing(shop: Shop, wire: Wire) -> None:
    storage = shop.storage
    storage.training(A, 3, size_bytes=LARGE)
    storage.age()
    words = ("-m", "flor", "gc", "--limit", "0.03", "--yes")
    client = shop.project.start(*words, AWS_ENDPOINT_URL=wire.url)
    wire.at(LARGE + LARGE // 2, client.kill)
    client.communicate(timeout=60)
    assert client.returncode == -signal.SIGKILL
    here = storage.here()
    assert shop.restores()

    storage.age(digests=here & storage.here())
    shop.project.flor("gc", "--limit", "0.03", "--yes")
    assert sum(p.stat().st_size for p in storage.store.folder.glob("*/*")) <= 30_000_000
    assert shop.restores()


def overwrite(bucket: Bucket, digests: Iterable[str]) -> None:
    """Somebody else puts zeros there, as many as there were bytes."""
    for digest in digests:
        zeros = bytes(bucket.size(digest) or 0)
        bucket._obstore.put(bucket._quick, f"objects/{digest[:2]}/{digest[2:]}", zeros)


@pytest.mark.parametrize("receipts", ["kept", "removed", "torn"])
def test_a_copy_stays_until_the_bucket_has_its_content(shop: Shop, receipts: str) -> None:
    """What is there with the right size and other content is replaced by the copy first."""
    storage = shop.storage
    manifests = storage.training(A, 3, shared=[content_of(LARGE)])
    shop.project.flor("objects", "push")
    (small,) = storage.needs(manifests[0]) - storage.needs(manifests[1]) - {manifests[0]}
    overwrite(shop.bucket, [small, digest_of(content_of(LARGE))])
    path = shop.settings.flor_dir / "receipts.jsonl"
    if receipts == "removed":
        path.unlink()
    elif receipts == "torn":
        path.write_bytes(path.read_bytes()[:-9])
    storage.age()

    told = shop.project.flor("gc", "--limit", "0.000001", "--yes", "--grace", "0", code=1)

    assert "replaced 2 objects in the bucket whose content was wrong" in told
    assert "spooled 4 objects" in told
    assert storage.here() == set(manifests)
    assert shop.restores()


def test_a_copy_that_is_damaged_too_replaces_nothing(shop: Shop) -> None:
    storage = shop.storage
    manifests = storage.training(A, 1, size_bytes=LARGE)
    (digest,) = storage.needs(manifests[0]) - set(manifests)
    shop.project.flor("objects", "push")
    overwrite(shop.bucket, [digest])
    path = storage.store.path(digest)
    path.write_bytes(content_of(LARGE, seed=2))
    storage.age()

    words = ("-m", "flor", "gc", "--limit", "0.000001", "--yes", "--grace", "0")
    done = shop.project.python(*words, code=1)

    assert f"{path} is damaged and was not uploaded" in done.stderr
    assert path.read_bytes() == content_of(LARGE, seed=2)
    assert "spooled" not in done.stdout.splitlines()[-1]


def test_what_this_machine_uploaded_is_not_read_back(shop: Shop, wire: Wire) -> None:
    """Nor what it fetched; what another one uploaded is, once."""
    storage = shop.storage
    storage.training(A, 1, size_bytes=LARGE)
    gc = ("gc", "--limit", "0.000001", "--yes", "--grace", "0")
    receipts = shop.settings.flor_dir / "receipts.jsonl"
    came: list[bool] = []

    def reads(*words: str) -> bool:
        came.clear()
        wire.at(LARGE // 2, lambda: came.append(True), down=True)
        shop.project.flor(*words, AWS_ENDPOINT_URL=wire.url)
        return bool(came)

    def sweeps() -> bool:
        storage.age()
        return reads(*gc)

    assert not sweeps()
    assert reads("objects", "pull", "latest")
    assert not sweeps()
    shop.project.flor("objects", "pull", "latest", AWS_ENDPOINT_URL=wire.url)
    receipts.unlink()
    assert sweeps()
    assert receipts.exists()


def test_ctrl_c_ends_an_upload_soon(shop: Shop, wire: Wire) -> None:
    storage = shop.storage
    storage.training(A, 3, size_bytes=LARGE)
    storage.age()
    words = ("-m", "flor", "gc", "--limit", "0.03", "--yes")
    client = shop.project.start(*words, AWS_ENDPOINT_URL=wire.url)
    wire.at(LARGE // 2, lambda: client.send_signal(signal.SIGINT))
    _, err = client.communicate(timeout=30)
    assert (client.returncode, err.splitlines()[-1]) == (130, "flor: stopped")
    assert "Traceback" not in err
    assert shop.restores()


def test_a_bucket_that_refuses_keeps_everything(shop: Shop) -> None:
    """Over the limit, an orphan around, and a checkpoint whose manifest might be in the bucket."""
    storage = shop.storage
    first, *_ = storage.training(A, 3)
    storage.store.put(b"orphan")
    storage.store.path(first).unlink()
    storage.age()
    before = storage.here()
    wrong = {"AWS_SECRET_ACCESS_KEY": "wrong"}
    words = ("-m", "flor", "gc", "--limit", "0.000001", "--yes")
    done = shop.project.python(*words, code=1, **wrong)
    assert "nobody seems to need stay: the manifest of a checkpoint is not here" in done.stderr
    assert "nothing is spooled" in done.stderr
    assert done.stderr.count("HTTP 403") == 2
    assert storage.here() == before
    assert "HTTP 403" in shop.project.python("-m", "flor", "objects", **wrong).stderr
    words = ("-m", "flor", "objects", "push")
    assert "HTTP 403" in shop.project.python(*words, code=1, **wrong).stderr


def test_keep_does_not_touch_what_is_in_a_bucket(shop: Shop) -> None:
    shop.storage.training(A, 4)
    done = shop.project.python("-m", "flor", "gc", "--keep", "2", "--yes", code=1)
    assert "FLOR_BUCKET= flor gc --keep 2" in done.stderr


# --- without a bucket ---------------------------------------------------------------------


@pytest.fixture
def alone_shop(project: Project) -> Shop:
    found = Shop(project, {}, "s3://unused")
    project.env = {}
    return found


def test_objects_by_run(alone_shop: Shop) -> None:
    storage, project = alone_shop.storage, alone_shop.project
    first, *_ = storage.training(A, 4, shared=[b"s" * 9000])
    storage.training(B, 2, shared=[b"s" * 9000])
    storage.value(storage.run("20261118-210312-cccccc"), b"v" * 500)
    storage.store.path(first).unlink()
    storage.age()

    found = alone_shop.asked("objects")
    run, other, logged = found["runs"]
    assert (run["checkpoints"], run["recorded"], other["checkpoints"]) == (3, 4, 2)
    assert (logged["bytes"], logged["own_bytes"], logged["recorded"]) == (500, 500, 0)
    assert run["bytes"] - run["own_bytes"] == 9000
    assert run["local_bytes"] == run["bytes"]
    assert found["totals"]["orphan_bytes"] == 1000
    assert found["totals"]["saved_bytes"] > 3 * 9000
    text = project.flor("objects")
    for part in ("3/4", "only it", "none is set", "sharing", "1 file that nobody needs"):
        assert part in text
    text = project.flor("objects", "--run", "-1")
    assert "cccccc" in text
    assert A not in text
    assert (
        "no run is called" in project.python("-m", "flor", "objects", "--run", "x", code=1).stderr
    )
    assert "no bucket is set" in project.python("-m", "flor", "objects", "push", code=1).stderr


def test_verify_names_what_is_damaged(alone_shop: Shop) -> None:
    storage, project = alone_shop.storage, alone_shop.project
    storage.training(A, 2, shared=[b"s" * 9000])
    assert "verified  5 objects, 0 damaged" in project.flor("objects", "--verify")
    path = storage.store.path(digest_of(b"s" * 9000))
    path.write_bytes(b"s" * 8999)
    text = project.flor("objects", "--verify", code=1)
    assert f"{path}: checkpoint 1000 of run {A}, checkpoint 1001 of run {A}" in text
    assert "remove it" in text
    found = alone_shop.asked("objects", "--verify", code=1)
    assert [item["path"] for item in found["damaged"]] == [str(path)]


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
@pytest.mark.parametrize("what", ["tensor", "manifest", "orphan"])
def test_only_regular_files_are_objects(alone_shop: Shop, kind: str, what: str) -> None:
    storage, project = alone_shop.storage, alone_shop.project
    first, second = storage.training(A, 2)
    (tensor,) = storage.needs(first) - {first}
    orphan = storage.store.put(b"orphan")
    storage.age()
    path = storage.store.path({"tensor": tensor, "manifest": first, "orphan": orphan}[what])
    irregular(kind, path)

    for words in (["objects"], ["objects", "--run", "latest"]):
        assert str(path) in project.python("-m", "flor", *words).stderr
    assert f"damaged   {path}: " in project.flor("objects", "--verify", code=1)
    found = alone_shop.asked("objects", "--verify", code=1)
    assert [item["path"] for item in found["damaged"]] == [str(path)]
    words = ("-m", "flor", "gc", "--limit", "0.000000001", "--yes", "--grace", "0")
    done = project.python(*words, code=1)
    assert (str(path) in done.stderr) == (what == "manifest")
    assert os.path.lexists(path)
    assert second in storage.here()


def test_a_pipe_gives_way_to_what_is_in_the_bucket(shop: Shop) -> None:
    storage = shop.storage
    first, _ = storage.training(A, 2)
    shop.project.flor("objects", "push")
    for digest in storage.needs(first):
        irregular("pipe", storage.store.path(digest))
    shop.project.flor("objects", "pull", "latest")
    assert shop.restores()


def test_a_run_without_objects_is_told_from_a_project_without_any(alone_shop: Shop) -> None:
    project = alone_shop.project
    alone_shop.storage.run(B)
    assert "no run needs any objects yet" in project.flor("objects")
    alone_shop.storage.training(A, 1)
    told = project.flor("objects", "--run", B)
    assert f"run {B} needs no objects; in all of the project:" in told
    assert "no run" not in told


def test_gc_asks_before_it_works(alone_shop: Shop) -> None:
    storage, project = alone_shop.storage, alone_shop.project
    storage.training(A, 8)
    storage.store.put(b"orphan")
    storage.age()
    before = alone_shop.paths()

    text = project.flor("gc", "--dry-run", "--limit", "0.000006")
    assert "4 checkpoints" in text
    assert A in text
    assert alone_shop.paths() == before
    done = project.python("-m", "flor", "gc", "--limit", "0.000006", code=2)
    assert "add --yes" in done.stderr
    assert _answer(project, "n") == 0
    assert len(storage.here()) == 17
    assert _answer(project, "y") == 0
    assert len(storage.here()) == 8
    assert alone_shop.asked("objects")["runs"][0]["checkpoints"] == 4
    assert "nothing to do" in project.flor("gc")


def _answer(project: Project, answer: str) -> int:
    """The exit code of `flor gc` on a terminal where somebody answers."""
    pid, fd = pty.fork()
    if pid == 0:
        os.chdir(project.root)
        os.environ.update(project.environment, TERM="dumb")
        words = ["-m", "flor", "gc", "--limit", "0.000006"]
        os.execv(sys.executable, [sys.executable, *words])
    said = b""
    try:
        while block := os.read(fd, 4096):
            said += block
            if b"do this?" in said:
                os.write(fd, f"{answer}\n".encode())
                said = b""
    except OSError:
        pass  # the other end is closed
    os.close(fd)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_gc_that_trainings_start_is_quiet(alone_shop: Shop) -> None:
    storage, project = alone_shop.storage, alone_shop.project
    storage.training(A, 8)
    storage.age()
    done = project.python("-m", "flor", "gc", "--auto", FLOR_OBJECTS_LIMIT_GB="0.000006")
    assert (done.stdout, done.stderr) == ("", "")
    assert alone_shop.asked("objects")["runs"][0]["checkpoints"] == 4


@pytest.mark.parametrize("value", ["nan", "inf", "-1"])
@pytest.mark.parametrize("option", ["--limit", "--grace"])
def test_amounts_that_make_no_sense(alone_shop: Shop, option: str, value: str) -> None:
    done = alone_shop.project.python("-m", "flor", "gc", option, value, code=2)
    assert f"Invalid value for '{option}'" in done.stderr


def test_one_gc_at_a_time(alone_shop: Shop) -> None:
    project = alone_shop.project
    alone_shop.storage.training(A, 1)
    with alone(alone_shop.settings):
        done = project.python("-m", "flor", "gc", "--yes", code=1)
        assert "another `flor gc` is at work" in done.stderr
        done = project.python("-m", "flor", "gc", "--auto")
        assert (done.stdout, done.stderr) == ("", "")
        project.flor("gc", "--dry-run")
    project.flor("gc", "--yes")


def test_commands_leave_no_trace_where_nothing_was_recorded(folder: Project) -> None:
    for words in (["objects"], ["objects", "--json"], ["gc"], ["gc", "--dry-run"]):
        folder.flor(*words)
    assert list(folder.root.iterdir()) == []


def test_no_pandas(alone_shop: Shop) -> None:
    alone_shop.storage.training(A, 1)
    for words in (["objects"], ["gc", "--dry-run"]):
        code = (
            "import sys; sys.argv = ['flor', *sys.argv[1:]]\nfrom flor.cli.app import run\n"
            "try: run()\nexcept SystemExit: pass\nprint('pandas' in sys.modules)\n"
        )
        assert alone_shop.project.python("-c", code, *words).stdout.endswith("False\n")


def test_help(project: Project) -> None:
    text = project.flor("--help")
    assert "  objects" in text
    assert "  gc" in text
    assert "--auto" not in project.flor("gc", "--help")
    for words in (["objects", "--help"], ["objects", "push", "--help"]):
        assert "Usage: flor objects" in project.flor(*words)
    done = subprocess.run(
        [sys.executable, "-m", "flor", "objects", "psh"], capture_output=True, check=False
    )
    assert b"Did you mean `flor objects push`?" in done.stderr
