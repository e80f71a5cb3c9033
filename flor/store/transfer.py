"""Objects on their way to the bucket and back: several at once, checked, and safe to break off.

What a checkpoint needs goes before its manifest, so that a checkpoint whose manifest is in the
bucket is whole there, whatever ended the upload.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from flor.errors import BucketError, ObjectMissing
from flor.objects import ObjectStore
from flor.store.bucket import Bucket
from flor.store.usage import RunUsage, Usage

WORKERS = 4
BATCH_OBJECTS = 64
BATCH_BYTES = 512 * 1024 * 1024
FREE_BYTES = 1024**3  # a disk is not filled further than this


class Progress(Protocol):
    """Is told how far a transfer is."""

    def begin(self, what: str, size_bytes: int) -> None: ...
    def advance(self, size_bytes: int) -> None: ...
    def end(self) -> None: ...


class Silent:
    """Tells nobody."""

    def begin(self, what: str, size_bytes: int) -> None: ...
    def advance(self, size_bytes: int) -> None: ...
    def end(self) -> None: ...


class Group(NamedTuple):
    """Objects that go together: those of a checkpoint and then its manifest, or logged values."""

    name: str
    objects: tuple[str, ...]
    manifest: str | None = None


@dataclass
class Moved:
    """What a transfer did."""

    objects: int = 0
    size_bytes: int = 0
    already: int = 0  # objects that were there
    missing: set[str] = field(default_factory=set)  # neither here nor in the bucket
    failures: list[str] = field(default_factory=list)


class Stopped(Exception):
    """Another transfer failed, or the user wants no more."""


def groups_of(runs: Iterable[RunUsage]) -> list[Group]:
    """All that the runs need, each checkpoint and each run's logged values for itself."""
    found = []
    for run in runs:
        for item in run.there:
            needed = sorted((item.objects or frozenset()) - {item.manifest})
            name = f"checkpoint {item.number} of run {run.run_id}"
            found.append(Group(name, tuple(needed), item.manifest))
        if run.values:
            found.append(Group(f"logged values of run {run.run_id}", tuple(sorted(run.values))))
    return found


def to_push(usage: Usage, groups: Iterable[Group]) -> dict[str, int]:
    """What `push` would upload, with sizes. Raises BucketError."""
    there = _in_bucket(usage)
    wanted = {digest for group in groups for digest in (*group.objects, group.manifest or "")}
    return {d: usage.local[d].size_bytes for d in sorted(wanted & usage.local.keys() - there)}


def to_pull(usage: Usage, runs: Iterable[RunUsage]) -> dict[str, int]:
    """What `pull` would download, with sizes."""
    remote = usage.remote or {}
    wanted = sorted({digest for run in runs for digest in run.objects})
    going = [digest for digest in wanted if digest in remote and digest not in usage.local]
    going += [digest for digest in wanted if digest in usage.local and _is_torn(usage, digest)]
    return {digest: remote[digest] for digest in going}


def push(usage: Usage, bucket: Bucket, groups: Sequence[Group], progress: Progress) -> Moved:
    """Upload what is here and not in the bucket. Raises BucketError."""
    moved = Moved()
    for _ in upload(usage, bucket, groups, progress, moved):
        pass
    return moved


def upload(
    usage: Usage, bucket: Bucket, groups: Sequence[Group], progress: Progress, moved: Moved
) -> Iterator[list[str]]:
    """Upload batch after batch; after each, what of it the bucket holds. Raises BucketError."""
    there = _in_bucket(usage)
    wanted = {digest for group in groups for digest in (*group.objects, group.manifest or "")}
    moved.already += len(wanted & there)
    progress.begin("uploaded", sum(to_push(usage, groups).values()))
    try:
        for batch in _batches(groups, usage, there):
            needed = list(dict.fromkeys(digest for group in batch for digest in group.objects))
            moved.missing.update(d for d in needed if d not in there and d not in usage.local)
            _send(usage, bucket, needed, there, progress, moved)
            whole = [group for group in batch if there.issuperset(group.objects)]
            manifests = [group.manifest for group in whole if group.manifest is not None]
            _send(usage, bucket, manifests, there, progress, moved)
            for group in batch:
                if group not in whole:
                    moved.failures.append(f"{group.name} is not whole in {bucket.url}")
            yield [digest for digest in (*needed, *manifests) if digest in there]
    finally:
        progress.end()


def _send(
    usage: Usage,
    bucket: Bucket,
    digests: Iterable[str],
    there: set[str],
    progress: Progress,
    moved: Moved,
) -> None:
    going = [digest for digest in digests if digest in usage.local and digest not in there]

    def put(digest: str, advance: Callable[[int], None]) -> None:
        bucket.put(digest, usage.local[digest].path, advance)

    for digest in each(going, put, progress.advance, moved.failures):
        there.add(digest)
        moved.objects += 1
        moved.size_bytes += usage.local[digest].size_bytes


def pull(usage: Usage, bucket: Bucket, runs: Sequence[RunUsage], progress: Progress) -> Moved:
    """Download what is in the bucket and not here. Raises BucketError."""
    there = _in_bucket(usage)
    remote = usage.remote or {}
    moved = Moved()
    store = ObjectStore(usage.settings.objects_dir)
    wanted = sorted({digest for run in runs for digest in run.objects})
    moved.missing.update(d for d in wanted if d not in remote and d not in usage.local)
    moved.already = sum(d in usage.local and (d in there or d not in remote) for d in wanted)
    going = to_pull(usage, runs)
    _insist_on_room(usage, sum(going.values()))

    def fetch(digest: str, advance: Callable[[int], None]) -> None:
        if not bucket.fetch(digest, store.path(digest), advance):
            raise ObjectMissing(f"{digest} is not in {bucket.url} any more")

    progress.begin("downloaded", sum(going.values()))
    try:
        for digest in each(going, fetch, progress.advance, moved.failures):
            moved.objects += 1
            moved.size_bytes += going[digest]
    finally:
        progress.end()
    return moved


def each(
    digests: Iterable[str],
    work: Callable[[str, Callable[[int], None]], None],
    advance: Callable[[int], None],
    failures: list[str],
) -> list[str]:
    """Do the work for all of them, some at once; those for which it was done.

    An object that is missing or damaged is one of the `failures`. Whatever else is raised, here
    or in the work, ends all of it soon: within a block of an object, or a request.
    """
    stop = threading.Event()

    def go_on(size_bytes: int) -> None:
        if stop.is_set():
            raise Stopped
        advance(size_bytes)

    def one(digest: str) -> str | None:
        go_on(0)
        try:
            work(digest, go_on)
        except ObjectMissing as error:
            failures.append(str(error))
            return None
        return digest

    with ThreadPoolExecutor(WORKERS) as pool:
        futures = [pool.submit(one, digest) for digest in digests]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
            failed = [future for future in futures if future.done() and future.exception()]
            for future in failed:
                future.result()
            return [digest for future in futures if (digest := future.result()) is not None]
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)


def _in_bucket(usage: Usage) -> set[str]:
    """What the bucket holds for sure: where both are, the size tells. Raises BucketError."""
    if usage.remote is None:
        raise BucketError(usage.trouble or "no bucket is set; set `bucket` to s3://name/prefix")
    return {digest for digest in usage.remote if not _is_torn(usage, digest)}


def _is_torn(usage: Usage, digest: str) -> bool:
    """Whether the object here and the one there differ in size."""
    assert usage.remote is not None
    here = usage.local.get(digest)
    return here is not None and usage.remote.get(digest, here.size_bytes) != here.size_bytes


def _batches(groups: Sequence[Group], usage: Usage, there: set[str]) -> Iterator[list[Group]]:
    batch: list[Group] = []
    new: set[str] = set()
    for group in groups:
        batch.append(group)
        new.update(d for d in group.objects if d not in there and d in usage.local)
        size_bytes = sum(usage.local[digest].size_bytes for digest in new)
        if len(new) >= BATCH_OBJECTS or size_bytes >= BATCH_BYTES:
            yield batch
            batch, new = [], set()
    if batch:
        yield batch


def _insist_on_room(usage: Usage, size_bytes: int) -> None:
    folder = usage.settings.objects_dir
    place = next(path for path in (folder, *folder.parents) if path.is_dir())
    free = shutil.disk_usage(place).free
    if size_bytes and free < size_bytes + FREE_BYTES:
        raise BucketError(
            f"{size_bytes / 1024**3:,.1f} GiB would come and {free / 1024**3:,.1f} GiB are free at "
            f"{place}; make room, or name a run that needs less"
        )
