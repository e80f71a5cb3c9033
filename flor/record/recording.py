"""One run from its first flor call to its end: what is set up, written and cleaned away."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flor.claim import Claim, process_age
from flor.config import MiB, Settings
from flor.errors import FlorError, with_single_stops
from flor.git import open_repository
from flor.model import JOURNAL_FORMAT, DataFile, Run
from flor.objects import ObjectStore
from flor.record import environment, publish
from flor.record.datafiles import DataFiles
from flor.record.ending import Ending, is_interactive
from flor.record.journal import Journal
from flor.record.recorder import Recorder, Warnings
from flor.record.watch import Watch

if TYPE_CHECKING:
    from flor.checkpoint.service import Service

START_WAIT_SECONDS = 2.0  # the training waits this long for its code version, then goes on
END_WAIT_SECONDS = 8.0  # the exit waits this long in all; what is not done then, `flor sync` does
HASH_WAIT_SECONDS = 1.0  # of that, for data files that are still being hashed
PARENT_VARIABLE = "FLOR_PARENT"  # tells spawned children which run they belong to


class Recording:
    """The run of this process. Raises OSError or FlorError when it cannot begin."""

    def __init__(
        self, settings: Settings, script: Path | None, argv: list[str], watch: Watch
    ) -> None:
        self.settings = settings
        self._pid = os.getpid()
        self._warnings = Warnings()
        self._watch = watch
        self._closed = threading.Lock()
        self._versioned = False
        age = _age_of_first_run()
        began = time.perf_counter() - age
        started = datetime.fromtimestamp(time.time() - age, timezone.utc)
        self.run_dir = _new_run_dir(settings, started)
        self._claim = Claim(self.run_dir / "alive")
        self._journal = Journal(self.run_dir / "journal.jsonl", self.warn)
        self.run = _describe(settings, self.run_dir.name, started, script, argv)
        self.recorder = Recorder(
            self._journal, ObjectStore(settings.objects_dir), settings.root, began, self.warn
        )
        emit = self.recorder.emit
        emit({"t": "run", "v": JOURNAL_FORMAT} | self.run.to_json())
        _mark_unpublished(settings, self.run.run_id)
        self._version_thread = self._begin_version(script)
        emit({"t": "env", "packages": environment.packages(), "devices": environment.devices()})
        self._emit_seeds()
        self.recorder.before_first_loop = self._emit_seeds
        self.recorder.open_scope = self._open_scope
        self._checkpoints: Service | None = None
        self._data = DataFiles(watch, settings.root, self.run_dir, self._emit_data, self.warn)
        self._version_thread.join(START_WAIT_SECONDS)

    def warn(self, text: str) -> None:
        """Say it once on stderr, and keep it with the run."""
        if self._warnings.say(text):
            with suppress(Exception):  # the journal may be what failed
                self.recorder.emit({"t": "note", "text": with_single_stops(text)})

    def declare(self, path: str) -> None:
        self._data.declare(path)

    def before_fork(self) -> None:
        """A fork copies one thread only: flor has no other while it happens."""
        self._data.stop()
        if self._checkpoints is not None:
            self._checkpoints.before_fork()

    def after_fork_in_parent(self) -> None:
        self._data.start()
        if self._checkpoints is not None:
            self._checkpoints.after_fork_in_parent()

    def cells(self, sources: list[str], first: int) -> None:
        """What was typed in a notebook or a REPL, the run's own from cell `first` on."""
        self.recorder.emit({"t": "cells", "source": sources, "first": first})

    def settle(self) -> None:
        """Have every checkpoint that was taken written and listed."""
        if self._checkpoints is not None:
            self._checkpoints.drain()

    def finish(self, ending: Ending, *, share: bool = True) -> None:
        """Write the end and, unless the process is in a hurry, put the journal on the branch.

        Only the process that began the run does; once.
        """
        if os.getpid() != self._pid or not self._closed.acquire(blocking=False):
            return
        deadline = time.monotonic() + END_WAIT_SECONDS
        self._watch.on = False
        if self._checkpoints is not None:
            self._checkpoints.drain(quick=not share)
        if share:
            self._version_thread.join(deadline - time.monotonic())
        self._data.close(HASH_WAIT_SECONDS if share else 0.0)
        self.recorder.emit(
            {
                "t": "end",
                "status": ending.status.value,
                "at": self.recorder.elapsed(),
                "exit_code": ending.exit_code,
                "error": ending.error,
                "traceback": ending.traceback,
            }
        )
        self.recorder.end()
        self._journal.close()
        # Where the version failed, the branch would fail likewise; that has been told already.
        if share and self._versioned:
            self._share(ending, deadline - time.monotonic())
        self._claim.release()

    def leave_to_parent(self) -> None:
        """In a forked child: let go of what is the parent's."""
        self._journal.abandon()
        self._claim.release()
        if self._checkpoints is not None:
            self._checkpoints.background.abandon()

    def _open_scope(self, number: int, objects: dict[str, Any]) -> Any:
        """What takes the checkpoints of a block of this run."""
        from flor.checkpoint.scope import Scope
        from flor.checkpoint.service import Service

        if self._checkpoints is None:
            self._checkpoints = Service(
                self.settings,
                self.run.run_id,
                self.recorder.emit,
                self.recorder.elapsed,
                self.recorder.place,
                self._watch.unseen,
                self.warn,
            )
        return Scope(self._checkpoints, number, objects)

    def _share(self, ending: Ending, seconds: float) -> None:
        try:
            publish.publish(self.settings, self.run_dir, ending.status.value, seconds)
        except (FlorError, OSError) as error:
            self._warnings.say(
                f"the journal of run {self.run.run_id} is safe in {self.run_dir}, but could not "
                f"join the branch: {error}. `flor sync` tries again"
            )

    def _begin_version(self, script: Path | None) -> threading.Thread:
        essential = _imported_files(self.settings.root, script)
        thread = threading.Thread(
            target=self._version_unseen, args=(essential,), name="flor-version", daemon=True
        )
        thread.start()
        return thread

    def _version_unseen(self, essential: list[Path]) -> None:
        with self._watch.unseen():
            self._make_version(essential)

    def _make_version(self, essential: list[Path]) -> None:
        settings = self.settings
        try:
            repository = open_repository(
                *(settings.root, settings.flor_dir, settings.branch),
                seconds=settings.snapshot_seconds,
            )
            version = repository.snapshot(
                file_limit=int(settings.file_limit_mb * MiB),
                tree_limit=int(settings.tree_limit_mb * MiB),
                seconds=settings.snapshot_seconds,
                essential=essential,
            )
            self.recorder.emit({"t": "version"} | version.to_json())
            self._versioned = True
        except Exception as error:  # noqa: BLE001 - the shield: a broken repository stops no training
            self.warn(f"the code of this run is not versioned: {error}")

    def _emit_seeds(self) -> None:
        try:
            self.recorder.emit({"t": "seeds", "at": self.recorder.elapsed()} | environment.seeds())
        except Exception as error:  # noqa: BLE001 - the shield: foreign generators may raise anything
            self.warn(f"the random seeds were not recorded: {type(error).__name__}: {error}")

    def _emit_data(self, found: DataFile) -> None:
        self.recorder.emit({"t": "data"} | found.to_json())


class ChildRecording:
    """What a child process of a run logs, in a journal of its own beside the run's.

    Its loop 0 is the script's top level. A forked child names the loops that it was started in
    again, a spawned one begins outside of them.
    """

    def __init__(self, run_dir: Path, root: Path, parent: Recorder | None) -> None:
        self._warnings = Warnings()
        path = run_dir / f"child-{os.getpid()}-{os.urandom(2).hex()}.jsonl"
        self._journal = Journal(path, self.warn)
        objects = ObjectStore(run_dir.parent.parent / "objects")
        # The clock runs on over a fork, so the parent's start is the child's.
        began = parent.began if parent is not None else time.perf_counter()
        self.recorder = Recorder(self._journal, objects, root, began, self.warn)
        if parent is not None:
            self.recorder.inherit(parent)
        header = {"t": "child", "v": JOURNAL_FORMAT, "run_id": run_dir.name, "pid": os.getpid()}
        self.recorder.emit(header | {"loop": 0, "iteration": 0})

    def warn(self, text: str) -> None:
        """Say it once on stderr."""
        self._warnings.say(text)

    def leave_to_parent(self) -> None:
        """In a child that this one forked: let go of what is its parent's."""
        self._journal.abandon()


def parent_variable(run_dir: Path, root: Path, kwargs: dict[str, str]) -> str:
    return json.dumps({"run_dir": str(run_dir), "root": str(root), "kwargs": kwargs})


def _new_run_dir(settings: Settings, started: datetime) -> Path:
    settings.runs_dir.mkdir(parents=True, exist_ok=True)
    ignore = settings.flor_dir / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n")
    while True:
        run_id = f"{started:%Y%m%d-%H%M%S}-{os.urandom(3).hex()}"
        with suppress(FileExistsError):
            run_dir = settings.runs_dir / run_id
            run_dir.mkdir()
            return run_dir


def _mark_unpublished(settings: Settings, run_id: str) -> None:
    folder = settings.flor_dir / "unpublished"
    folder.mkdir(exist_ok=True)
    (folder / run_id).touch()


def _describe(
    settings: Settings, run_id: str, started: datetime, script: Path | None, argv: list[str]
) -> Run:
    return Run(
        run_id=run_id,
        projid=settings.projid,
        tstamp=f"{started:%Y-%m-%dT%H:%M:%S.%f}Z",
        filename=script_name(settings.root, script),
        argv=tuple(argv),
        cwd=str(Path.cwd()),
        host=os.uname().nodename,
        user=environment.user(),
        pid=os.getpid(),
        python=".".join(str(part) for part in sys.version_info[:3]),
        platform=f"{sys.platform}-{os.uname().machine}",
        parent=_parent_run(),
        rank=environment.rank(),
    )


def _parent_run() -> str | None:
    try:
        return Path(json.loads(os.environ[PARENT_VARIABLE])["run_dir"]).name
    except (KeyError, ValueError, TypeError):
        return None  # none, or something that flor did not write


def script_name(root: Path, script: Path | None) -> str:
    if script is None:
        return _session_name(root) if is_interactive() else Path(sys.argv[0]).name or "python"
    return str(script.relative_to(root)) if script.is_relative_to(root) else script.name


def _session_name(root: Path) -> str:
    """The notebook, where Jupyter or VS Code tell its name."""
    main = sys.modules.get("__main__")
    name = os.environ.get("JPY_SESSION_NAME") or getattr(main, "__vsc_ipynb_file__", None)
    if not name:
        return "notebook" if "ipykernel" in sys.modules else "session"
    path = Path(name).absolute()
    return str(path.relative_to(root)) if path.is_relative_to(root) else path.name


def _imported_files(root: Path, script: Path | None) -> list[Path]:
    """The script and the project's modules that are imported by now."""
    found = {script} if script is not None else set()
    prefix = f"{root}{os.sep}"
    for module in list(sys.modules.values()):
        file: Any = getattr(module, "__file__", None)
        if isinstance(file, str) and file.startswith(prefix) and "site-packages" not in file:
            found.add(Path(file))
    return sorted(path for path in found if path.is_relative_to(root))


_earlier_runs = 0  # of this process; the first began with the process, imports included


def _age_of_first_run() -> float:
    """How long ago this run began: with the process, unless it is not the process's first."""
    global _earlier_runs
    _earlier_runs += 1
    first = _earlier_runs == 1 and not is_interactive()
    return (process_age() or 0.0) if first else 0.0
