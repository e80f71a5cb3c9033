"""One `flor.checkpointing` block: sees its loops go by, and takes checkpoints of its objects.

The first loop in the block is its main loop. The state of an iteration is taken where its nested
training loop ends, so that what follows, a validation or `scheduler.step()`, can be run again on
the state that it saw; without a nested loop, at the iteration's end.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from dataclasses import dataclass, field, replace
from time import perf_counter
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from flor.checkpoint import devices, load, memory, modules, rng, sizes, variables
from flor.checkpoint.capturable import identity
from flor.checkpoint.encoding import Encoder
from flor.checkpoint.manifest import Frame, Leaf, Manifest, Missing
from flor.checkpoint.policy import Policy
from flor.checkpoint.service import Service
from flor.checkpoint.staging import Staging
from flor.checkpoint.variables import Place
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


@dataclass
class Main:
    """The main loop that runs."""

    level: Level
    code: CodeType | None
    frame_id: int
    line: int
    entry_rng: dict[str, Any]
    length: int | None
    boundary: str | None = None  # the nested loop at whose end the state is taken
    before: object = None  # what hinted at the objects' state when a nested loop began
    taken: int = -1  # the iteration of the newest checkpoint
    began: float = 0.0  # of this iteration
    stalled: float = 0.0  # in this iteration
    nested: dict[str, tuple[CodeType, int, Any]] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)  # nested loops that ended in this iteration


class Scope:
    """Checkpoints of `objects`, as their loops go by. Its methods raise nothing that matters."""

    def __init__(self, service: Service, number: int, objects: dict[str, Any]) -> None:
        self._service = service
        self._number = number
        self._objects = objects
        self._pid = os.getpid()
        self._main: Main | None = None
        self._staging = Staging()
        self._devices: devices.CudaDevices | None = None
        self._written = Objects(service.store)
        self._policy = Policy(service.overhead)
        self._ended: deque[Ended] = deque()
        self._live = False

    # --- loops go by ----------------------------------------------------------------------------

    def entered(self, level: Level, frame: FrameType, iterable: Any, *, innermost: bool) -> None:
        """A loop begins."""
        if os.getpid() != self._pid:
            return
        main = self._main
        if main is None:
            if innermost:
                self._begin(level, frame)
        elif level.parent is main.level:
            level.block_of = (*level.block_of, self)
            self._enter_block(main, level, frame, iterable)

    def block_ended(self, level: Level, frame: FrameType, *, done: bool) -> None:
        """A nested loop of the main loop has ended: `done`, or by `break`, or by an exception."""
        main = self._main
        if main is None or os.getpid() != self._pid or level.parent is not main.level:
            return
        known = main.nested.get(level.name)
        found = variables.user_frame(frame)
        if known is None or found is None:
            return
        code, line, _ = known
        if found.f_code is not code or not (done or self._is_break(code, line, found.f_lineno)):
            return
        if level.name in main.ended:
            return  # it runs several times; the state is taken after the first
        main.ended.add(level.name)
        if self._is_boundary(main, level.name):
            self._take(main, level.name, (found, line))

    def iteration_ended(self, level: Level, frame: FrameType) -> float:
        """An iteration of the main loop has ended; the seconds that checkpoints took of it."""
        main = self._main
        if main is None or os.getpid() != self._pid:
            return 0.0
        stalled, main.stalled = main.stalled, 0.0
        main.ended.clear()
        self._policy.trained(perf_counter() - main.began - stalled)
        if main.boundary is None:
            self._take(main, None, (variables.user_frame(frame), main.line))
            main.stalled = 0.0
        main.began = perf_counter()
        return stalled

    def main_ended(self, frame: FrameType, entries: int, *, done: bool) -> None:
        """The main loop has ended; the next one in the block may be another main loop."""
        main, self._main = self._main, None
        if main is None or not entries or os.getpid() != self._pid:
            return
        found = variables.user_frame(frame)
        if found is None or found.f_code is not main.code:
            return
        if done or self._is_break(found.f_code, main.line, found.f_lineno):
            self._take_final(main, found)

    def close(self, *, failed: bool) -> None:
        """The block ends: what is pending is written."""
        if os.getpid() != self._pid:
            return
        self._service.drain(quick=failed)
        self._collect()
        self._staging.forget()
        if self._devices is not None:
            self._devices.release()

    def _begin(self, level: Level, frame: FrameType) -> None:
        found = variables.user_frame(frame)
        code = found.f_code if found is not None else None
        line = found.f_lineno if found is not None else 0
        states = rng.states()
        self._main = Main(level, code, id(found), line, states, level.size, began=perf_counter())
        level.main_of = self
        self._prepare()
        if code is not None:
            self._service.prepare(code, line)

    def _prepare(self) -> None:
        """Memory for the copies, before the first of them is taken."""
        guess = sizes.guess(self._objects.values())
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
        if level.name not in main.nested:
            found = variables.user_frame(frame)
            if found is None:
                return
            main.nested[level.name] = (found.f_code, found.f_lineno, iterable)
            self._service.prepare(found.f_code, found.f_lineno)
            if modules.is_loader(iterable) and modules.has_lasting_workers(iterable):
                self._service.warn(
                    f"the DataLoader of loop {level.name!r} keeps its workers between epochs, and "
                    "the random numbers that they draw are in no checkpoint: a replay repeats the "
                    "order of the items, not random augmentations. persistent_workers=False "
                    "makes it exact"
                )
        main.before = self._hint()

    def _is_boundary(self, main: Main, name: str) -> bool:
        """Whether the state is to be taken at the end of this nested loop.

        It is the loop that trains, the last one that changes the objects. Where nothing tells what
        changes them, the first one.
        """
        if main.boundary in (None, name):
            main.boundary = name
            return True
        if main.before is not None and self._hint() != main.before:
            main.boundary = name  # from the next iteration on
        return False

    def _hint(self) -> object:
        """Changes when torch sees the objects change. Only chooses a place, proves nothing."""
        torch = sys.modules.get("torch")
        if torch is None:
            return None
        found = []
        for value in self._objects.values():
            if isinstance(value, torch.nn.Module):
                tensor = next((p for p in value.parameters() if p.requires_grad), None)
                if tensor is not None and not tensor.is_inference():
                    found.append(tensor._version)
        return tuple(found) or None

    def _is_break(self, code: CodeType, line: int, at: int) -> bool:
        """Whether a loop was left by its own `break`, rather than by an exception."""
        return at in self._service.sources.breaks(code, line)

    # --- checkpoints ----------------------------------------------------------------------------

    def _take(self, main: Main, boundary: str | None, place: tuple[FrameType | None, int]) -> None:
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
            self._checkpoint(main, boundary, place, final=last, began=began)
            main.stalled += perf_counter() - began

    def _take_final(self, main: Main, frame: FrameType) -> None:
        """The state after the last iteration, unless it was taken already."""
        if main.taken == main.level.iteration:
            return
        self._service.drain()
        began = perf_counter()
        self._checkpoint(main, None, (frame, main.line), final=True, began=began, over=True)

    def _checkpoint(
        self,
        main: Main,
        boundary: str | None,
        place: tuple[FrameType | None, int],
        *,
        final: bool,
        began: float,
        over: bool = False,
    ) -> None:
        """Copy the state and hand it to the background."""
        service = self._service
        place_of_main = service.announce(main.level)
        at = service.elapsed()
        before = load.sample()
        self._staging.begin(live=self._live)
        names = {identity(value): name for name, value in self._objects.items()}
        encoder = Encoder(self._staging, names)
        cuda = encoder.devices = self._cuda()
        if cuda is not None:
            cuda.begin()
        encoder.with_gradients = self._keeps_gradients(main, boundary)
        manifest = Manifest(
            run_id=service.run_id,
            number=service.next_number(),
            place=place_of_main,
            boundary=boundary,
            final=final,
            rng=self._encode_rng(encoder, main),
            objects=self._encode_objects(encoder),
            frames=self._encode_frames(encoder, main, boundary, place, over=over),
            entry_rng={
                name: encoder.encode(state, f"rng {name}") for name, state in main.entry_rng.items()
            },
        )
        for item in encoder.missing:
            service.warn_missing(item)
        manifest = _with_missing(manifest, encoder.missing)
        if cuda is not None:
            if not cuda.fits():
                if not final and not self._policy.unlimited:
                    service.background.submit(cuda.reserve())  # it is larger than it seemed
                    return
                deque(cuda.reserve(), maxlen=0)
            cuda.launch(self._staging)
        pending = self._staging.end()
        main.taken = main.level.iteration
        loop, iteration = main.level.id, main.level.iteration
        cpu = service.background.cpu_seconds

        def done(written: Written, leaves: list[Leaf]) -> None:
            if not self._staging.live:
                self._staging.remember(pending, leaves)
            spent = service.background.cpu_seconds - cpu
            self._ended.append(Ended(spent, before, load.sample(), stall))
            service.list_checkpoint(
                Checkpoint(
                    number=written.manifest.number,
                    manifest=written.digest,
                    loop=loop,
                    iteration=iteration,
                    boundary=boundary,
                    final=final,
                    size_bytes=written.manifest.size_bytes,
                    new_bytes=written.new_bytes,
                    stall_seconds=round(stall, 6),
                    write_seconds=round(written.ended - written.began, 6),
                    at=at,
                    names=tuple(self._objects),
                    scope=self._number,
                )
            )

        stall = perf_counter() - began
        task = write(manifest, pending, self._written, done)
        service.background.submit(task)
        if self._live:
            service.drain()
            stall = perf_counter() - began

    def _encode_rng(self, encoder: Encoder, main: Main) -> dict[str, Any]:
        found = {name: encoder.encode(state, f"rng {name}") for name, state in rng.states().items()}
        for name, (_, _, iterable) in main.nested.items():
            if modules.is_loader(iterable):
                found[f"loader {name}"] = encoder.encode(iterable, f"the DataLoader of {name}")
        return found

    def _encode_objects(self, encoder: Encoder) -> dict[str, Any]:
        """Modules first: optimizers keep what belongs to none of them."""
        order = sorted(self._objects.items(), key=lambda item: modules.rank(item[1]))
        found = {name: encoder.root(name, value) for name, value in order}
        return {name: found[name] for name in self._objects}

    def _encode_frames(
        self,
        encoder: Encoder,
        main: Main,
        boundary: str | None,
        place: tuple[FrameType | None, int],
        *,
        over: bool,
    ) -> tuple[Frame, ...]:
        """The loop-carried variables, from the main loop's frame to the nested loop's."""
        frame, line = place
        own = _outer(frame, main)
        if frame is None or own is None:
            encoder.missing.append(Missing("variables", "the loop runs outside of the user's code"))
            return ()
        sources, root, loop = self._service.sources, self._service.root, main.level.name
        outer = Place(own, main.line)
        if frame is own:
            where = "after" if boundary is not None or over else "head"
            return _some(variables.read(encoder, sources, outer, where, line, loop, root))
        here = variables.read(encoder, sources, outer, "at", own.f_lineno, loop, root)
        inner = Place(frame, line)
        there = variables.read(encoder, sources, inner, "after", line, boundary or loop, root)
        return (*_some(here), *_some(there))

    def _keeps_gradients(self, main: Main, boundary: str | None) -> bool:
        """Whether gradients may be used after the boundary before they are cleared."""
        if boundary is not None:
            code, line, _ = main.nested[boundary]
        elif main.code is not None:
            code, line = main.code, main.line
        else:
            return True
        changes = self._service.sources.changes(code, line)
        return changes is None or changes.grads != "cleared"

    def _collect(self) -> None:
        """Account for what the background has finished."""
        while self._ended:
            ended = self._ended.popleft()
            lost = load.felt(ended.before, ended.after, ended.background_seconds)
            self._policy.paid(ended.stall + lost + self._service.take_fork_waits())


def _outer(frame: FrameType | None, main: Main) -> FrameType | None:
    """The frame of the main loop, from one inside."""
    while frame is not None and not (id(frame) == main.frame_id and frame.f_code is main.code):
        frame = frame.f_back
    return frame


def _some(frame: Frame | None) -> tuple[Frame, ...]:
    return () if frame is None else (frame,)


def _with_missing(manifest: Manifest, missing: list[Missing]) -> Manifest:
    return replace(manifest, missing=tuple(missing))
