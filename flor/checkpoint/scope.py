"""One `flor.checkpointing` block: sees its loops go by, and takes checkpoints of its objects.

The first loop in the block is its main loop. The state of an iteration is taken where the first
nested loop ends that trains in it, so that what follows, a validation or `scheduler.step()`, can be
run again on the state that it saw; without such a loop, at the iteration's end. Where other loops
may have trained after the last checkpoint, the state at the main loop's end is taken as well.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from time import perf_counter
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from flor.checkpoint import devices, gradients, load, loaders, memory, modules, rng, sizes
from flor.checkpoint.capturable import identity
from flor.checkpoint.declared import Declared
from flor.checkpoint.encoding import Encoder
from flor.checkpoint.frames import Running, is_generator, left_on_purpose, running, user_frame
from flor.checkpoint.kept import Kept
from flor.checkpoint.manifest import Frame, Leaf, Manifest, Missing
from flor.checkpoint.policy import Policy
from flor.checkpoint.service import Service
from flor.checkpoint.staging import Staging
from flor.checkpoint.variables import Place, Reader
from flor.checkpoint.writing import Objects, Written, write
from flor.model import Checkpoint

if TYPE_CHECKING:
    from flor.record.loops import Level

FIRST_CONTENTION = 0.5  # of the writing, assumed until it was measured


class Ended(NamedTuple):
    """A checkpoint that is written, as the background tells it."""

    background_seconds: float
    before: load.Load
    after: load.Load
    stall: float


class Moment(NamedTuple):
    """When and where a checkpoint is taken."""

    boundary: str | None
    outer: FrameType | None  # of the main loop
    inner: FrameType | None  # of the nested loop that has ended; or the main loop's
    where: str  # as `Reader.changed` has it
    final: bool
    began: float  # on the clock


class Nested(NamedTuple):
    """A loop in the main loop. What it runs over is the script's to keep or to drop."""

    code: CodeType
    line: int  # in its header
    loader: weakref.ref[Any] | None


@dataclass
class Main:
    """The main loop that runs."""

    level: Level
    running: Running | None  # None: outside of the user's code
    entry_rng: dict[str, Any]
    length: int | None
    trains: bool = False  # a nested loop of it was seen to
    reached: bool = False  # such a loop has ended in this iteration
    before: int | None = None  # what hinted at the objects' state when a nested loop began
    taken: int = -1  # the iteration of the newest checkpoint
    seen: int | None = None  # what hinted at the objects' state then
    kept: Kept | None = None  # what it holds; None where nothing was copied
    outdated: bool = False  # a nested loop may have changed them since
    began: float = 0.0  # of this iteration
    stalled: float = 0.0  # in this iteration
    nested: dict[str, Nested] = field(default_factory=dict)  # by name
    open: dict[Level, Running] = field(default_factory=dict)  # nested loops that have not ended

    def frame(self, inside: FrameType | None) -> FrameType | None:
        return self.running.frame(inside) if self.running is not None else None


class Scope:
    """Checkpoints of `objects`, as their loops go by. Its methods raise nothing that matters."""

    def __init__(self, service: Service, number: int, objects: dict[str, Any]) -> None:
        self._service = service
        self._number = number
        self._declared = Declared(objects)
        self._pid = os.getpid()
        self._main: Main | None = None
        self._staging = Staging()
        self._devices: devices.CudaDevices | None = None
        self._written = Objects(service.store)
        self._policy = Policy(service.overhead)
        self._ended: deque[Ended] = deque()
        self._live = False
        self._has_looped = False
        self._closed = False

    # --- loops go by ----------------------------------------------------------------------------

    def entered(self, level: Level, frame: FrameType, iterable: Any, *, innermost: bool) -> None:
        """A loop begins."""
        if os.getpid() != self._pid:
            return
        main, self._has_looped = self._main, True
        if main is None:
            if innermost:
                self._begin(level, frame)
        elif level.parent is main.level:
            level.block_of = (*level.block_of, self)
            self._enter_block(main, level, frame, iterable)

    def block_ended(self, level: Level, caller: FrameType | None, *, done: bool) -> None:
        """A nested loop of the main loop has ended: `done`, or by `break`, or by an exception."""
        main = self._main
        if main is None or os.getpid() != self._pid or level.parent is not main.level:
            return
        main.outdated = main.outdated or not self._declared.all_seen
        here = main.open.pop(level, None)
        frame = here.frame(caller) if here is not None else None
        if frame is None or not (done or left_on_purpose(frame)):
            return
        if main.reached or not self._has_trained(main):
            return
        main.trains = main.reached = True
        self._take(main, level.name, frame)

    def iteration_ended(self, caller: FrameType | None) -> float:
        """An iteration of the main loop has ended; the seconds that checkpoints took of it."""
        main = self._main
        if main is None or os.getpid() != self._pid:
            return 0.0
        stalled, main.stalled = main.stalled, 0.0
        main.reached = False
        self._policy.trained(perf_counter() - main.began - stalled)
        if not main.trains:
            self._take(main, None, main.frame(caller))
            main.stalled = 0.0
        main.began = perf_counter()
        return stalled

    def main_ended(self, caller: FrameType | None, entries: int, *, done: bool) -> None:
        """The main loop has ended; the next one in the block may be another main loop."""
        main, self._main = self._main, None
        if main is None or not entries or os.getpid() != self._pid:
            return
        frame = main.frame(caller)
        if done or (frame is not None and left_on_purpose(frame)):
            self._take_final(main, frame)

    def close(self, *, failed: bool) -> None:
        """The block ends: what is pending is written, beside what the script does next."""
        if os.getpid() != self._pid:
            return
        if not self._has_looped and not failed:
            self._service.warn(
                "no flor.loop began in a flor.checkpointing block, which takes its checkpoints in "
                'one: put the block around the main loop, for epoch in flor.loop("epoch", …)'
            )
        self._closed = True
        if failed:
            self._service.drain(quick=True)
        self._service.background.submit(self._forget())

    def _forget(self) -> Iterator[None]:
        """Give the memory back, once everything is written."""
        yield
        self._ended.clear()
        self._staging.forget()
        if self._devices is not None:
            self._devices.release()

    def _begin(self, level: Level, frame: FrameType) -> None:
        found = self._service.sources.runner(frame)
        here = running(found) if found is not None else None
        self._main = Main(level, here, rng.states(), level.size, began=perf_counter())
        level.main_of = self
        self._declared.begin(found)
        self._prepare()
        if here is not None:
            self._service.prepare(here.code, here.line)

    def _prepare(self) -> None:
        """Memory for the copies, before the first of them is taken."""
        guess = sizes.guess(self._declared.objects.values())
        size = guess.total()
        self._policy.expect(size, FIRST_CONTENTION)
        self._live = not memory.affordable(size)
        if self._live:
            self._service.warn(
                f"there is no memory for a second copy of the state ({size / 2**30:.1f} GiB); the "
                "training waits while a checkpoint is written, and there will be fewer of them"
            )
            return
        on_host = guess.pop(sizes.HOST, 0)
        if on_host and not self._staging.arena.reserved_bytes:
            self._service.background.submit(self._staging.arena.reserve(on_host))
        if guess and (cuda := self._cuda()) is not None:
            self._service.background.submit(cuda.reserve(guess))

    def _cuda(self) -> devices.CudaDevices | None:
        """What copies from CUDA devices, if they are in use."""
        if self._devices is None and not self._live:
            self._devices = devices.for_this_process()
        return self._devices

    def _enter_block(self, main: Main, level: Level, frame: FrameType, iterable: Any) -> None:
        found = self._service.sources.runner(frame)
        if found is None:
            return
        here = main.open[level] = running(found)
        known = main.nested.get(level.name)
        loader = weakref.ref(iterable) if loaders.is_source(iterable) else None
        main.nested[level.name] = Nested(here.code, here.line, loader)
        if known is None or known[:2] != here[:2]:
            around = main.running[:2] if main.running is not None else None
            self._service.prepare(here.code, here.line, around)
            if loaders.is_loader(iterable) and loaders.has_lasting_workers(iterable):
                self._service.warn(
                    f"the DataLoader of loop {level.name!r} keeps its workers between epochs, and "
                    "the random numbers that they draw are in no checkpoint: a replay repeats the "
                    "order of the items, not random augmentations. persistent_workers=False "
                    "makes it exact"
                )
        self._declared.enter(main.frame(found), found)
        main.before = self._declared.changes()

    def _has_trained(self, main: Main) -> bool:
        """Whether the nested loop that has ended changed the objects, as far as can be told."""
        return main.before is None or self._declared.changes() != main.before

    # --- checkpoints ----------------------------------------------------------------------------

    def _take(self, main: Main, boundary: str | None, inner: FrameType | None) -> None:
        """Take a checkpoint, if it is worth it now."""
        began = perf_counter()
        self._collect()
        last = main.length is not None and main.level.iteration == main.length - 1
        if devices.is_capturing():
            return
        if self._service.background.busy:
            if not self._policy.unlimited:
                return  # it skips rather than waits; the final state is taken at the loop's end
            self._service.drain()
        so_far = began - main.began - main.stalled if boundary is not None else 0.0
        if last or self._policy.wants(so_far):
            where = "head" if boundary is None else "after"
            outer = main.frame(inner)
            self._checkpoint(main, Moment(boundary, outer, inner, where, last, began))
            main.stalled += perf_counter() - began

    def _take_final(self, main: Main, frame: FrameType | None) -> None:
        """The state after the last iteration, unless it was taken already."""
        moment = Moment(None, frame, frame, "after", True, perf_counter())
        self._declared.follow(frame)
        kept = None
        if main.taken == main.level.iteration and self._declared.changes() == main.seen:
            kept = main.kept
            if kept is None and not main.outdated:
                return  # nothing was copied, and nothing tells of a change
        if kept is None or self._devices is not None or self._closed:
            self._service.drain()
        self._checkpoint(main, moment, None if self._closed else kept)
        if self._closed:  # the loop outlived its block
            self._service.background.submit(self._forget())

    def _checkpoint(self, main: Main, moment: Moment, kept: Kept | None = None) -> None:
        """Copy the state and hand it to the background; unless it is what was `kept` of it."""
        before, at = load.sample(), self._service.elapsed()
        cleared = kept.cleared if kept is not None else self._cleared(main, moment)
        manifest = self._encode(main, moment, cleared)
        if not self._launch(must=moment.final or self._policy.unlimited):
            return
        pending = self._staging.end()
        if kept is not None and kept.holds(manifest, pending):
            return
        main.taken, main.outdated = main.level.iteration, False
        main.seen = self._declared.changes()
        main.kept = Kept(manifest, pending, cleared) if not self._live else None
        loop, background = main.level.id, self._service.background
        cpu, stall = background.cpu_seconds, 0.0

        def done(written: Written, leaves: list[Leaf]) -> None:
            if not self._staging.live:
                self._staging.remember(pending, leaves)
            spent = background.cpu_seconds - cpu
            self._ended.append(Ended(spent, before, load.sample(), stall))
            self._service.list_checkpoint(
                Checkpoint(
                    number=manifest.number,
                    manifest=written.digest,
                    loop=loop,
                    iteration=manifest.place[-1].iteration,
                    boundary=manifest.boundary,
                    final=manifest.final,
                    size_bytes=written.manifest.size_bytes,
                    new_bytes=written.new_bytes,
                    stall_seconds=round(stall, 6),
                    write_seconds=round(written.ended - written.began, 6),
                    at=at,
                    names=tuple(manifest.objects),
                    scope=self._number,
                )
            )

        stall = perf_counter() - moment.began
        background.submit(write(manifest, pending, self._written, done))
        if self._live:
            self._service.drain()
            stall = perf_counter() - moment.began

    def _launch(self, *, must: bool) -> bool:
        """Let the copies from CUDA devices begin; False where there is no room for them yet."""
        if self._devices is None:
            return True
        if not self._devices.fits():  # it is larger than it seemed
            if not must:
                self._service.background.submit(self._devices.reserve())
                return False
            deque(self._devices.reserve(), maxlen=0)
        self._devices.launch(self._staging)
        return True

    def _encode(self, main: Main, moment: Moment, cleared: set[int]) -> Manifest:
        """The document of a checkpoint, without the gradients of parameters that are `cleared`.

        What it tells of is noted in the staging.
        """
        service = self._service
        self._declared.follow(moment.outer, moment.inner)
        cuda = self._cuda()
        if cuda is not None:
            cuda.begin()
        self._staging.begin(live=self._live, beside=service.background.busy)
        names = {identity(value): name for name, value in self._declared.held().items()}
        encoder = Encoder(self._staging, names)
        encoder.with_gradients, encoder.cleared, encoder.devices = True, cleared, cuda
        manifest = Manifest(
            run_id=service.run_id,
            number=service.next_number(),
            place=service.announce(main.level),
            boundary=moment.boundary,
            final=moment.final,
            rng=self._encode_rng(encoder, main),
            objects=self._encode_objects(encoder),
            entry_rng={
                name: encoder.encode(state, f"rng {name}") for name, state in main.entry_rng.items()
            },
        )
        frames = self._encode_frames(encoder, manifest.objects, main, moment)
        for item in encoder.missing:
            service.warn_missing(item)
        return replace(manifest, frames=tuple(frames), missing=tuple(encoder.missing))

    def _encode_rng(self, encoder: Encoder, main: Main) -> dict[str, Any]:
        found = {name: encoder.encode(state, f"rng {name}") for name, state in rng.states().items()}
        for name, nested in main.nested.items():
            loader = nested.loader() if nested.loader is not None else None
            if loader is not None:
                found[f"loader {name}"] = self._encode_source(encoder, loader, name)
        return found

    def _encode_source(self, encoder: Encoder, loader: Any, name: str) -> Any:
        if loaders.is_loader(loader) or identity(loader) in encoder._declared:
            return encoder.encode(loader, f"the DataLoader of {name}")
        return loaders.encode_loader(encoder, loader, f"the items of {name}")

    def _encode_objects(self, encoder: Encoder) -> dict[str, Any]:
        """Modules first: optimizers keep what belongs to none of them."""
        objects = self._declared.held()
        order = sorted(objects.items(), key=lambda item: modules.rank(item[1]))
        found = {name: encoder.root(name, value) for name, value in order}
        for name, why in self._declared.replaced.items():
            encoder.missing.append(Missing(name, why))
            found[name] = {"t": "missing", "why": why}
        return {name: found[name] for name in self._declared.objects}

    def _encode_frames(
        self, encoder: Encoder, objects: dict[str, Any], main: Main, moment: Moment
    ) -> list[Frame]:
        """The variables, from the main loop's frame to the nested loop's."""
        outer, inner = moment.outer, moment.inner
        if main.running is None or outer is None or inner is None:
            reason = "runs outside of the user's own code"
            encoder.missing.append(Missing("the variables of the loop", reason))
            return []
        service, line = self._service, main.running.line
        place, but = Place(outer, line), self._declared.followed()
        if moment.boundary is not None:
            line = main.nested[moment.boundary].line
        reader = Reader(encoder, service.sources, service.root, main.level.name, objects)
        if inner is outer:
            return reader.changed(place, moment.where, line, but)
        found = reader.changed(place, "at", outer.f_lineno, but)
        for between in _between(outer, inner):
            found += reader.passed(between)
        reader = replace(reader, loop=moment.boundary or main.level.name)
        return found + reader.changed(Place(inner, line), "after", line)

    def _cleared(self, main: Main, moment: Moment) -> set[int]:
        """The parameters whose gradients are cleared after the boundary before they are used."""
        outer, inner, sources = moment.outer, moment.inner, self._service.sources
        if main.running is None or outer is None or inner is None:
            return set()
        code, line, _ = main.running
        if moment.boundary is None:
            changes = sources.changes(code, line)
            return gradients.cleared(inner, changes.gradients, outer, ()) if changes else set()
        nested, at, _ = main.nested[moment.boundary]
        changes = sources.changes(nested, at)
        around = sources.gradients_around(code, line, nested, at)
        if changes is None or around is None:
            return set()
        return gradients.cleared(inner, changes.gradients, outer, around)

    def _collect(self) -> None:
        """Account for what the background has finished."""
        while self._ended:
            ended = self._ended.popleft()
            lost = load.felt(ended.before, ended.after, ended.background_seconds)
            self._policy.paid(ended.stall + lost + self._service.take_fork_waits())


def _between(outer: FrameType, inner: FrameType) -> list[FrameType]:
    """The frames of the user's functions between two of his frames, outer first."""
    found: list[FrameType] = []
    frame = user_frame(inner.f_back)
    while frame is not None and frame is not outer:
        if not is_generator(frame.f_code) and not frame.f_code.co_name.startswith("<"):
            found.append(frame)
        frame = user_frame(frame.f_back)
    return found[::-1]
