"""`flor gc`: what nobody needs goes, and what the limit leaves no room for goes to the bucket.

Without a bucket, checkpoints are thinned. Nothing goes that a training is about to rely on: whoever
relies on an object touches it, so an object goes aside under another name first, and comes back if
its time is not the one that was decided on. A manifest goes before what it needs, and a local copy
only when the bucket is known to hold the same content; killed at any moment, a sweep loses nothing.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from flor.config import Settings
from flor.errors import StoreError
from flor.store.bucket import Bucket
from flor.store.pins import locked, pins_held, read_pins
from flor.store.retention import Held, HeldRun, freed_by, keep_evenly, plan_thinning
from flor.store.transfer import Group, Moved, Progress, each, groups_of, upload
from flor.store.usage import TRASH, Stored, Usage

GB = 1e9  # of objects_limit_gb
GRACE_SECONDS = 3600.0  # what is younger may belong to a checkpoint that is being written
BUSY_SECONDS = 600.0  # the same over the limit, and for what a retired checkpoint needed
RACY_SECONDS = 2.0  # within one tick of a file system's clock, two times may be equal
LOW_WATER = 0.9  # of the limit: what is over it is brought down to this
LOCK = "gc.lock"


@dataclass(frozen=True)
class Options:
    """What the user wants. `keep` thins every run that has ended to so many checkpoints."""

    limit_bytes: float
    grace_seconds: float | None = None  # None: GRACE_SECONDS, over the limit BUSY_SECONDS
    keep: int | None = None


@dataclass(frozen=True)
class Plan:
    """What a sweep would do. Nothing was changed by making it."""

    usage: Usage
    options: Options
    orphans: tuple[str, ...] = ()
    partials: tuple[Stored, ...] = ()
    retired: tuple[Held, ...] = ()
    freed: tuple[str, ...] = ()  # that the retired ones needed, and nobody else
    later: tuple[str, ...] = ()  # the same, but used so lately that the next sweep takes them
    uploads: tuple[Group, ...] = ()
    spooled: tuple[str, ...] = ()  # whose copies here go
    refusals: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        return not (self.orphans or self.partials or self.retired or self.spooled)

    def bytes_of(self, digests: Iterable[str]) -> int:
        return sum(self.usage.local[digest].size_bytes for digest in digests)

    @property
    def partial_bytes(self) -> int:
        return sum(item.size_bytes for item in self.partials)

    @property
    def left_bytes(self) -> int:
        """What is here when all of it is done."""
        going = self.bytes_of((*self.orphans, *self.freed, *self.spooled))
        return self.usage.local_bytes - self.partial_bytes - going


@dataclass
class Swept:
    """What a sweep did."""

    removed_objects: int = 0
    removed_bytes: int = 0
    partials: int = 0
    retired: int = 0
    spooled: int = 0
    spooled_bytes: int = 0
    mended: int = 0  # objects in the bucket whose content was not what their name says
    spared: int = 0  # that somebody used in the meantime
    failures: list[str] = field(default_factory=list)
    uploaded: Moved = field(default_factory=Moved)


@contextlib.contextmanager
def alone(settings: Settings) -> Iterator[bool]:
    """One sweep at a time; False while there is another one. Raises StoreError."""
    with locked(settings.flor_dir / LOCK, wait=False) as held:
        yield held


def tidy(settings: Settings) -> None:
    """Put back what a sweep that was killed left aside, and drop pins of dead processes."""
    for trash in settings.objects_dir.glob(f"??/{TRASH}*"):
        with contextlib.suppress(OSError):
            _put_back(trash, trash.with_name(trash.name.removeprefix(TRASH)))
    for item in read_pins(settings):
        if not item.alive:
            with contextlib.suppress(OSError):
                item.path.unlink()


# --- the plan -------------------------------------------------------------------------------------


def plan_sweep(usage: Usage, options: Options, now_seconds: float | None = None) -> Plan:
    """Decide what goes. Raises StoreError for a wish that cannot be fulfilled."""
    now = time.time() if now_seconds is None else now_seconds
    grace_seconds = GRACE_SECONDS if options.grace_seconds is None else options.grace_seconds
    plan = _removing(Plan(usage, options), _ns(now - max(grace_seconds, RACY_SECONDS)))
    if options.grace_seconds is None and plan.left_bytes > options.limit_bytes:
        plan = _removing(plan, _ns(now - BUSY_SECONDS))
    if usage.doubts:
        plan = _without_orphans(plan)
    if options.keep is not None:
        plan = _thinned(plan, options.keep, now)
    if plan.left_bytes - _waiting_bytes(plan) <= options.limit_bytes:
        return plan
    if usage.settings.bucket:
        return _spooled(plan, now)
    return _thinned(plan, None, now)


def _removing(plan: Plan, old_ns: int) -> Plan:
    """With what nobody needs and nobody has used since."""
    usage = plan.usage
    orphans = tuple(d for d in usage.orphans if usage.local[d].used_ns < old_ns)
    partials = tuple(item for item in usage.partials if item.used_ns < old_ns)
    return replace(plan, orphans=orphans, partials=partials)


def _without_orphans(plan: Plan) -> Plan:
    doubts = plan.usage.doubts
    more = f" (and {len(doubts) - 1} more such reasons)" if len(doubts) > 1 else ""
    what = "nothing is taken for unneeded"
    if plan.orphans:
        count = len(plan.orphans)
        what = "an object" if count == 1 else f"{count:,} objects"
        what += f" that nobody seems to need {'stays' if count == 1 else 'stay'}"
    return replace(plan, orphans=(), refusals=(f"{what}: {doubts[0]}{more}",))


def _thinned(plan: Plan, keep: int | None, now: float) -> Plan:
    """Retire checkpoints: of runs that have ended down to `keep`, else until the limit is met."""
    usage, options = plan.usage, plan.options
    if keep is not None and usage.settings.bucket:
        raise StoreError(
            f"checkpoints that are in {usage.settings.bucket} stay there, others may use them; to "
            f"thin what is only here: FLOR_BUCKET= flor gc --keep {keep}"
        )
    if usage.doubts:
        refusal = f"no checkpoint is retired: {usage.doubts[0]}"
        return replace(plan, refusals=(*plan.refusals, refusal))
    runs = usage.held_runs()
    retired = plan.retired
    if keep is not None:
        ended = [run for run in runs if not run.alive]
        retired += tuple(item for run in ended for item in keep_evenly(run, keep))
    else:
        gone = {checkpoint.manifest for checkpoint in retired}
        sizes = {digest: usage.local[digest].size_bytes for digest in _only_checkpoints(usage)}
        excess = plan.left_bytes - _waiting_bytes(plan) - LOW_WATER * options.limit_bytes
        retired += plan_thinning([_without(run, gone) for run in runs], excess, sizes)
    unneeded = freed_by(runs, retired) & _only_checkpoints(usage)
    old_ns = _quiet_ns(plan, now)
    freed = tuple(sorted(d for d in unneeded if usage.local[d].used_ns < old_ns))
    later = tuple(sorted(unneeded.difference(freed)))
    plan = replace(plan, retired=retired, freed=freed, later=later)
    return plan if keep is not None else _still_over(plan)


def _spooled(plan: Plan, now: float) -> Plan:
    """Send what is here to the bucket, and remove what was used longest ago."""
    usage, options = plan.usage, plan.options
    if usage.remote is None:
        too_much = _amount(plan.left_bytes - options.limit_bytes)
        refusal = f"nothing is spooled and {too_much} too much stay: {usage.trouble}"
        return replace(plan, refusals=(*plan.refusals, refusal))
    old_ns = _quiet_ns(plan, now)
    kept = usage.manifests | usage.pinned
    candidates = [
        digest
        for digest, item in usage.local.items()
        if digest in usage.users and digest not in kept and item.used_ns < old_ns
    ]
    candidates.sort(key=lambda digest: (usage.local[digest].used_ns, len(usage.users[digest])))
    excess = plan.left_bytes - _waiting_bytes(plan) - LOW_WATER * options.limit_bytes
    spooled = []
    for digest in candidates:
        if excess <= 0:
            break
        spooled.append(digest)
        excess -= usage.local[digest].size_bytes
    groups = groups_of(run for run in usage.runs if usage.local.keys() & run.objects)
    first = {digest: place for place, digest in enumerate(spooled)}
    groups.sort(key=lambda group: min((first.get(d, len(first)) for d in group.objects), default=0))
    return _still_over(replace(plan, spooled=tuple(spooled), uploads=tuple(groups)))


def _still_over(plan: Plan) -> Plan:
    excess = plan.left_bytes - _waiting_bytes(plan) - plan.options.limit_bytes
    if excess <= 0:
        return plan
    advice = "raise objects_limit_gb" + ("" if plan.usage.settings.bucket else " or set a bucket")
    reason = "all of it is needed here, or was used in the last minutes"
    refusal = f"{_amount(excess)} over the limit stay: {reason}; {advice}"
    return replace(plan, refusals=(*plan.refusals, refusal))


def _only_checkpoints(usage: Usage) -> set[str]:
    """The objects here that only checkpoints need."""
    values = {digest for run in usage.runs for digest in run.values}
    return usage.local.keys() - values - usage.pinned - usage.mentioned


def _waiting_bytes(plan: Plan) -> int:
    """What only its youth keeps: a later sweep removes it, so nothing else goes in its place."""
    gone = set(plan.orphans)
    young = [digest for digest in plan.usage.orphans if digest not in gone]
    return plan.bytes_of((*plan.later, *([] if plan.usage.doubts else young)))


def _without(run: HeldRun, gone: set[str]) -> HeldRun:
    left = tuple(item for item in run.checkpoints if item.manifest not in gone)
    return replace(run, checkpoints=left)


def _quiet_ns(plan: Plan, now: float) -> int:
    """What was used before may go: no checkpoint that is being written relies on it."""
    wish = plan.options.grace_seconds
    busy_seconds = BUSY_SECONDS if wish is None else min(wish, BUSY_SECONDS)
    return _ns(now - max(busy_seconds if plan.usage.busy else 0.0, RACY_SECONDS))


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)


def _amount(size_bytes: float) -> str:
    gib = size_bytes / 1024**3
    return f"{gib:,.1f} GiB" if gib >= 0.1 else f"{gib * 1024:,.1f} MiB"


# --- the sweep ------------------------------------------------------------------------------------


def sweep(plan: Plan, bucket: Bucket | None, progress: Progress, swept: Swept) -> None:
    """Do what was planned, as far as it still holds; `swept` tells how far. Raises BucketError."""
    local = plan.usage.local
    for item in plan.partials:
        swept.partials += _removed(item, swept)
    _remove_objects([local[digest] for digest in plan.orphans], swept)
    needed = _retire(plan, swept)
    _remove_objects([local[digest] for digest in plan.freed if digest not in needed], swept)
    if plan.spooled:
        assert bucket is not None
        _spool(plan, bucket, progress, swept)


def _retire(plan: Plan, swept: Swept) -> set[str]:
    """Remove the manifests of the checkpoints that go. The objects that are not to be removed."""
    needed: set[str] = {checkpoint.manifest for checkpoint in plan.retired}
    if not needed:
        return needed
    with pins_held(plan.usage.settings):
        pins = read_pins(plan.usage.settings)
        pinned = {digest for item in pins if item.alive for digest in item.manifests}
        unknown = any(item.error for item in pins)
        for checkpoint in plan.retired:
            item = plan.usage.local[checkpoint.manifest]
            if unknown or checkpoint.manifest in pinned or not _removed(item, swept):
                needed |= checkpoint.objects
            else:
                swept.retired += 1
                swept.removed_objects += 1
                swept.removed_bytes += item.size_bytes
    return needed


def _spool(plan: Plan, bucket: Bucket, progress: Progress, swept: Swept) -> None:
    """Upload, and remove copies as soon as the bucket has what they are copies of."""
    local, remote = plan.usage.local, plan.usage.remote or {}
    there = [digest for digest in plan.spooled if remote.get(digest) == local[digest].size_bytes]
    unproven = [digest for digest in there if not bucket.has_receipt(digest)]
    progress.begin("checked in the bucket", plan.bytes_of(unproven))
    try:
        _drop_copies(plan, bucket, there, progress.advance, swept)
    finally:
        progress.end()
    waiting = set(plan.spooled).difference(there)
    for arrived in upload(plan.usage, bucket, plan.uploads, progress, swept.uploaded):
        done = [digest for digest in arrived if digest in waiting]
        _drop_copies(plan, bucket, done, lambda size: None, swept)
        waiting.difference_update(arrived)


def _drop_copies(
    plan: Plan,
    bucket: Bucket,
    digests: list[str],
    advance: Callable[[int], None],
    swept: Swept,
) -> None:
    local = plan.usage.local
    mended: list[str] = []

    def secure(digest: str, advance: Callable[[int], None]) -> None:
        item = local[digest]
        if bucket.secure(digest, item.path, item.size_bytes, advance):
            mended.append(digest)

    try:
        secured = each(digests, secure, advance, swept.failures)
    finally:
        swept.mended += len(mended)
    for digest in secured:
        if _removed(local[digest], swept):
            swept.spooled += 1
            swept.spooled_bytes += local[digest].size_bytes


def _remove_objects(items: Iterable[Stored], swept: Swept) -> None:
    for item in items:
        if _removed(item, swept):
            swept.removed_objects += 1
            swept.removed_bytes += item.size_bytes


def _removed(item: Stored, swept: Swept) -> bool:
    try:
        if remove(item.path, item.used_ns):
            return True
        swept.spared += 1
    except OSError as error:
        swept.failures.append(f"cannot remove {item.path}: {error.strerror}")
    return False


def remove(path: Path, used_ns: int) -> bool:
    """Remove a file that was used last at that time; False if it is gone, or was used since."""
    trash = path.with_name(TRASH + path.name)
    try:
        path.rename(trash)
    except FileNotFoundError:
        return False
    # From here on nobody can begin to rely on it; who did so before has changed its time.
    if trash.stat().st_mtime_ns != used_ns:
        _put_back(trash, path)
        return False
    trash.unlink()
    return True


def _put_back(trash: Path, path: Path) -> None:
    if path.exists():  # written again in the meantime, with the same content
        trash.unlink()
    else:
        trash.rename(path)
