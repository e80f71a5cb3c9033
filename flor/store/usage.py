"""Who needs which object: checkpoints, logged values, and pins.

What is removed is what nobody needs; so whatever cannot be read becomes a *doubt*, and where there
is one, nothing is taken for unneeded. A journal whose lines are damaged is read for anything that
looks like the name of an object, instead.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from stat import S_ISREG

from flor.config import Settings
from flor.errors import BucketError
from flor.model import Kind
from flor.objects import is_digest
from flor.store import journals
from flor.store.bucket import Bucket
from flor.store.database import Database
from flor.store.ingest import ingest, known_runs
from flor.store.manifests import Manifests
from flor.store.mentions import Mentions
from flor.store.pins import read_pins
from flor.store.project import Project
from flor.store.retention import Held, HeldRun, Instance

TRASH = ".trash-"  # before the name of an object that is being removed


@dataclass(frozen=True)
class Stored:
    """A file in the folder of objects, as it was found."""

    path: Path
    size_bytes: int
    used_ns: int


@dataclass(frozen=True)
class CheckpointUsage:
    """A checkpoint that a journal lists. `objects` is None if its manifest is not to be had."""

    number: int
    manifest: str
    instance: Instance
    iteration: int
    size_bytes: int  # of all that it holds
    objects: frozenset[str] | None = None  # that it needs, the manifest's own included


@dataclass(frozen=True)
class RunUsage:
    """What a run needs. `values` are the objects that it logged, and their sizes."""

    run_id: str
    filename: str
    alive: bool
    ours: bool  # of this project; others may share the database
    checkpoints: tuple[CheckpointUsage, ...]
    values: Mapping[str, int]
    value_bytes: int  # of all logged objects, as if none were shared

    @property
    def there(self) -> list[CheckpointUsage]:
        """The checkpoints whose manifests are to be had."""
        return [item for item in self.checkpoints if item.objects is not None]

    @cached_property
    def objects(self) -> frozenset[str]:
        """All that it needs."""
        return frozenset(self.values).union(*(item.objects or () for item in self.checkpoints))

    @property
    def logical_bytes(self) -> int:
        """What it would take if nothing were stored once only."""
        return self.value_bytes + sum(item.size_bytes for item in self.there)


@dataclass(frozen=True)
class Pin:
    """Checkpoints that somebody needs for now."""

    path: Path
    manifests: frozenset[str]
    objects: frozenset[str]  # the manifests' own included
    why: str


@dataclass(frozen=True)
class Usage:
    """Everything that is stored here and, if there is a bucket, there; and what needs it."""

    settings: Settings
    runs: tuple[RunUsage, ...]  # oldest first
    local: Mapping[str, Stored]
    partials: tuple[Stored, ...]  # unfinished files
    irregular: Mapping[str, Path]  # what is called like an object and is no file
    remote: Mapping[str, int] | None  # None: there is no bucket, or it does not answer
    trouble: str | None  # why it does not
    pins: tuple[Pin, ...]
    mentioned: frozenset[str]  # in journals that are not wholly understood
    doubts: tuple[str, ...]  # why it is not known what is needed

    @cached_property
    def users(self) -> Mapping[str, set[str]]:
        """The runs that need an object."""
        found: dict[str, set[str]] = {}
        for run in self.runs:
            for digest in run.objects:
                found.setdefault(digest, set()).add(run.run_id)
        return found

    @cached_property
    def pinned(self) -> frozenset[str]:
        return frozenset().union(*(pin.objects for pin in self.pins))

    @cached_property
    def needed(self) -> frozenset[str]:
        return self.pinned | self.mentioned | self.users.keys()

    @cached_property
    def manifests(self) -> frozenset[str]:
        """Of all checkpoints that are to be had."""
        listed = {item.manifest for run in self.runs for item in run.there}
        return frozenset(listed.union(*(pin.manifests for pin in self.pins)))

    @property
    def busy(self) -> bool:
        """Whether somebody may be writing a checkpoint that no journal lists yet."""
        return bool(self.pins) or any(run.alive for run in self.runs)

    @cached_property
    def local_bytes(self) -> int:
        return sum(item.size_bytes for item in (*self.local.values(), *self.partials))

    @property
    def orphans(self) -> list[str]:
        """The objects here that nobody is known to need."""
        return [digest for digest in self.local if digest not in self.needed]

    def size(self, digest: str) -> int | None:
        """Of an object, wherever it is; None if it is nowhere."""
        if digest in self.local:
            return self.local[digest].size_bytes
        return (self.remote or {}).get(digest)

    def held_runs(self) -> list[HeldRun]:
        """The runs with checkpoints here, for a plan of which to keep; oldest use first."""
        found = []
        for run in self.runs:
            checkpoints = tuple(
                Held(
                    *(run.run_id, item.number, item.manifest, item.instance, item.iteration),
                    item.objects or frozenset(),
                    item.manifest in self.pinned,
                )
                for item in run.there
                if item.manifest in self.local
            )
            if checkpoints:
                found.append(HeldRun(run.run_id, checkpoints, run.alive))
        return sorted(found, key=self._last_use_ns)

    def _last_use_ns(self, run: HeldRun) -> int:
        return max(self.local[checkpoint.manifest].used_ns for checkpoint in run.checkpoints)


def read_usage(project: Project, bucket: Bucket | None, *, keep_manifests: bool = True) -> Usage:
    """Find out who needs what. What cannot be found out is among its `doubts`.

    Manifests that are only in the bucket are brought here, unless told not to keep them.
    """
    settings, db = project.settings, project.db
    doubts: list[str] = []
    # The files come first: what is used after this has a newer time than the one found here.
    local, partials, irregular = _scan(settings.objects_dir, doubts)
    remote, trouble = _list_bucket(bucket)
    _read_on(settings, db, doubts)
    manifests = Manifests(settings.objects_dir, bucket, remote, keep_manifests, doubts)
    runs = _runs(settings, db, manifests)
    pins = _pins(settings, manifests, doubts)
    if manifests.unreachable:
        count = len(manifests.unreachable)
        what = "the manifest of a checkpoint is" if count == 1 else f"{count:,} manifests are"
        doubts.append(f"{what} not here, and {trouble}")
    usage = Usage(
        *(settings, tuple(runs), local, tuple(partials), irregular, remote, trouble),
        *(tuple(pins), frozenset(), ()),
    )
    # A manifest that no row lists may stand in a journal that an older flor read.
    forgotten = [found.run_id for d in usage.orphans if (found := manifests.guess(d)) is not None]
    listed = {item.manifest for run in runs for item in run.checkpoints}
    mentioned = Mentions(settings, db, doubts).find(forgotten) - listed
    for found in filter(None, map(manifests.guess, sorted(mentioned))):
        mentioned |= found.digests
    return replace(usage, mentioned=frozenset(mentioned), doubts=tuple(doubts))


# --- files ----------------------------------------------------------------------------------------


def _scan(
    folder: Path, doubts: list[str]
) -> tuple[dict[str, Stored], list[Stored], dict[str, Path]]:
    """The objects, the unfinished files, and what stands in an object's place and is no file.

    Others are not ours.
    """
    local: dict[str, Stored] = {}
    partials: list[Stored] = []
    irregular: dict[str, Path] = {}
    for top in _entries(folder, doubts):
        if len(top.name) != 2 or not top.is_dir(follow_symlinks=False):
            continue
        for entry in _entries(Path(top.path), doubts):
            digest = top.name + entry.name
            unfinished = entry.name.startswith(".") and not entry.name.startswith(TRASH)
            if not unfinished and not is_digest(digest):
                continue
            try:
                stat = entry.stat(follow_symlinks=False)
            except OSError:
                continue  # it was removed just now
            if not S_ISREG(stat.st_mode):
                if not unfinished and not _is_file(entry):
                    irregular[digest] = Path(entry.path)
                continue
            item = Stored(Path(entry.path), stat.st_size, stat.st_mtime_ns)
            if unfinished:
                partials.append(item)
            else:
                local[digest] = item
    return local, partials, irregular


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:
        return False


def _entries(folder: Path, doubts: list[str]) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except FileNotFoundError:
        return []
    except OSError as error:
        doubts.append(f"{folder} cannot be read: {error.strerror}")
        return []


def _list_bucket(bucket: Bucket | None) -> tuple[dict[str, int] | None, str | None]:
    if bucket is None:
        return None, None
    try:
        return bucket.list(), None
    except BucketError as error:
        return None, str(error)


# --- journals -------------------------------------------------------------------------------------


def _read_on(settings: Settings, db: Database, doubts: list[str]) -> None:
    """Bring the database up to date; what of the journals it lacks are doubts."""
    listed = [entry.name for entry in _entries(settings.runs_dir, doubts) if _is_dir(entry)]
    report = ingest(settings, db)
    if report.unreadable:
        place = settings.runs_dir / report.unreadable[0]
        doubts.append(f"journals cannot be read, such as those in {place}")
    unknown = set(listed) - known_runs(db) - set(report.unreadable)
    for run_id in sorted(unknown):
        try:
            if journals.journal_files(settings.runs_dir / run_id):
                doubts.append(f"the journal in {settings.runs_dir / run_id} is not understood")
        except OSError as error:
            doubts.append(f"{settings.runs_dir / run_id} cannot be read: {error.strerror}")


def _is_dir(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return True


# --- checkpoints and values -----------------------------------------------------------------------


def _runs(settings: Settings, db: Database, manifests: Manifests) -> list[RunUsage]:
    listed: dict[int, list[CheckpointUsage]] = {}
    for run_pk, file_no, number, loop_pk, iteration, manifest, size_bytes in db.execute(
        "select run_pk, file_no, checkpoint, loop_pk, iteration, manifest, size_bytes "
        "from checkpoints order by run_pk, file_no, checkpoint"
    ):
        place = Instance(file_no, loop_pk)
        listed.setdefault(run_pk, []).append(
            CheckpointUsage(number, manifest, place, iteration, size_bytes)
        )
    values, value_bytes = _values(db)
    rows = db.execute(
        "select run_pk, run_id, projid, filename, closed from runs order by tstamp, run_id"
    )
    ours = {row[0] for row in rows if db.scope in (None, row[2])}
    own = {item.manifest for run_pk in ours for item in listed.get(run_pk, ())}
    manifests.load(own)
    others = {item.manifest for items in listed.values() for item in items} - own
    manifests.load(filter(manifests.is_here, others))
    found = []
    for run_pk, run_id, _, filename, closed in rows:
        checkpoints = tuple(
            replace(item, objects=manifests.objects(item.manifest))
            for item in listed.get(run_pk, ())
        )
        alive = not closed and (settings.runs_dir / run_id).is_dir()
        sizes = values.get(run_pk, {})
        found.append(
            RunUsage(
                *(run_id, filename, alive, run_pk in ours, checkpoints),
                *(sizes, value_bytes.get(run_pk, 0)),
            )
        )
    return found


def _values(db: Database) -> tuple[dict[int, dict[str, int]], dict[int, int]]:
    """The logged objects of each run with their sizes, and their sum with repetitions."""
    values: dict[int, dict[str, int]] = {}
    sums: dict[int, int] = {}
    for run_pk, text in db.execute(
        "select run_pk, txt from records where kind = ?", (int(Kind.OBJECT),)
    ):
        stored = json.loads(text)
        if is_digest(stored["digest"]):
            values.setdefault(run_pk, {})[sys.intern(stored["digest"])] = stored["size_bytes"]
            sums[run_pk] = sums.get(run_pk, 0) + stored["size_bytes"]
    return values, sums


def _pins(settings: Settings, manifests: Manifests, doubts: list[str]) -> list[Pin]:
    found = []
    for item in read_pins(settings):
        if item.error is not None:
            doubts.append(f"the pin {item.path} cannot be read ({item.error}); remove it")
        elif item.alive:
            named = frozenset(filter(is_digest, item.manifests))
            manifests.load(sorted(named))
            needed = named.union(*(manifests.objects(digest) or () for digest in named))
            found.append(Pin(item.path, named, needed, item.why))
    return found
