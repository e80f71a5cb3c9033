"""A finished run's journal as one compressed file, for the branch that is shared."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from flor.claim import is_dead
from flor.config import MiB, Settings
from flor.git import open_repository
from flor.model import Version

BLOCK_BYTES = 1024 * 1024


def payload(run_dir: Path, limit_bytes: int) -> bytes:
    """The run's journals one after the other, or their summary when that is over the limit.

    A `child` line begins a journal of its own, so the files need no frame around them.
    """
    files = journal_files(run_dir)
    whole = _compressed((chunk for path in files for chunk in _complete_lines(path)), limit_bytes)
    if whole is not None:
        return whole
    summary = _compressed((line for path in files for line in _summary(path)), None)
    assert summary is not None
    return summary


def _compressed(chunks: Iterator[bytes], limit_bytes: int | None) -> bytes | None:
    """gzip of the chunks, or None as soon as it is over the limit.

    The fastest level: the script that has just ended waits for it.
    """
    gzip = zlib.compressobj(1, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    parts, size = [], 0
    for chunk in chunks:
        parts.append(gzip.compress(chunk))
        size += len(parts[-1])
        if limit_bytes is not None and size > limit_bytes:
            return None
    return b"".join([*parts, gzip.flush()])


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


def publish(settings: Settings, run_dir: Path, how: str, seconds: float | None = None) -> str:
    """Add the run's journal to the branch; the commit. Raises GitError or OSError."""
    deadline = None if seconds is None else time.monotonic() + max(seconds, 0.1)

    def left() -> float | None:
        return None if deadline is None else max(deadline - time.monotonic(), 0.1)

    content = payload(run_dir, int(settings.journal_limit_mb * MiB))
    version, filename = _head_of(run_dir)
    repository = open_repository(settings.root, settings.flor_dir, settings.branch, seconds=left())
    commit = repository.attach_journal(
        *(version, run_dir.name, content, f"Run {run_dir.name}: {filename} {how}"), seconds=left()
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


def _complete_lines(path: Path) -> Iterator[bytes]:
    """The file in blocks; half a line at its end is left out."""
    rest = b""
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            lines, newline, rest_of_block = block.rpartition(b"\n")
            if newline:
                yield rest + lines + newline
                rest = rest_of_block
            else:
                rest += block


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
                if loop.strip() == b"0":
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
