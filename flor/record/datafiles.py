"""The data version of a run: the files that it read, hashed on a thread of their own."""

from __future__ import annotations

import json
import os
import stat
import sys
import sysconfig
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from flor.model import DataFile
from flor.record.watch import MAX_FILES, Watch

BLOCK = 1024 * 1024
SAMPLE_ABOVE = 4 * 1024**3  # a larger file is hashed in places
SAMPLES = 64
BUCKETS = ("s3", "gs", "az")
POLL_SECONDS = 1.0
STOP_SECONDS = 2.0
RACY_SECONDS = 2.0  # a file changed this recently may change again within one tick of its mtime
SYSTEM_FOLDERS = ("/proc/", "/sys/", "/dev/", "/etc/", "/usr/", "/lib", "/run/", "/var/lib/")
IGNORED_PARTS = ("/.flor/", "/.git/", "/__pycache__/", "/site-packages/", "/dist-packages/")


class Stopped(Exception):
    """The thread was told to end in the middle of its work."""


class DataFiles:
    """Turns watched and declared paths into `DataFile`s, in the background.

    `emit` receives each; `warn` is told of what cannot be read.
    """

    def __init__(
        self,
        watch: Watch,
        root: Path,
        run_dir: Path,
        emit: Callable[[DataFile], None],
        warn: Callable[[str], None],
    ) -> None:
        self._watch = watch
        self._root = root
        self._run_dir = run_dir
        self._emit = emit
        self._warn = warn
        self._cache = HashCache(root / ".flor" / "hashes.jsonl", self._go_on)
        self._declared: deque[str] = deque()
        self._offsets: dict[str, int] = {}
        self._done: dict[str, bool] = {}  # path -> whether it is listed as declared
        self._wake = threading.Event()
        self._stopping = False  # the thread is to end soon, whatever is left
        self._draining = False  # the thread is to end when nothing is left
        self._ignored = _ignored_folders()
        self.start()

    def start(self) -> None:
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name="flor-data", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, so that the process can fork without it; what is left stays queued."""
        self._stopping = True
        self._wake.set()
        self._thread.join(STOP_SECONDS)

    def declare(self, path: str) -> None:
        self._declared.append(path if "://" in path else os.path.abspath(path))
        self._wake.set()

    def close(self, seconds: float) -> None:
        """Finish what is queued, for at most so long; the rest is listed without a hash."""
        self._draining = True
        self._wake.set()
        self._thread.join(seconds)
        if self._thread.is_alive():
            self.stop()
            while self._declared:
                self._list_only(self._declared.popleft(), declared=True)
            for path, _ in self._pending():
                if path not in self._done and not self._is_ignored(path):
                    self._list_only(path, declared=False)
        if self._watch.overflow:
            self._warn(
                f"the run opened more than {MAX_FILES:,} files; its data version lists the first. "
                "Declare the folder with flor.data(path) to cover all of them"
            )

    def _list_only(self, path: str, *, declared: bool) -> None:
        found = self._facts(path, declared=declared)
        if found is not None:
            note = "not hashed: the run ended first"
            self._emit(DataFile.from_json({**found.to_json(), "note": note}))

    def _work(self) -> None:
        if sys.platform == "linux":
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
        with self._watch.unseen(), suppress(Stopped):
            while True:
                self._wake.wait(POLL_SECONDS)
                self._wake.clear()
                self._go_on()
                try:
                    self._examine_all()
                except OSError as error:
                    self._warn(f"the data version is not complete: {error}")
                if self._draining and not self._declared and not self._watch.queue:
                    return

    def _examine_all(self) -> None:
        while self._declared:
            path = self._declared.popleft()
            try:
                self._examine(path, time.time(), declared=True)
            except Stopped:
                self._declared.appendleft(path)
                raise
        for path, opened in self._pending():
            try:
                self._examine(path, opened, declared=False)
            except Stopped:
                self._watch.queue.appendleft((path, opened))
                raise

    def _go_on(self) -> None:
        if self._stopping:
            raise Stopped

    def _pending(self) -> Iterator[tuple[str, float]]:
        while self._watch.queue:
            yield self._watch.queue.popleft()
        for path in self._run_dir.glob("opened-*.txt"):  # what child processes opened
            with path.open("rb") as file:
                file.seek(self._offsets.get(path.name, 0))
                block = file.read()
            block = block[: block.rfind(b"\n") + 1]
            self._offsets[path.name] = self._offsets.get(path.name, 0) + len(block)
            for line in block.splitlines():
                yield os.fsdecode(line), time.time()

    def _examine(self, path: str, opened: float, *, declared: bool) -> None:
        if not declared and (path in self._done or self._is_ignored(path)):
            return
        if self._done.get(path):
            return
        self._go_on()
        try:
            found = self._declared_file(path) if declared else self._seen_file(path, opened)
        except Stopped:
            raise
        except Exception as error:  # noqa: BLE001 - the shield: a data version never stops a training
            self._done[path] = declared
            reason = str(error).partition("\n")[0][:200]
            self._warn(f"cannot record the data {path}: {type(error).__name__}: {reason}")
            self._emit(DataFile(path, declared=declared, note=f"unreachable: {reason}"))
            return
        self._done[path] = declared
        if found is not None:
            self._emit(found)

    def _is_ignored(self, path: str) -> bool:
        inside = path.startswith(f"{self._root}/")
        local = path[len(str(self._root)) :] if inside else path
        if any(part in local for part in IGNORED_PARTS):
            return True
        return not inside and path.startswith(self._ignored)

    def _declared_file(self, path: str) -> DataFile:
        if "://" in path:
            return _remote(path)
        if Path(path).is_dir():
            return self._folder(path)
        found = self._facts(path, declared=True)
        if found is None:
            name = self._name(path)
            self._warn(f"flor.data({name!r}): there is no such file; it is recorded as missing")
            return DataFile(name, declared=True, note="missing")
        return self._hashed(path, found)

    def _seen_file(self, path: str, opened: float) -> DataFile | None:
        found = self._facts(path)
        if found is None:
            return None
        if found.mtime_ns is not None and found.mtime_ns / 1e9 > opened:
            changed = {**found.to_json(), "note": "changed after the run had opened it"}
            found = DataFile.from_json(changed)
        return self._hashed(path, found)

    def _facts(self, path: str, *, declared: bool = False) -> DataFile | None:
        try:
            info = os.stat(path)
        except OSError:
            return None
        if not stat.S_ISREG(info.st_mode):
            return None
        return DataFile(self._name(path), info.st_size, info.st_mtime_ns, declared=declared)

    def _hashed(self, path: str, found: DataFile) -> DataFile:
        return DataFile.from_json({**found.to_json(), "digest": self._cache.digest(path)})

    def _folder(self, path: str) -> DataFile:
        """One entry for a folder: its digest covers every file's relative path and content."""
        from hashlib import blake2b

        whole, size, newest, count = blake2b(digest_size=32), 0, 0, 0
        for folder, subfolders, files in os.walk(path):
            subfolders[:] = sorted(set(subfolders) - {".flor", ".git"})
            for name in sorted(files):
                inner = os.path.join(folder, name)
                facts = self._facts(inner)
                if facts is None:
                    continue
                relative = os.path.relpath(inner, path)
                whole.update(f"{relative}\0{self._cache.digest(inner)}\n".encode())
                size += facts.size_bytes or 0
                newest = max(newest, facts.mtime_ns or 0)
                count += 1
        digest = f"tree:{whole.hexdigest()}"
        return DataFile(self._name(path), size, newest, digest, True, f"folder of {count} files")

    def _name(self, path: str) -> str:
        """Relative to the project when inside it, so that another clone can compare."""
        full = os.path.abspath(path)
        return full[len(str(self._root)) + 1 :] if full.startswith(f"{self._root}/") else full


class HashCache:
    """Content hashes by (path, inode, size, mtime), kept in a file of JSON lines."""

    def __init__(self, path: Path, go_on: Callable[[], None]) -> None:
        self._path = path
        self._go_on = go_on
        self._known: dict[str, str] | None = None

    def digest(self, path: str) -> str:
        info = os.stat(path)
        key = f"{path}|{info.st_ino}|{info.st_size}|{info.st_mtime_ns}"
        known = self._load()
        if key not in known:
            known[key] = (
                _sampled(path, info) if info.st_size > SAMPLE_ABOVE else _whole(path, self._go_on)
            )
            if time.time() - info.st_mtime > RACY_SECONDS:
                with self._path.open("a", encoding="utf-8", errors="surrogateescape") as file:
                    file.write(json.dumps([key, known[key]]) + "\n")
        return known[key]

    def _load(self) -> dict[str, str]:
        if self._known is None:
            self._known = {}
            try:
                for line in self._path.read_text(errors="surrogateescape").splitlines():
                    key, digest = json.loads(line)
                    self._known[key] = digest
            except (OSError, ValueError):
                pass  # no cache yet, or a torn line: files are hashed again
        return self._known


def _whole(path: str, go_on: Callable[[], None]) -> str:
    from hashlib import blake2b

    digest = blake2b(digest_size=32)
    with open(path, "rb", buffering=0) as file:
        while block := file.read(BLOCK):
            go_on()
            started = time.perf_counter()
            digest.update(block)
            # Half the time of one core at most, so that a training on few cores keeps them.
            time.sleep(min(0.01, time.perf_counter() - started))
    return f"blake2b:{digest.hexdigest()}"


def _sampled(path: str, info: os.stat_result) -> str:
    from hashlib import blake2b

    digest = blake2b(str(info.st_size).encode(), digest_size=32)
    with open(path, "rb", buffering=0) as file:
        for index in range(SAMPLES):
            file.seek((info.st_size - BLOCK) * index // (SAMPLES - 1))
            digest.update(file.read(BLOCK))
    return f"sampled:{digest.hexdigest()}"


def _remote(uri: str) -> DataFile:
    """An object in a bucket, by its ETag; credentials come from the environment."""
    scheme, _, place = uri.partition("://")
    if scheme not in BUCKETS:
        note = f"not checked: only objects in {', '.join(BUCKETS)} are"
        return DataFile(uri, declared=True, note=note)
    try:
        from obstore.store import from_url
    except ImportError:
        note = "not checked: pip install 'flor-hindsight[s3]' to record the ETag of S3 objects"
        return DataFile(uri, declared=True, note=note)
    bucket, _, key = place.partition("/")
    facts = from_url(f"{scheme}://{bucket}").head(key)
    etag = str(facts["e_tag"] or "").strip('"')
    digest = f"etag:{etag}" if etag else None
    modified = int(facts["last_modified"].timestamp() * 1e9)
    return DataFile(uri, int(facts["size"]), modified, digest, declared=True)


def _ignored_folders() -> tuple[str, ...]:
    places = {sys.prefix, sys.base_prefix, sys.exec_prefix, *sysconfig.get_paths().values()}
    return (*SYSTEM_FOLDERS, *(f"{place}/" for place in places if place))
