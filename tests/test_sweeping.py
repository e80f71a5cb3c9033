"""What goes, what stays, and what happens in between."""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from dataclasses import replace
from pathlib import Path

import pytest

from flor.config import Settings
from flor.errors import StoreError
from flor.objects import ObjectStore
from flor.store.pins import pin
from flor.store.project import opened
from flor.store.sweeping import (
    BUSY_SECONDS,
    LOW_WATER,
    Options,
    Plan,
    Swept,
    alone,
    plan_sweep,
    remove,
    sweep,
    tidy,
)
from flor.store.transfer import Silent
from flor.store.usage import TRASH, Usage, read_usage
from tests.storage import Storage, digest_of

A, B = "20261118-190312-aaaaaa", "20261118-200312-bbbbbb"
ROOMY = Options(limit_bytes=1e12)


@pytest.fixture
def storage(settings: Settings) -> Storage:
    return Storage(settings)


def usage_of(storage: Storage) -> Usage:
    with opened(storage.settings) as project:
        return read_usage(project, None)


def plan_of(storage: Storage, options: Options = ROOMY) -> Plan:
    return plan_sweep(usage_of(storage), options)


def swept(plan: Plan) -> Swept:
    done = Swept()
    sweep(plan, None, Silent(), done)
    return done


def kept(storage: Storage) -> dict[str, list[int]]:
    """The iterations of each run whose checkpoints are there, all of them whole."""
    found = {}
    for run in usage_of(storage).runs:
        for item in run.there:
            assert (item.objects or frozenset()) <= storage.here()
        found[run.run_id] = [item.iteration for item in run.there]
    return found


# --- what nobody needs --------------------------------------------------------------------


def test_old_orphans_go_and_young_ones_stay(storage: Storage) -> None:
    manifests = storage.training(A, 2)
    value = storage.value(storage.run(B), b"logged")
    old, young = storage.store.put(b"old"), storage.store.put(b"young")
    storage.age(3700)
    storage.age(3500, [young])

    plan = plan_of(storage)
    assert plan.orphans == (old,)
    done = swept(plan)

    assert (done.removed_objects, done.removed_bytes, done.spared) == (1, len(b"old"), 0)
    needed = set().union(*map(storage.needs, manifests))
    assert storage.here() == needed | {value, young}
    assert plan_of(storage).empty


def test_the_grace_can_be_shorter_but_not_nothing(storage: Storage) -> None:
    """Within a tick of the clock, nobody can tell whether a file was used since."""
    old, young = storage.store.put(b"old"), storage.store.put(b"young")
    storage.age(120, [old])
    assert plan_of(storage, Options(1e12, grace_seconds=60)).orphans == (old,)
    assert plan_of(storage, Options(1e12, grace_seconds=0)).orphans == (old,)
    assert young in storage.here()


def test_over_the_limit_the_grace_is_shorter(storage: Storage) -> None:
    """What a sweep retired while a training went on is an orphan to the next one."""
    storage.training(A, 4)
    storage.age()
    limit = usage_of(storage).local_bytes
    retired, writing = storage.store.put(b"r" * 9000), storage.store.put(b"w" * 9000)
    storage.age(BUSY_SECONDS + 10, [retired])
    plan = plan_of(storage, Options(limit))
    assert (plan.orphans, plan.retired) == ((retired,), ())
    assert writing not in plan.orphans
    assert plan_of(storage, Options(limit, grace_seconds=3600)).orphans == ()


def test_unfinished_files_go_when_they_are_old(storage: Storage) -> None:
    dead, writing = (storage.store.partial(digest_of(name)) for name in (b"dead", b"writing"))
    dead.write_bytes(b"half")
    writing.write_bytes(b"half")
    os.utime(dead, (1, 1))
    done = swept(plan_of(storage))
    assert (done.partials, dead.exists(), writing.exists()) == (1, False, True)


def test_making_a_plan_changes_nothing(storage: Storage) -> None:
    storage.training(A, 8)
    storage.store.put(b"orphan")
    storage.age()
    before = {p: (p.stat().st_mtime_ns, p.stat().st_ino) for p in storage.store.folder.rglob("*")}
    plan = plan_of(storage, Options(limit_bytes=10, keep=1))
    assert plan.orphans
    assert plan.retired
    after = {p: (p.stat().st_mtime_ns, p.stat().st_ino) for p in storage.store.folder.rglob("*")}
    assert after == before


def test_a_doubt_keeps_what_nobody_seems_to_need(storage: Storage) -> None:
    manifest, *_ = storage.training(A, 4)
    orphan = storage.store.put(b"orphan")
    storage.store.path(manifest).write_bytes(b"damaged")
    storage.age()
    before = storage.here()

    plan = plan_of(storage, Options(limit_bytes=0, keep=1))
    swept(plan)

    assert storage.here() == before
    assert orphan in before
    assert len(plan.refusals) == 3  # orphans, --keep, the limit
    assert all("is damaged" in refusal for refusal in plan.refusals)


# --- the limit ----------------------------------------------------------------------------


def test_over_the_limit_the_longest_run_is_thinned(storage: Storage) -> None:
    storage.training(A, 4)
    storage.training(B, 8)
    storage.age()
    total = usage_of(storage).local_bytes

    plan = plan_of(storage, Options(limit_bytes=total * 0.95))
    done = swept(plan)

    assert kept(storage) == {A: [0, 1, 2, 3], B: [1, 3, 5, 7]}
    assert (done.retired, done.spared, plan.refusals) == (4, 0, ())
    assert usage_of(storage).local_bytes == plan.left_bytes <= total * 0.95 * LOW_WATER
    assert usage_of(storage).orphans == []


def test_within_the_limit_nothing_is_thinned(storage: Storage) -> None:
    storage.training(A, 8)
    storage.age()
    assert plan_of(storage, Options(usage_of(storage).local_bytes)).empty


def test_two_of_each_stay_and_the_rest_is_said(storage: Storage) -> None:
    storage.training(A, 10, shared=[b"s" * 5000])
    storage.training(B, 3, shared=[b"s" * 5000])
    storage.age()
    plan = plan_of(storage, Options(limit_bytes=100))
    swept(plan)
    assert kept(storage) == {A: [4, 9], B: [0, 2]}
    (refusal,) = plan.refusals
    assert "over the limit stay" in refusal
    assert "set a bucket" in refusal
    again = plan_of(storage, Options(limit_bytes=100))
    assert again.empty
    assert again.refusals == plan.refusals


def test_removing_orphans_may_be_enough(storage: Storage) -> None:
    storage.training(A, 4)
    storage.store.put(b"o" * 100_000)
    storage.age()
    plan = plan_of(storage, Options(limit_bytes=50_000))
    assert plan.orphans
    assert plan.retired == ()


def test_young_orphans_will_go_and_nothing_is_thinned_for_them(storage: Storage) -> None:
    """What the last sweep retired may still be here: it does not count twice."""
    storage.training(A, 8)
    storage.age()
    storage.store.put(b"o" * 100_000)
    plan = plan_of(storage, Options(limit_bytes=50_000))
    assert plan.retired == ()


def test_logged_values_stay_when_their_checkpoints_go(storage: Storage) -> None:
    """The tensor of a checkpoint that goes was logged as well."""
    journal = storage.run(A)
    tensors = [f"{i}".encode() * 1000 for i in range(4)]
    for iteration, tensor in enumerate(tensors):
        storage.checkpoint(journal, iteration, [tensor])
    storage.value(journal, tensors[0])
    storage.age()
    swept(plan_of(storage, Options(limit_bytes=100)))
    assert kept(storage) == {A: [1, 3]}
    assert digest_of(tensors[0]) in storage.here()
    assert digest_of(tensors[2]) not in storage.here()


def test_a_torn_journal_does_not_keep_what_it_lists(storage: Storage) -> None:
    """The power failed in the middle of a line; what the lines before list is known."""
    storage.training(A, 4)
    path = storage.settings.runs_dir / A / "journal.jsonl"
    path.write_bytes(path.read_bytes() + b'{"t": "checkpoi')
    storage.age()
    plan = plan_of(storage, replace(ROOMY, keep=1))
    assert plan.usage.mentioned == frozenset()
    swept(plan)
    assert kept(storage) == {A: [3]}
    assert usage_of(storage).orphans == []


def test_keep_thins_whatever_the_limit(storage: Storage) -> None:
    storage.training(A, 9)
    storage.training(B, 2)
    storage.age()
    swept(plan_of(storage, replace(ROOMY, keep=3)))
    assert kept(storage) == {A: [2, 5, 8], B: [0, 1]}


def test_keep_and_a_limit(storage: Storage) -> None:
    storage.training(A, 16)
    storage.training(B, 16)
    storage.age()
    total = usage_of(storage).local_bytes
    swept(plan_of(storage, Options(limit_bytes=total / 4, keep=8)))
    assert kept(storage) == {A: [7, 15], B: [3, 7, 11, 15]}


def test_what_a_bucket_holds_is_not_thinned(storage: Storage) -> None:
    storage.training(A, 4)
    usage = usage_of(storage)
    usage = replace(usage, settings=replace(storage.settings, bucket="s3://data"))
    with pytest.raises(StoreError, match=r"FLOR_BUCKET= flor gc --keep 2"):
        plan_sweep(usage, replace(ROOMY, keep=2))


# --- while somebody works -----------------------------------------------------------------


def test_a_living_run_keeps_four_and_what_it_used_lately(storage: Storage) -> None:
    storage.training(A, 16, end=False)
    storage.age(BUSY_SECONDS + 60)
    usage = usage_of(storage)
    usage = replace(usage, runs=tuple(replace(run, alive=True) for run in usage.runs))
    young = next(d for d in usage.runs[0].there[0].objects or () if d not in usage.manifests)
    local = dict(usage.local) | {young: replace(usage.local[young], used_ns=time.time_ns())}

    plan = plan_sweep(replace(usage, local=local), Options(limit_bytes=0, keep=2))

    assert [c.iteration for c in usage.held_runs()[0].checkpoints if c not in plan.retired] == [
        *(3, 7, 11, 15)
    ]
    assert plan.later == (young,)
    assert young not in plan.freed


def test_when_nobody_works_what_was_used_lately_may_go(storage: Storage) -> None:
    storage.training(A, 4)
    storage.age(10)
    plan = plan_of(storage, replace(ROOMY, keep=1))
    assert plan.later == ()
    swept(plan)
    assert kept(storage) == {A: [3]}
    assert usage_of(storage).orphans == []


def test_pinned_checkpoints_stay(storage: Storage) -> None:
    manifests = storage.training(A, 8)
    storage.age()
    with pin(storage.settings, [manifests[0]], "replay"):
        swept(plan_of(storage, Options(limit_bytes=0)))
        assert kept(storage) == {A: [0, 3, 7]}
    swept(plan_of(storage, Options(limit_bytes=0)))
    assert kept(storage) == {A: [3, 7]}


def test_a_pin_that_comes_after_the_plan_holds(storage: Storage) -> None:
    manifests = storage.training(A, 8)
    storage.age()
    plan = plan_of(storage, Options(limit_bytes=0))
    with pin(storage.settings, [manifests[0]], "replay"):
        done = swept(plan)
    assert kept(storage) == {A: [0, 3, 7]}
    assert done.retired == 5


def test_a_pin_that_cannot_be_read_holds_all(storage: Storage) -> None:
    storage.training(A, 8)
    storage.age()
    plan = plan_of(storage, Options(limit_bytes=0))
    storage.pin(nonsense=True)
    assert swept(plan).retired == 0
    assert len(storage.here()) == 16


def test_what_was_used_after_the_plan_stays(storage: Storage) -> None:
    """A training relies on an orphan that the plan was about to remove."""
    used, unused = storage.store.put(b"used"), storage.store.put(b"unused")
    storage.age()
    plan = plan_of(storage)
    assert storage.store.use(used, 4)
    done = swept(plan)
    assert (done.removed_objects, done.spared) == (1, 1)
    assert storage.here() == {used}
    assert unused in plan.orphans


def test_a_checkpoint_that_is_loaded_after_the_plan_stays_whole(storage: Storage) -> None:
    manifests = storage.training(A, 4)
    storage.age()
    plan = plan_of(storage, replace(ROOMY, keep=1))
    storage.store.get(manifests[1])
    done = swept(plan)
    assert (done.retired, done.spared) == (2, 1)
    assert kept(storage) == {A: [1, 3]}


def test_what_is_gone_already_is_no_trouble(storage: Storage) -> None:
    orphan = storage.store.put(b"orphan")
    storage.age()
    plan = plan_of(storage)
    storage.store.path(orphan).unlink()
    assert (swept(plan).removed_objects, storage.here()) == (0, set())


def test_what_cannot_be_removed_is_said_and_the_rest_goes(storage: Storage) -> None:
    first, second = sorted(storage.store.put(name) for name in (b"one", b"two"))
    storage.age()
    plan = plan_of(storage)
    blocked = storage.store.path(first)
    blocked.with_name(TRASH + blocked.name).mkdir()
    done = swept(plan)
    (failure,) = done.failures
    assert str(blocked) in failure
    assert storage.here() == {first}
    assert second in plan.orphans


# --- remove -------------------------------------------------------------------------------


def test_remove_puts_back_what_was_used(tmp_path: Path) -> None:
    path = tmp_path / "object"
    path.write_bytes(b"x")
    assert not remove(path, 1)
    assert [item.name for item in tmp_path.iterdir()] == ["object"]
    assert remove(path, path.stat().st_mtime_ns)
    assert list(tmp_path.iterdir()) == []
    assert not remove(path, 1)


def test_what_a_killed_sweep_left_aside_comes_back(storage: Storage) -> None:
    """Killed between the two renames; of one, the object was written again by then."""
    lost, again = storage.store.put(b"lost"), storage.store.put(b"again")
    for digest in (lost, again):
        path = storage.store.path(digest)
        path.rename(path.with_name(TRASH + path.name))
    storage.store.put(b"again")
    tidy(storage.settings)
    assert storage.here() == {lost, again}
    assert list(storage.store.folder.glob(f"*/{TRASH}*")) == []


def test_pins_of_dead_processes_are_tidied_away(storage: Storage) -> None:
    storage.settings.flor_dir.mkdir()
    storage.pin(manifests=[], pid=2**22 + 1, host=os.uname().nodename)
    tidy(storage.settings)
    assert list((storage.settings.flor_dir / "pins").glob("*.json")) == []


def test_one_sweep_at_a_time(settings: Settings) -> None:
    with alone(settings) as first:
        assert first
        with alone(settings) as second:
            assert not second
    with alone(settings) as third:
        assert third


def test_no_writer_loses_an_object_that_it_relies_on(tmp_path: Path) -> None:
    """A writer reuses an orphan at the very moment at which a sweep removes it, again and again."""
    rounds = 1500
    context = multiprocessing.get_context("spawn")
    meet = context.Barrier(2)
    sweeper = context.Process(target=_sweep_often, args=(tmp_path, rounds, meet))
    sweeper.start()
    lost = _write_often(tmp_path, rounds, meet)
    sweeper.join(30)
    assert (sweeper.exitcode, lost) == (0, [])


CONTENT = b"shared by two checkpoints"
LONG_AGO_NS = 10**18


def _write_often(folder: Path, rounds: int, meet: object) -> list[int]:
    store, lost = ObjectStore(folder), []
    jitter = random.Random(1)
    for number in range(rounds):
        path = store.path(store.put(CONTENT))
        os.utime(path, ns=(LONG_AGO_NS, LONG_AGO_NS))
        meet.wait(30)  # type: ignore[attr-defined]
        _spin(jitter)
        digest = store.put(CONTENT)
        relied = store.use(digest, len(CONTENT))
        meet.wait(30)  # type: ignore[attr-defined]
        if relied and store.get(digest) != CONTENT:
            lost.append(number)
    return lost


def _sweep_often(folder: Path, rounds: int, meet: object) -> None:
    path = ObjectStore(folder).path(digest_of(CONTENT))
    jitter = random.Random(2)
    for _ in range(rounds):
        meet.wait(30)  # type: ignore[attr-defined]
        _spin(jitter)
        remove(path, LONG_AGO_NS)
        meet.wait(30)  # type: ignore[attr-defined]


def _spin(jitter: random.Random) -> None:
    end = time.perf_counter_ns() + jitter.randrange(60_000)
    while time.perf_counter_ns() < end:
        pass
