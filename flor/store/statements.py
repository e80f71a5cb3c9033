"""What is written to the tables, as statements: columns in order, and rows that may exist."""

from __future__ import annotations

from collections.abc import Iterable

RUN_COLUMNS = (
    *("run_pk", "run_id", "projid", "tstamp", "filename", "status", "ended", "seconds"),
    *("prefix_seconds", "suffix_seconds", "exit_code", "error", "traceback", "version_id"),
    *("commit_id", "argv", "cwd", "host", "user_name", "pid", "python", "platform", "parent"),
    *("rank", "origin", "closed", "revision", "environment"),
)
RECORD_COLUMNS = (
    *("run_pk", "site_pk", "origin", "seq", "loop_pk", "iteration", "kind", "num", "txt"),
)
LOOP_COLUMNS = (
    *("loop_pk", "run_pk", "file_no", "loop", "name", "parent_pk", "parent_iteration"),
    *("length", "entries", "started", "seconds", "done"),
)


def _upsert(table: str, key: str, columns: Iterable[str], change: str | None = None) -> str:
    columns = tuple(columns)
    keys = [name.strip() for name in key.split(",")]
    change = change or ", ".join(
        f"{name} = excluded.{name}" for name in columns if name not in keys
    )
    return (
        f"insert into {table} ({', '.join(columns)}) "  # noqa: S608 - our names
        f"values ({', '.join('?' * len(columns))}) on conflict ({key}) do update set {change}"
    )


UPSERTS = {
    "runs": _upsert("runs", "run_pk", RUN_COLUMNS),
    "journals": _upsert(
        "journals",
        "run_pk, file_no",
        (
            *("run_pk", "file_no", "name", "size_bytes", "read_bytes", "records", "bad_lines"),
            *("sites", "loop_pk", "iteration"),
        ),
    ),
    "names": _upsert(
        "names",
        "projid, name, path",
        ("projid", "name", "path", "is_arg", "records"),
        "records = names.records + excluded.records, is_arg = names.is_arg or excluded.is_arg",
    ),
    "loop_values": _upsert("loop_values", "loop_pk, iteration", ("loop_pk", "iteration", "value")),
    "times": _upsert(
        "times",
        "loop_pk, first_iteration",
        ("loop_pk", "first_iteration", "iterations", "seconds", "each_seconds"),
    ),
    "scopes": _upsert(
        "scopes",
        "run_pk, file_no, scope",
        ("run_pk", "file_no", "scope", "names", "loop_pk", "iteration", "started", "ended"),
    ),
    "checkpoints": _upsert(
        "checkpoints",
        "run_pk, file_no, checkpoint",
        (
            *("run_pk", "file_no", "checkpoint", "scope", "loop_pk", "iteration", "boundary"),
            *("final", "manifest", "size_bytes", "new_bytes", "stall_seconds", "write_seconds"),
            *("at", "names"),
        ),
    ),
    "data_files": _upsert(
        "data_files",
        "run_pk, path",
        ("run_pk", "path", "size_bytes", "mtime_ns", "digest", "declared", "note"),
    ),
    "notes": _upsert("notes", "run_pk, file_no, note_no", ("run_pk", "file_no", "note_no", "text")),
}
