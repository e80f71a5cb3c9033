"""The one place with global state: what this process does with flor's calls.

`mode` is chosen once: Waiting until the first call, then Active (this process records), Off, or
Child (a process started by one that records). Everything else passes values.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from flor.record.watch import Watch
from flor.signals import quiet

if TYPE_CHECKING:
    from pathlib import Path
    from types import FrameType

    from flor.config import Settings
    from flor.record.arguments import Given
    from flor.record.ending import Ending
    from flor.record.recorder import Recorder
    from flor.record.recording import ChildRecording, Recording

T = TypeVar("T")

CHILD_MARKS = (  # on the command line of a process that a process pool started
    "--multiprocessing-fork",
    "multiprocessing.spawn",
    "multiprocessing.forkserver",
    "loky.backend",
)
TRUE = {"1", "true", "yes", "on"}


class Mode(Protocol):
    """What flor's calls do."""

    def log(self, name: str, value: Any, frame: FrameType) -> None: ...
    def arg(self, name: str, default: T, frame: FrameType) -> T: ...
    def loop(self, name: str, iterable: Iterable[T]) -> Iterable[T]: ...
    def checkpointing(self, objects: dict[str, Any]) -> AbstractContextManager[None]: ...
    def data(self, path: str) -> None: ...
    def close(self, ending: Ending, *, share: bool = True) -> str | None: ...
    def before_fork(self) -> None: ...
    def after_fork(self) -> Mode: ...


class Off:
    """Nothing is recorded; arguments still come from the command line."""

    def log(self, name: str, value: Any, frame: FrameType) -> None:
        pass

    def arg(self, name: str, default: T, frame: FrameType) -> T:
        return _resolve(name, default)[0]

    def loop(self, name: str, iterable: Iterable[T]) -> Iterable[T]:
        from flor.record.loops import make_loop

        return make_loop(iterable, iter)

    def checkpointing(self, objects: dict[str, Any]) -> AbstractContextManager[None]:
        return nullcontext()

    def data(self, path: str) -> None:
        pass

    def close(self, ending: Ending, *, share: bool = True) -> str | None:
        return None

    def before_fork(self) -> None:
        pass

    def after_fork(self) -> Mode:
        return self


class Ended(Off):
    """The run is over: the interpreter is about to go."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn

    def log(self, name: str, value: Any, frame: FrameType) -> None:
        with suppress(Exception):
            self._warn(f"flor.log({name!r}, …) came after the end of the run; it is not recorded")


class _Delegating:
    """A mode that starts to record with the first call."""

    def _begin(self) -> Mode:
        raise AssertionError("a subclass says how to begin")

    def _recorder(self) -> Mode:
        """The mode that records, begun once, whoever of several threads comes first."""
        global mode, _beginning
        with _lock:
            if mode is not self:
                return mode
            if _beginning:
                return Off()  # a signal handler that logs while the run is being set up
            _beginning = True
            try:
                mode = self._begin()
            finally:
                _beginning = False
            return mode

    def log(self, name: str, value: Any, frame: FrameType) -> None:
        self._recorder().log(name, value, frame)

    def arg(self, name: str, default: T, frame: FrameType) -> T:
        return self._recorder().arg(name, default, frame)

    def loop(self, name: str, iterable: Iterable[T]) -> Iterable[T]:
        return self._recorder().loop(name, iterable)

    def checkpointing(self, objects: dict[str, Any]) -> AbstractContextManager[None]:
        return self._recorder().checkpointing(objects)

    def data(self, path: str) -> None:
        self._recorder().data(path)

    def close(self, ending: Ending, *, share: bool = True) -> str | None:
        return None

    def before_fork(self) -> None:
        pass

    def after_fork(self) -> Mode:
        return self


class Waiting(_Delegating):
    """No flor call yet: the first one begins the run."""

    def _begin(self) -> Mode:
        return _begin_run()


class Recorded:
    """Calls go to a recorder."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.log = recorder.log  # no frame in between: this is the hot path
        self.loop = recorder.loop

    def arg(self, name: str, default: T, frame: FrameType) -> T:
        value, source = _resolve(name, default)
        self.recorder.arg(name, value, source, frame)
        return value

    @contextmanager
    def checkpointing(self, objects: dict[str, Any]) -> Iterator[None]:
        end = None
        try:
            with _own_imports():
                end = self.recorder.scope(objects)
        except Exception as error:  # noqa: BLE001 - the shield: recording never stops a training
            self.recorder.shield("flor.checkpointing", "", error)
        failed = True
        try:
            yield
            failed = False
        finally:
            if end is not None:
                with quiet():
                    end(failed)


class Active(Recorded):
    """This process records a run."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording.recorder)
        self._recording = recording
        self.settings = recording.settings
        self.run_id = recording.run.run_id
        # The cell that is running is listed already.
        self._first_cell = max(len(_typed_cells()) - 1, 0)

    def data(self, path: str) -> None:
        self._recording.declare(path)

    def settle(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._recording.settle()

    def close(self, ending: Ending, *, share: bool = True) -> str | None:
        global mode
        mode = Waiting() if _interactive() else Ended(self._recording.warn)
        # Nothing that defines dataclasses may be imported from here on: they compile text, and
        # that makes Python forget that Ctrl-C ended the script and exit with 1.
        if given is not None:
            from flor.record.arguments import unread

            for name in unread(given, _args_read):
                self._recording.warn(_unread_message(name))
        cells = _typed_cells()
        if cells:
            self._recording.cells(cells, self._first_cell)
        os.environ.pop("FLOR_PARENT", None)
        self._recording.finish(ending, share=share)
        return self._recording.run.run_id

    def before_fork(self) -> None:
        with suppress(Exception):
            self._recording.before_fork()

    def after_fork_in_parent(self) -> None:
        with suppress(Exception):
            self._recording.after_fork_in_parent()

    def after_fork(self) -> Mode:
        run_dir = self._recording.run_dir
        watch.divert(run_dir / f"opened-{os.getpid()}.txt")
        self._recording.leave_to_parent()
        return Child(run_dir, self.settings.root, self.recorder)


class Child(_Delegating):
    """A process started by one that records; a journal appears when it logs something."""

    def __init__(self, run_dir: Path, root: Path, parent: Recorder | None) -> None:
        self._run_dir = run_dir
        self._root = root
        self._parent = parent

    def _recorder(self) -> Mode:
        return Off() if _is_importing_main() else super()._recorder()

    def _begin(self) -> Mode:
        if _silenced_rank():
            return Off()
        try:
            with _own_imports():
                from flor.record.recording import ChildRecording
            return ActiveChild(ChildRecording(self._run_dir, self._root, self._parent), self)
        except Exception as error:  # noqa: BLE001 - the shield: recording never stops a training
            tell(f"process {os.getpid()} is not recorded: {error}")
            return Off()

    def data(self, path: str) -> None:
        watch.sink.append((os.path.abspath(path), 0.0))


class ActiveChild(Recorded):
    """This process writes a journal of its own beside that of the run that started it."""

    def __init__(self, recording: ChildRecording, child: Child) -> None:
        super().__init__(recording.recorder)
        self._recording = recording
        self._child = child

    def data(self, path: str) -> None:
        self._child.data(path)

    def close(self, ending: Ending, *, share: bool = True) -> str | None:
        return None

    def before_fork(self) -> None:
        pass

    def after_fork(self) -> Mode:
        self._recording.leave_to_parent()
        return Child(self._child._run_dir, self._child._root, self.recorder)


mode: Mode = Off()
watch = Watch()
given: Given | None = None
_args_read: set[str] = set()
_lock = threading.RLock()
_beginning = False
_argv: list[str] = []


def install() -> None:
    """Called by `import flor`: read the command line, watch files, wait for the first call."""
    global mode
    _argv[:] = sys.argv
    _take_arguments()
    if os.environ.get("FLOR_DISABLE", "").lower() in TRUE or _is_flor_command():
        return
    mode = _child_of_environment() or Waiting()
    watch.install()
    atexit.register(_at_exit)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=_before_fork,
            after_in_parent=_after_fork_in_parent,
            after_in_child=_after_fork,
        )


def commit() -> str | None:
    """Close the run, if one is open; the next call begins another."""
    global mode
    from flor.model import Status
    from flor.record.ending import Ending

    run_id = mode.close(Ending(Status.FINISHED, 0))
    if run_id is not None:
        mode = Waiting()
        watch.restart()
    return run_id


def settle() -> None:
    """Let questions see all checkpoints that this process has taken so far."""
    if isinstance(mode, Active):
        mode.settle()


def settings() -> Settings:
    """The project of this process: that of its run, else the one around the script."""
    from flor import config

    if isinstance(mode, Active):
        return mode.settings
    return config.load(_project_start(_script()))


def _begin_run() -> Mode:
    if _silenced_rank():
        return Off()
    watch.on = False  # what flor itself reads is not the run's data
    try:
        with _own_imports():
            from flor import config
            from flor.record import ending
            from flor.record.recording import PARENT_VARIABLE, Recording, parent_variable

        script = _script()
        project = config.load(_project_start(script))
        if script is not None and _is_installed(script):
            script = None
        recording = Recording(project, script, _argv, watch)
        kwargs = dict(given.command_line) if given is not None else {}
        os.environ[PARENT_VARIABLE] = parent_variable(recording.run_dir, project.root, kwargs)
        if not hasattr(sys.exit, "__wrapped__"):
            ending.watch_exits(_close_in_a_hurry)
        return Active(recording)
    except Exception as error:  # noqa: BLE001 - the shield: a run that cannot be recorded goes on
        tell(f"this run is not recorded: {error}. `flor doctor` looks for the cause")
        return Off()
    finally:
        watch.on = True


@contextmanager
def _own_imports() -> Iterator[None]:
    """flor gets Python's own modules, and the script the ones that it would have got.

    A script may have a `secrets.py` or `random.py` beside it. flor must not run that; nor may it
    leave Python's module of that name where the script's own import would find it.
    """
    standard = os.path.dirname(os.__file__)
    folders = [standard, os.path.join(standard, "lib-dynload")]
    before = set(sys.modules)
    users = sys.path[: sys.path.index(standard)] if standard in sys.path else sys.path[:1]
    sys.path[:0] = folders
    try:
        yield
    finally:
        for folder in folders:
            sys.path.remove(folder)
        own = {entry.split(".")[0] for folder in users for entry in _entries(folder)}
        for name in set(sys.modules) - before:
            top = name.partition(".")[0]
            if top in own and top in sys.stdlib_module_names:
                del sys.modules[name]


def _entries(folder: str) -> list[str]:
    try:
        return os.listdir(folder or ".")
    except OSError:
        return []


def tell(text: str) -> None:
    """A line on stderr."""
    with suppress(Exception):  # there may be no stderr, and nobody to tell
        from flor.errors import with_single_stops

        sys.stderr.write(f"flor: {with_single_stops(text)}\n")


def _close_in_a_hurry(ending: Ending) -> None:
    if isinstance(mode, Active):
        from flor.git import abandon

        mode.close(ending, share=False)
        abandon()


def _at_exit() -> None:
    if not isinstance(mode, Active):
        return
    from flor.git import abandon
    from flor.record.ending import at_exit

    try:
        mode.close(at_exit())
        abandon()  # a git that hangs would outlive the script
    except Exception as error:  # noqa: BLE001 - the shield: the exit code is the script's
        tell(f"the end of the run was not recorded: {error}")


def _before_fork() -> None:
    mode.before_fork()


def _after_fork_in_parent() -> None:
    if isinstance(mode, Active):
        mode.after_fork_in_parent()


def _after_fork() -> None:
    global mode, _lock, _beginning
    _lock, _beginning = threading.RLock(), False  # another thread may have held it
    with suppress(Exception):
        mode = mode.after_fork()


def _take_arguments() -> None:
    """Arguments are parsed only if there are some: the parser costs milliseconds."""
    global given
    wanted = any("kwargs" in word for word in sys.argv) or "FLOR_KWARGS" in os.environ
    if wanted:
        with _own_imports():
            from flor.record.arguments import from_process

        given = from_process(sys.argv, _script())
        for note in given.notes:
            tell(note)


def _resolve(name: str, default: T) -> tuple[T, str]:
    """The value of an argument and where it comes from. Raises ArgumentError."""
    if given is None:
        return default, "default"
    from flor.errors import ArgumentError
    from flor.record.arguments import convert

    if given.mistake is not None:
        raise ArgumentError(given.mistake)
    _args_read.add(name)
    found = given.get(name)
    if found is None:
        return default, "default"
    text, source = found
    value: T = convert(name, text, default, source)
    return value, source


def _unread_message(name: str) -> str:
    import difflib

    near = difflib.get_close_matches(name, _args_read, 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"--kwargs {name}=… was read by no flor.arg{hint}"


def _child_of_environment() -> Mode | None:
    """A spawned child of a process that records continues that run."""
    global given
    parent = os.environ.get("FLOR_PARENT")
    words = " ".join(sys.orig_argv)
    if parent is None or not any(mark in words for mark in CHILD_MARKS):
        return None
    import json
    from pathlib import Path

    from flor.record.arguments import Given

    try:
        data = json.loads(parent)
        given = Given(data["kwargs"], {})
        run_dir = Path(data["run_dir"])
        watch.divert(run_dir / f"opened-{os.getpid()}.txt")
        return Child(run_dir, Path(data["root"]), None)
    except (ValueError, KeyError, TypeError):
        return None


def _is_importing_main() -> bool:
    """Whether a spawned child is importing its parent's script: those calls have happened."""
    process = sys.modules.get("multiprocessing.process")
    if process is None:
        return False
    return getattr(process.current_process(), "_inheriting", False)


def _silenced_rank() -> bool:
    """One process of a distributed job records, unless all are asked to."""
    if os.environ.get("FLOR_ALL_RANKS", "").lower() in TRUE:
        return False
    with _own_imports():
        from flor.record.environment import rank
    return bool(rank())


def _script() -> Path | None:
    """The script that runs, or None in a REPL, a notebook or `-c`."""
    from pathlib import Path

    main = sys.modules.get("__mp_main__") or sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    if _interactive() or not isinstance(file, str):
        return None
    script = Path(file).resolve()
    return script if script.is_file() else None


def _project_start(script: Path | None) -> Path:
    """Where to look for the project: at the script, if it is the user's own, else right here."""
    from pathlib import Path

    here = Path.cwd()
    if script is None or not script.exists() or _is_installed(script):
        return here
    from flor.config import find_root

    if find_root(script.parent) is not None or not script.is_relative_to(here):
        return script.parent
    return here


def _is_installed(script: Path) -> bool:
    """Whether this is a tool such as pytest rather than the user's own script."""
    from pathlib import Path

    if {"site-packages", "dist-packages"} & set(script.parts):
        return True
    homes = {sys.prefix, sys.base_prefix}
    return script.parent in {Path(home, name) for home in homes for name in ("bin", "Scripts")}


def _is_flor_command() -> bool:
    """Whether this process is the `flor` command: it asks, it does not record."""
    words = sys.orig_argv
    return os.path.basename(sys.argv[0] if sys.argv else "") in {"flor", "flor.exe"} or (
        "-m" in words and words[words.index("-m") + 1 :][:1] == ["flor"]
    )


def _interactive() -> bool:
    return hasattr(sys, "ps1") or "ipykernel" in sys.modules


def _typed_cells() -> list[str]:
    """The cells that IPython has run so far."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return list(shell.user_ns.get("In", [])[1:]) if shell is not None else []
