"""The tables, once for both databases.

Version history
  1  first
  2  an index of runs by status
  3  checkpoints

The database is a cache of the journals. An older SQLite file is therefore emptied and filled
again when no migration leads from it; an older PostgreSQL database, which others share, is only
ever migrated.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Protocol

from flor.errors import SchemaTooNew, StoreError

SCHEMA_VERSION = 3

CHECKPOINTS = """
-- States of the objects of a flor.checkpointing block. Whether the manifest's object is still there
-- tells whether the checkpoint is.
create table checkpoints (
  run_pk {int} not null,
  file_no {int} not null,
  checkpoint {int} not null,
  scope {int} not null,
  loop_pk {int} not null,
  iteration {int} not null,
  boundary text,                       -- the nested loop at whose end the state was taken
  final {flag} not null,
  manifest text not null,              -- digest of the object that describes it
  size_bytes {int} not null,
  new_bytes {int} not null,
  stall_seconds {real} not null,
  write_seconds {real} not null,
  at {real} not null,                  -- seconds since the run began
  names text not null,                 -- JSON: the declared objects
  primary key (run_pk, file_no, checkpoint)
);
"""

MIGRATIONS: dict[int, str] = {
    2: "create index runs_status on runs (status, ended);\n",
    3: CHECKPOINTS,
}
"""Version → the statements that lead to it from the version before. Same marks as in DDL."""

COUNTERS = ("run", "site", "loop", "version")

CTX_STRIDE = 2147483648
"""A ctx_id is `loop_pk * CTX_STRIDE + iteration`."""

# {key} {int} {real} {flag} {time} {blob} {clustered} and the marks of the views are filled in for
# each dialect by `statements`.
DDL = """
-- What this database is: the version of the schema.
create table meta (
  key text primary key,
  value text not null
);

-- The next number of each kind of key. Numbers are never used again.
create table counters (
  name text primary key,
  next {int} not null
);

-- The code that ran: a commit on the flor branch.
create table versions (
  version_id {key},
  commit_id text not null unique,
  tree_id text not null,
  user_branch text,
  user_commit text,
  user_dirty {flag} not null,
  partial {flag} not null,
  left_out text not null               -- JSON: the files that are not in it, and why
);

-- One execution of one script. Times are UTC.
create table runs (
  run_pk {key},
  run_id text not null unique,
  projid text not null,
  tstamp {time} not null,
  filename text not null,
  status text not null,                -- running, finished, failed, killed
  ended {time},
  seconds {real},                      -- so far, while it is running
  prefix_seconds {real},               -- from the start to the first top-level loop
  suffix_seconds {real},               -- from the end of the last top-level loop to the end
  exit_code {int},
  error text,
  traceback text,
  version_id {int},
  commit_id text,
  argv text not null,                  -- JSON
  cwd text not null,
  host text not null,
  user_name text not null,
  pid {int} not null,
  python text not null,
  platform text not null,
  parent text,
  rank {int},
  origin text not null,                -- local: from .flor/runs; branch: from the flor branch
  closed {flag} not null,              -- ended, and every line was read
  revision {int} not null,             -- grows whenever rows of the run change
  environment text not null            -- JSON: packages, devices, seeds
);
create index runs_closed on runs (closed, run_id);
create index runs_project on runs (projid, tstamp);
create index runs_status on runs (status, ended);

-- How far each journal file of a run was read. File 0 is the main process.
create table journals (
  run_pk {int} not null,
  file_no {int} not null,
  name text not null,
  size_bytes {int} not null,           -- when it was read last
  read_bytes {int} not null,
  records {int} not null,
  bad_lines {int} not null,            -- lines that did not parse or made no sense
  sites text not null,                 -- JSON: the journal's site id -> site_pk
  loop_pk {int} not null,              -- the context that the process inherited
  iteration {int} not null,
  primary key (run_pk, file_no)
);

-- Statements that log. Runs share them: the same statement is one row.
create table sites (
  site_pk {key},
  name text not null,
  filename text not null,
  line {int} not null,
  func text not null,
  is_arg {flag} not null,
  source text not null,                -- of an argument: default, kwargs or environment; else ''
  unique (name, filename, line, func, is_arg, source)
);

-- One execution of one flor.loop. Loop 0 is the top level of the script and has no row.
create table loop_instances (
  loop_pk {key},
  run_pk {int} not null,
  file_no {int} not null,
  loop {int} not null,                 -- its number in the journal file
  name text not null,
  parent_pk {int} not null,
  parent_iteration {int} not null,
  length {int},                        -- what len() said
  entries {int} not null,              -- iterations that began
  started {real} not null,             -- seconds since the run began
  seconds {real},                      -- null while it is running, or if it never ended
  done {flag}                          -- false after break or an exception; null: never ended
);
create index loop_instances_run on loop_instances (run_pk, file_no, loop);

-- What a loop yielded, where that is a scalar and not the iteration's own number. JSON.
create table loop_values (
  loop_pk {int} not null,
  iteration {int} not null,
  value text not null,
  primary key (loop_pk, iteration)
){clustered};

-- Seconds of iterations, in chunks; each_seconds is base64 of little-endian float32, or null.
create table times (
  loop_pk {int} not null,
  first_iteration {int} not null,
  iterations {int} not null,
  seconds {real} not null,
  each_seconds text,
  primary key (loop_pk, first_iteration)
){clustered};

-- flor.checkpointing blocks.
create table scopes (
  run_pk {int} not null,
  file_no {int} not null,
  scope {int} not null,
  names text not null,                 -- JSON
  loop_pk {int} not null,
  iteration {int} not null,
  started {real},
  ended {real},
  primary key (run_pk, file_no, scope)
);

-- Files that a run read.
create table data_files (
  run_pk {int} not null,
  path text not null,
  size_bytes {int},
  mtime_ns {int},
  digest text,
  declared {flag} not null,            -- by flor.data, not only seen being opened
  note text,
  primary key (run_pk, path)
);

-- Warnings that a run gave.
create table notes (
  run_pk {int} not null,
  file_no {int} not null,
  note_no {int} not null,
  text text not null,
  primary key (run_pk, file_no, note_no)
);

-- Logged values. flor/store/cells.py says how kind, num and txt hold one. seq orders the records
-- of a run; those of child processes come after those of the main one. origin 0 is what the run
-- itself recorded; a number above is the replay that added it, and undoing that deletes by it.
create table records (
  run_pk {int} not null,
  site_pk {int} not null,
  origin {int} not null,
  seq {int} not null,
  loop_pk {int} not null,
  iteration {int} not null,
  kind {int} not null,
  num {number},
  txt text,
  primary key (run_pk, site_pk, origin, seq)
){clustered};

-- The names that were logged, for suggestions. path is JSON: the loops around, outermost first.
create table names (
  projid text not null,
  name text not null,
  path text not null,
  is_arg {flag} not null,
  records {int} not null,
  primary key (projid, name, path)
);

-- Columns of closed runs, ready to read (flor/store/packs.py). Valid for one revision of the run.
create table packs (
  run_pk {int} not null,
  part text not null,
  revision {int} not null,
  format {int} not null,
  content {blob} not null,
  primary key (run_pk, part)
);

-- FlorDB's relation of logged values. value_type: 0 null, 1 bool, 2 int, 3 float, 4 str,
-- 5 list or dict, 6 object, 7 text (repr), 8 datetime. ctx_id is null at the top level.
create view logs as
select
  r.projid, r.tstamp, s.filename,
  case when c.loop_pk = 0 then null else c.loop_pk * 2147483648 + c.iteration end as ctx_id,
  s.name as value_name,
  case c.kind
    when 0 then null
    when 1 then case when c.num = 0 then 'false' else 'true' end
    when 2 then coalesce(c.txt, {int_text})
    when 3 then {float_text}
    else c.txt
  end as value,
  c.kind as value_type,
  r.run_id
from runs r
join records c on c.run_pk = r.run_pk
join sites s on s.site_pk = c.site_pk;

-- FlorDB's relation of loop iterations, one row each.
create view loops as
{series}
select
  i.loop_pk * 2147483648 + n.iteration as ctx_id,
  case when i.parent_pk = 0 then null else i.parent_pk * 2147483648 + i.parent_iteration end
    as parent_ctx_id,
  i.name as loop_name,
  i.entries as loop_entries,
  n.iteration as loop_iteration,
  v.value as loop_value,
  r.projid,
  r.run_id
from loop_instances i
join runs r on r.run_pk = i.run_pk
{iterations}
left join loop_values v on v.loop_pk = i.loop_pk and v.iteration = n.iteration;

-- The arguments of each run.
create view args as
select l.run_id, l.value_name as name, l.value, l.source, l.projid
from (
  select
    r.run_id, r.projid, s.name as value_name, s.source,
    case c.kind
      when 0 then null
      when 1 then case when c.num = 0 then 'false' else 'true' end
      when 2 then coalesce(c.txt, {int_text})
      when 3 then {float_text}
      else c.txt
    end as value
  from runs r
  join records c on c.run_pk = r.run_pk
  join sites s on s.site_pk = c.site_pk
  where s.is_arg
) l;
"""

DDL += CHECKPOINTS

DIALECTS = {
    "sqlite": {
        "key": "integer primary key",
        "int": "integer",
        "real": "real",
        "number": "",  # with an affinity, SQLite would turn -0.0 or 1.0 into an integer
        "flag": "integer",
        "time": "text",
        "blob": "blob",
        "clustered": " without rowid",
        "int_text": "cast(cast(c.num as integer) as text)",
        # NaN is stored as NULL. As many digits as the number needs, 15 to 17.
        "float_text": """case
      when c.num is null then 'nan'
      when c.num = 9e999 then 'inf'
      when c.num = -9e999 then '-inf'
      when cast(cast(c.num as text) as real) = c.num then cast(c.num as text)
      when cast(printf('%!.16g', c.num) as real) = c.num then printf('%!.16g', c.num)
      else printf('%!.17g', c.num) end""",
        "series": """with recursive n (loop_pk, iteration, entries) as (
  select loop_pk, 0, entries from loop_instances where entries > 0
  union all
  select loop_pk, iteration + 1, entries from n where iteration + 1 < entries
)""",
        "iterations": "join n on n.loop_pk = i.loop_pk",
    },
    "postgres": {
        "key": "bigint primary key",
        "int": "bigint",
        "real": "double precision",
        "number": "double precision",
        "flag": "boolean",
        "time": "timestamp",
        "blob": "bytea",
        "clustered": "",
        "int_text": "cast(cast(c.num as bigint) as text)",
        "float_text": """case
      when c.num is null or c.num = 'NaN' then 'nan'
      when c.num = 'Infinity' then 'inf'
      when c.num = '-Infinity' then '-inf'
      when c.num = trunc(c.num) and abs(c.num) < 1e15 then cast(c.num as text) || '.0'
      else cast(c.num as text) end""",
        "series": "",
        "iterations": "cross join lateral generate_series(0, i.entries - 1) as n (iteration)",
    },
}


class Executes(Protocol):
    """As much of a database as its schema needs."""

    dialect: ClassVar[str]
    place: str

    def execute(self, sql: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]: ...
    def transaction(self) -> AbstractContextManager[None]: ...
    def relations(self) -> list[tuple[str, str]]: ...


def statements(dialect: str, script: str = DDL) -> list[str]:
    """The statements of a script, in one dialect."""
    marks = DIALECTS[dialect]
    filled = re.sub(r"\{(\w+)\}", lambda match: marks[match[1]], script)
    return [part.strip() for part in filled.split(";\n") if part.strip()]


def prepare(
    db: Executes,
    version: int = SCHEMA_VERSION,
    migrations: Mapping[int, str] = MIGRATIONS,
) -> None:
    """Bring the database to `version`: create, migrate or, for SQLite, fill anew.

    Raises SchemaTooNew for a database that a newer flor wrote.
    """
    found = _version(db)
    if found == version:
        return
    if found is not None and found > version:
        raise SchemaTooNew(
            f"{db.place} has schema version {found}, this flor knows up to {version}; "
            "upgrade flor (pip install -U flor-hindsight)"
        )
    with db.transaction():
        found = _version(db)  # another process may have been faster
        if found is None:
            _create(db, version)
        elif found < version:
            _upgrade(db, found, version, migrations)


def _version(db: Executes) -> int | None:
    if "meta" not in dict(db.relations()):
        return None
    rows = db.execute("select value from meta where key = 'schema'")
    return int(rows[0][0]) if rows else None


def _create(db: Executes, version: int) -> None:
    for statement in statements(db.dialect):
        db.execute(statement)
    for name in COUNTERS:
        db.execute("insert into counters (name, next) values (?, 1)", (name,))
    db.execute("insert into meta (key, value) values ('schema', ?)", (str(version),))


def _upgrade(db: Executes, found: int, version: int, migrations: Mapping[int, str]) -> None:
    steps = range(found + 1, version + 1)
    if all(step in migrations for step in steps):
        for step in steps:
            for statement in statements(db.dialect, migrations[step]):
                db.execute(statement)
        db.execute("update meta set value = ? where key = 'schema'", (str(version),))
    elif db.dialect == "sqlite":
        for name, kind in sorted(db.relations(), key=lambda item: item[1] != "view"):
            db.execute(f'drop {kind} "{name}"')
        _create(db, version)
    else:
        raise StoreError(
            f"{db.place} has schema version {found} and no migration leads to {version}; "
            "empty that database and run `flor sync` in each clone"
        )
