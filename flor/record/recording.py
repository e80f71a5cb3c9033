"""One run from its first flor call to its end: what is set up, written and cleaned away."""

from __future__ import annotations

import json
import os
import secrets
import sys
import threading
import time
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from flor.config import MiB, Settings
from flor.errors import FlorError
from flor.git import open_repository
from flor.model import JOURNAL_FORMAT, DataFile, Run
from flor.objects import ObjectStore
from flor.record import environment, publish
from flor.record.datafiles import DataFiles
from flor.record.ending import Ending, is_interactive
from flor.record.journal import Claim, Journal
from flor.record.recorder import Recorder, warn_on_stderr
from flor.record.watch import Watch

START_WAIT_SECONDS = 2.0  # the training waits this long for its code version, then goes on
END_WAIT_SECONDS = 10.0  # the exit waits this long for a version that is still being made
HASH_WAIT_SECONDS = 1.0  # and this long for data files that are still being hashed
PARENT_VARIABLE = "FLOR_PARENT"  # tells spawned children which run they belong to


class Recording:
    """The run of this process. Raises OSError or FlorError when it cannot begin."""

    def __init__(
        self, settings: Settings, script: Path | None, argv: list[str], watch: Watch
    ) -> None:
        self.settings = settings
        self._pid = os.getpid()
        self._said: set[str] = set()
        self._watch = watch
        self._closed = threading.Lock()
        self._versioned = True
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
        self._data = DataFiles(watch, settings.root, self.run_dir, self._emit_data, self.warn)
        self._version_thread.join(START_WAIT_SECONDS)

    def warn(self, text: str) -> None:
        """Say it once on stderr, and keep it with the run."""
        if warn_on_stderr(self._said, text):
            with suppress(Exception):  # the journal may be what failed
                self.recorder.emit({"t": "note", "text": text})

    def declare(self, path: str) -> None:
        self._data.declare(path)

    def before_fork(self) -> None:
        """A fork copies one thread only: flor has no other while it happens."""
        self._data.stop()

    def after_fork_in_parent(self) -> None:
        self._data.start()

    def cells(self, sources: list[str]) -> None:
        """What was typed in a notebook or a REPL: the code that really ran."""
        self.recorder.emit({"t": "cells", "source": sources})

    def finish(self, ending: Ending) -> None:
        """Write the end and share the journal. Only the process that began the run does; once."""
        if os.getpid() != self._pid or not self._closed.acquire(blocking=False):
            return
        self._watch.on = False
        self._version_thread.join(END_WAIT_SECONDS)
        self._data.close(HASH_WAIT_SECONDS)
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
        self._journal.close()
        try:
            publish.publish(self.settings, self.run_dir, ending.status.value)
        except (FlorError, OSError) as error:
            if self._versioned:  # else the same trouble was told at the start
                warn_on_stderr(
                    self._said,
                    f"the journal of run {self.run.run_id} is safe in {self.run_dir}, but could "
                    f"not join the branch: {error}. `flor sync` tries again",
                )
        self._claim.release()

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
            repository = open_repository(settings.root, settings.flor_dir, settings.branch)
            version = repository.snapshot(
                file_limit=int(settings.file_limit_mb * MiB),
                tree_limit=int(settings.tree_limit_mb * MiB),
                seconds=settings.snapshot_seconds,
                essential=essential,
            )
            self.recorder.emit({"t": "version"} | version.to_json())
        except Exception as error:  # noqa: BLE001 - the shield: a broken repository stops no training
            self._versioned = False
            self.warn(f"the code of this run is not versioned: {error}")

    def _emit_seeds(self) -> None:
        try:
            self.recorder.emit({"t": "seeds", "at": self.recorder.elapsed()} | environment.seeds())
        except Exception as error:  # noqa: BLE001 - the shield: foreign generators may raise anything
            self.warn(f"the random seeds were not recorded: {type(error).__name__}: {error}")

    def _emit_data(self, found: DataFile) -> None:
        self.recorder.emit({"t": "data"} | found.to_json())


class ChildRecording:
    """What a child process of a run logs, in a journal of its own beside the run's."""

    def __init__(self, run_dir: Path, root: Path, inherited: tuple[int, int]) -> None:
        self._said: set[str] = set()
        path = run_dir / f"child-{os.getpid()}-{secrets.token_hex(2)}.jsonl"
        self._journal = Journal(path, self.warn)
        objects = ObjectStore(run_dir.parent.parent / "objects")
        began = time.perf_counter()
        self.recorder = Recorder(self._journal, objects, root, began, self.warn)
        loop, iteration = inherited
        header = {"t": "child", "v": JOURNAL_FORMAT, "run_id": run_dir.name, "pid": os.getpid()}
        self.recorder.emit(header | {"loop": loop, "iteration": iteration})

    def warn(self, text: str) -> None:
        warn_on_stderr(self._said, text)


def parent_variable(run_dir: Path, root: Path, kwargs: dict[str, str]) -> str:
    return json.dumps({"run_dir": str(run_dir), "root": str(root), "kwargs": kwargs})


def _new_run_dir(settings: Settings, started: datetime) -> Path:
    settings.runs_dir.mkdir(parents=True, exist_ok=True)
    ignore = settings.flor_dir / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n")
    while True:
        run_id = f"{started:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
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
    parent = os.environ.get(PARENT_VARIABLE)
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
        parent=Path(json.loads(parent)["run_dir"]).name if parent else None,
        rank=environment.rank(),
    )


def script_name(root: Path, script: Path | None) -> str:
    if script is None:
        return "notebook" if is_interactive() else Path(sys.argv[0]).name or "python"
    return str(script.relative_to(root)) if script.is_relative_to(root) else script.name


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
    return _process_age() if _earlier_runs == 1 and not is_interactive() else 0.0


def _process_age() -> float:
    """Seconds since this process began, imports before flor's included; 0 if nobody tells."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        return max(0.0, uptime - int(fields[19]) / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError):
        return 0.0
