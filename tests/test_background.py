"""Work beside the training: flor.checkpoint.background."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flor.checkpoint import background as module
from flor.checkpoint.background import Background

PATIENCE = 5.0  # seconds, for what takes milliseconds
ENDLESS = 2.0  # a drain that takes so long never ends


@pytest.fixture
def warned() -> list[str]:
    return []


@pytest.fixture
def background(warned: list[str]) -> Iterator[Background]:
    found = Background(contextlib.nullcontext, warned.append)
    yield found
    found.abandon()


class Steps:
    """A task of so many steps, which knows who took them."""

    def __init__(self, number: int, seconds: float = 0.0) -> None:
        self.number = number
        self.seconds = seconds
        self.taken: list[threading.Thread] = []

    def __iter__(self) -> Iterator[None]:
        for _ in range(self.number):
            time.sleep(self.seconds)
            self.taken.append(threading.current_thread())
            yield

    @property
    def done(self) -> bool:
        return len(self.taken) == self.number


class Hanging:
    """A task with a step that waits until it is let go."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()
        self.steps = 0

    def __iter__(self) -> Iterator[None]:
        self.begun.set()
        assert self.go.wait(PATIENCE)
        self.steps += 1
        yield
        self.steps += 1


def failing(error: BaseException) -> Iterator[None]:
    yield
    raise error


def eventually(condition: Callable[[], bool]) -> bool:
    until = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.002)
    return True


def impatient() -> Callable[[], None]:
    """A tick that ends a drain that would never end."""
    until = time.monotonic() + ENDLESS

    def tick() -> None:
        if time.monotonic() > until:
            raise TimeoutError("the drain never ends")

    return tick


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "flor-checkpoints"]


# --- in order ------------------------------------------------------------------------------


def test_tasks_run_in_order_beside_the_training(background: Background) -> None:
    order: list[int] = []
    for number in range(20):

        def task(number: int = number) -> Iterator[None]:
            order.append(number)
            yield
            order.append(number)

        background.submit(task())

    assert eventually(lambda: not background.busy)
    assert order == [number for number in range(20) for _ in range(2)]


def test_the_thread_ends_when_nothing_is_left_and_comes_again(background: Background) -> None:
    for _ in range(5):
        task = Steps(2)
        background.submit(iter(task))
        assert eventually(lambda: not background.busy and not threads())
        assert task.done
        assert threading.main_thread() not in task.taken


def test_its_processor_time_is_counted(background: Background) -> None:
    def burning() -> Iterator[None]:
        until = time.thread_time() + 0.05
        while time.thread_time() < until:
            pass
        yield
        time.sleep(0.2)

    background.submit(burning())
    background.drain(impatient())

    assert 0.05 <= background.cpu_seconds < 0.2


def test_the_thread_is_unseen_and_so_is_the_drain(warned: list[str]) -> None:
    inside: list[bool] = []
    seen = threading.local()

    @contextlib.contextmanager
    def unseen() -> Iterator[None]:
        seen.not_me = True
        yield
        seen.not_me = False

    def task() -> Iterator[None]:
        inside.append(getattr(seen, "not_me", False))
        yield

    background = Background(unseen, warned.append)
    background.submit(task())
    assert eventually(lambda: not background.busy)
    background.stop()
    background.submit(task())
    background.drain(impatient())

    assert inside == [True, True]


# --- stop and start ------------------------------------------------------------------------


def test_no_step_is_taken_between_stop_and_start(background: Background) -> None:
    task = Steps(10_000, seconds=0.001)
    background.submit(iter(task))
    assert eventually(lambda: len(task.taken) > 3)

    background.stop()
    before = len(task.taken)
    assert threads() == []
    time.sleep(0.02)
    assert len(task.taken) == before

    background.start()
    assert eventually(lambda: len(task.taken) > before + 3)
    assert len(set(task.taken)) == 2


def test_each_stop_waits_for_its_own_start(background: Background) -> None:
    """Two threads of the script fork at once."""
    background.stop()
    background.stop()
    task = Steps(1)
    background.submit(iter(task))

    background.start()
    time.sleep(0.01)
    assert not task.done
    background.start()
    assert eventually(lambda: task.done)


def test_a_start_without_a_stop_is_not_saved_up(background: Background) -> None:
    background.start()
    background.start()
    background.stop()
    task = Steps(1)
    background.submit(iter(task))

    time.sleep(0.01)
    assert not task.done


# --- drain ---------------------------------------------------------------------------------


def test_a_drain_does_the_rest_right_here(background: Background) -> None:
    task, ticks = Steps(50, seconds=0.001), list[int]()
    background.submit(iter(task))
    assert eventually(lambda: len(task.taken) > 3)

    background.drain(lambda: ticks.append(1))

    assert task.done
    assert not background.busy
    assert task.taken[-1] is threading.main_thread()
    assert len(ticks) >= 2


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_a_drain_that_is_interrupted_leaves_the_rest_to_be_abandoned(
    background: Background, error: type[BaseException]
) -> None:
    task = Steps(1000, seconds=0.001)
    background.submit(iter(task))

    def tick() -> None:
        raise error

    with pytest.raises(error):
        background.drain(tick)
    background.abandon()
    before = len(task.taken)
    time.sleep(0.02)

    assert not background.busy
    assert len(task.taken) <= before + 1
    after = Steps(3)
    background.submit(iter(after))
    assert eventually(lambda: after.done)


def test_a_tick_that_abandons_ends_the_drain(background: Background) -> None:
    task = Steps(1000, seconds=0.001)
    background.stop()
    background.submit(iter(task))

    background.drain(background.abandon)

    assert len(task.taken) == 1
    assert not background.busy


# --- failures ------------------------------------------------------------------------------


@pytest.mark.parametrize("here", [True, False])
def test_a_task_that_fails_is_warned_of_once_and_the_others_go_on(
    background: Background, warned: list[str], here: bool
) -> None:
    tasks = [Steps(2), Steps(2)]
    if here:
        background.stop()
    for task in (iter(tasks[0]), failing(OSError("no disk")), iter(tasks[1])):
        background.submit(task)

    if here:
        background.drain(impatient())
    assert eventually(lambda: not background.busy)

    assert all(task.done for task in tasks)
    assert warned == ["a checkpoint could not be written: OSError: no disk"]


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_dies_does_not_hang_the_end(
    background: Background, error: type[BaseException]
) -> None:
    task = Steps(2)
    background.submit(failing(error()))
    background.submit(iter(task))
    assert eventually(lambda: not threads())

    background.drain(impatient())

    assert task.done


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_warning_that_fails_does_not_hang_the_end() -> None:
    def warn(text: str) -> None:
        raise BrokenPipeError

    background, task = Background(contextlib.nullcontext, warn), Steps(2)
    background.submit(failing(OSError("no disk")))
    background.submit(iter(task))
    assert eventually(lambda: not threads())

    background.drain(impatient())

    assert task.done


def test_where_no_thread_can_start_the_drain_does_the_work(
    background: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    task = Steps(2)

    background.submit(iter(task))
    background.stop()
    background.start()
    background.drain(impatient())

    assert task.done


# --- a disk that hangs ---------------------------------------------------------------------


def test_a_step_that_hangs_is_waited_for_no_longer(
    background: Background, warned: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The training forks; the thread that hangs goes on with its task when the disk answers."""
    monkeypatch.setattr(module, "STOP_SECONDS", 0.05)
    task, after = Hanging(), Steps(2)
    background.submit(iter(task))
    assert task.begun.wait(PATIENCE)

    began = time.monotonic()
    background.stop()
    assert time.monotonic() - began < 1
    background.start()
    background.submit(iter(after))
    assert len(threads()) == 1
    task.go.set()

    assert eventually(lambda: after.done and not background.busy)
    assert task.steps == 2
    assert warned == []


def test_no_generator_is_run_by_two_threads(
    background: Background, warned: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many forks while one step hangs, then the end of the run."""
    monkeypatch.setattr(module, "STOP_SECONDS", 0.01)
    task = Hanging()
    background.submit(iter(task))
    assert task.begun.wait(PATIENCE)

    for _ in range(10):
        background.stop()
        background.start()
    timer = threading.Timer(0.1, task.go.set)
    timer.start()
    background.drain(impatient())
    timer.join()

    assert task.steps == 2
    assert warned == []


def test_a_thread_that_was_given_up_takes_no_other_task(
    background: Background, warned: list[str]
) -> None:
    task, after = Hanging(), Steps(20, seconds=0.001)
    background.submit(iter(task))
    assert task.begun.wait(PATIENCE)
    hung = threads()[0]

    background.abandon()
    background.submit(iter(after))
    task.go.set()

    assert eventually(lambda: after.done)
    assert hung not in after.taken
    assert eventually(lambda: not threads())
    assert task.steps == 1
    assert warned == []


# --- forks ---------------------------------------------------------------------------------


def child_says(action: Callable[[], bool]) -> bool:
    """Whether a forked child found it true, and did not hang."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other tests' threads
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if action() else 1
        finally:
            os._exit(code)
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status == 0
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return False


def test_forks_while_it_works(background: Background, warned: list[str]) -> None:
    task = Steps(400, seconds=0.0005)
    background.submit(iter(task))

    def child() -> bool:
        before = len(task.taken)
        background.start()
        background.abandon()
        background.stop()
        background.drain()
        time.sleep(0.003)
        return not threads() and not background.busy and len(task.taken) == before

    for _ in range(10):
        time.sleep(0.003)
        background.stop()
        fine = child_says(child)
        background.start()
        assert fine

    assert eventually(lambda: not background.busy)
    assert task.done
    assert len(set(task.taken)) > 1
    assert warned == []


def test_a_child_leaves_the_parent_s_work_alone(background: Background) -> None:
    """Before it abandons it, too."""
    task = Steps(3)
    background.stop()
    background.submit(iter(task))

    def child() -> bool:
        background.start()
        background.drain()
        return not task.taken and not threads()

    assert child_says(child)
    background.start()
    assert eventually(lambda: task.done)


# --- in any order --------------------------------------------------------------------------

ACTIONS = st.sampled_from(["submit", "submit", "stop", "start", "drain", "interrupt", "wait"])


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(ACTIONS, st.integers(0, 5)), max_size=30))
def test_every_step_is_taken_once_and_in_order(actions: list[tuple[str, int]]) -> None:
    warned: list[str] = []
    background = Background(contextlib.nullcontext, warned.append)
    taken: list[tuple[int, int]] = []
    expected: list[tuple[int, int]] = []

    def task(number: int, steps: int) -> Iterator[None]:
        for step in range(steps):
            time.sleep(0.0001 * (step % 2))
            taken.append((number, step))
            yield

    def interrupt() -> Any:
        raise KeyboardInterrupt

    stops = 0
    for number, (action, amount) in enumerate(actions):
        if action == "submit":
            background.submit(task(number, amount))
            expected += [(number, step) for step in range(amount)]
        elif action == "stop":
            background.stop()
            stops += 1
            before = len(taken)
            time.sleep(0.0001 * amount)
            assert len(taken) == before
        elif action == "start":
            background.start()
            stops = max(stops - 1, 0)
        elif action == "drain":
            background.drain(impatient())
            assert taken == expected
        elif action == "interrupt":
            with contextlib.suppress(KeyboardInterrupt):
                background.drain(interrupt)
        else:
            time.sleep(0.0001 * amount)
    for _ in range(stops):
        background.start()
    background.start()

    assert eventually(lambda: not background.busy)
    assert taken == expected
    assert warned == []
