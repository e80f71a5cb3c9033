"""A finished run's journal as one compressed file, for the branch that is shared."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from flor.config import MiB, Settings
from flor.errors import GitError
from flor.git import open_repository
from flor.model import Version
from flor.record.journal import is_dead

RAW_PER_COMPRESSED = 12  # text of numbers compresses at most about so well


def payload(run_dir: Path, limit_bytes: int) -> bytes:
    """The run's journals one after the other, or their summary when that is over the limit.

    A `child` line begins a journal of its own, so the files need no frame around them.
    """
    files = journal_files(run_dir)
    size = sum(path.stat().st_size for path in files)
    if size <= limit_bytes * RAW_PER_COMPRESSED:
        whole = gzip.compress(b"".join(_complete_lines(path) for path in files), 6, mtime=0)
        if len(whole) <= limit_bytes:
            return whole
    lines = (line for path in files for line in _summary(path))
    return gzip.compress(b"".join(lines), 6, mtime=0)


def journal_files(run_dir: Path) -> list[Path]:
    return [run_dir / "journal.jsonl", *sorted(run_dir.glob("child-*.jsonl"))]


def publish_dead(settings: Settings, *, most: int | None = None) -> list[str]:
    """Put runs on the branch that ended without doing so themselves; their ids."""
    done = []
    with suppress(OSError):
        for marker in sorted((settings.flor_dir / "unpublished").iterdir())[:most]:
            run_dir = settings.runs_dir / marker.name
            if not (run_dir / "journal.jsonl").exists():
                marker.unlink(missing_ok=True)
            elif is_dead(run_dir):
                publish(settings, run_dir, "ended without a word")
                done.append(marker.name)
    return done


def publish(settings: Settings, run_dir: Path, how: str) -> str:
    """Add the run's journal to the branch; the commit. Raises GitError or OSError."""
    content = payload(run_dir, int(settings.journal_limit_mb * MiB))
    version, filename = _head_of(run_dir)
    repository = open_repository(settings.root, settings.flor_dir, settings.branch)
    commit = repository.attach_journal(
        version, run_dir.name, content, f"Run {run_dir.name}: {filename} {how}"
    )
    (settings.flor_dir / "unpublished" / run_dir.name).unlink(missing_ok=True)
    return commit


def _head_of(run_dir: Path) -> tuple[Version | None, str]:
    """The version and the script, from the journal's first lines."""
    version, filename = None, "?"
    with (run_dir / "journal.jsonl").open("rb") as lines:
        for line in lines:
            if line.startswith(b"["):
                continue
            with suppress(ValueError, KeyError, TypeError):
                data = json.loads(line)
                if data["t"] == "run":
                    filename = data["filename"]
                elif data["t"] == "version":
                    version = Version.from_json({k: v for k, v in data.items() if k != "t"})
                    break
    return version, filename


def _complete_lines(path: Path) -> bytes:
    content = path.read_bytes()
    return content[: content.rfind(b"\n") + 1]


def _summary(path: Path) -> Iterator[bytes]:
    """The journal with the last record of each statement in each loop instance only.

    Records at the top level are all kept; iteration times keep their sums.
    """
    last: dict[bytes, bytes] = {}
    note = {"t": "note", "text": "summary: the whole journal is over the size limit for sharing"}
    end = b""
    with path.open("rb") as lines:
        for line in lines:
            if not line.endswith(b"\n"):
                break
            if line.startswith(b"["):
                site, loop, _ = line[1:].split(b",", 2)
                if loop == b"0":
                    yield line
                else:
                    last[site + b"," + loop] = line
            elif line.startswith(b'{"t": "times"'):
                with suppress(ValueError):
                    yield (json.dumps(json.loads(line) | {"each": None}) + "\n").encode()
            elif line.startswith(b'{"t": "end"'):
                end = line
            elif not line.startswith(b'{"t": "value"'):
                yield line
    yield from last.values()
    yield (json.dumps(note) + "\n").encode() + end


__all__ = ["GitError", "journal_files", "payload", "publish", "publish_dead"]
