"""The lines of one run's journals → rows.

A line that makes no sense (a missing field, a wrong type, a number that nothing defined) is
counted and left out; it never raises.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, repeat
from typing import Any

from flor.model import Checkpoint, DataFile, Kind, LeftOut, Run, Status, Version
from flor.store import cells, fields
from flor.store.database import Database, Row
from flor.store.journals import Chunk
from flor.store.records import are_sound, by_site, sound
from flor.store.statements import LOOP_COLUMNS, RECORD_COLUMNS, RUN_COLUMNS, UPSERTS

FEW = 1000  # records; more are taken in bulk, site by site
MAX_LOOPS = 64  # around a record; deeper loops and what was logged in them are bad lines
FILE_STRIDE = 2**40  # seq = file_no * FILE_STRIDE + the record's number in its file

SITE_FIELDS = ("name", "file", "line", "func", "arg", "source")


@dataclass
class Known:
    """What runs share, remembered while many of them are read. Forget it after a rollback."""

    written: dict[tuple[Any, ...], int] = field(default_factory=dict)  # as journals have them
    sites: dict[tuple[Any, ...], int] = field(default_factory=dict)
    described: dict[int, tuple[str, bool]] = field(default_factory=dict)  # site_pk → name, is_arg
    versions: dict[str, int] = field(default_factory=dict)


@dataclass
class JournalFile:
    """How far one journal file was read, and what its numbers stand for."""

    file_no: int
    name: str
    size_bytes: int = 0
    read_bytes: int = 0
    records: int = 0
    bad_lines: int = 0
    sites: dict[int, int] = field(default_factory=dict)  # site → site_pk
    loop_pk: int = 0  # of loop 0
    iteration: int = 0  # of loop 0
    loops: dict[int, int] = field(default_factory=lambda: {0: 0})  # loop → loop_pk


@dataclass
class OpenLoop:
    """A loop whose end was not read yet. `row` is its row while that is not in the database."""

    entries: int
    started: float
    row: list[Any] | None = None


class RunRows:
    """Writes one run. Used inside one transaction: `add` chunks, then `close`."""

    def __init__(self, db: Database, known: Known, run_id: str, origin: str) -> None:
        self._db = db
        self._known = known
        self.files: dict[str, JournalFile] = {}
        self.last_at = 0.0
        self.records = 0
        self.bad_lines = 0
        self.changed = False
        self.end: dict[str, Any] | None = None
        self._open: dict[int, OpenLoop] = {}
        self._paths: dict[int, tuple[str, ...]] = {0: ()}
        self._counts: Counter[tuple[str, tuple[str, ...], bool]] = Counter()
        self._rows: dict[str, list[Row]] = {}
        self._loop_rows: list[list[Any]] = []
        self._next_loop = 0
        self._too_deep = 0  # values among those that were written last
        sql = f"select {', '.join(RUN_COLUMNS)} from runs where run_id = ?"  # noqa: S608 - our names
        found = db.execute(sql, (run_id,))
        self.is_new = not found
        if found:
            self.run = dict(zip(RUN_COLUMNS, found[0], strict=True))
            self._resume()
        else:
            self.run = _unknown_run(db.allocate("run"), run_id, origin)
        self.run_pk: int = self.run["run_pk"]

    # --- reading on -----------------------------------------------------------------------------

    def _resume(self) -> None:
        """Load what an earlier reading of the same journals left to go on from."""
        run_pk = self.run["run_pk"]
        for file_no, name, size, read, records, bad, sites, loop_pk, iteration in self._db.execute(
            "select file_no, name, size_bytes, read_bytes, records, bad_lines, sites, loop_pk, "
            "iteration from journals where run_pk = ? order by file_no",
            (run_pk,),
        ):
            file = JournalFile(file_no, name, size, read, records, bad)
            file.sites = {int(site): site_pk for site, site_pk in json.loads(sites).items()}
            file.loop_pk, file.iteration, file.loops = loop_pk, iteration, {0: loop_pk}
            self.files[name] = file
        by_number = {file.file_no: file for file in self.files.values()}
        for loop_pk, file_no, loop, name, parent, entries, started, done in self._db.execute(
            "select loop_pk, file_no, loop, name, parent_pk, entries, started, done "
            "from loop_instances where run_pk = ? order by loop_pk",
            (run_pk,),
        ):
            by_number[file_no].loops[loop] = loop_pk
            self._paths[loop_pk] = (*self._paths[parent], name)
            self.last_at = max(self.last_at, started)
            if done is None:
                self._open[loop_pk] = OpenLoop(entries, started)
        self._describe_sites()

    def file(self, name: str) -> JournalFile:
        """The state of a journal file; a new name gets the next number."""
        if name not in self.files:
            self.files[name] = JournalFile(len(self.files), name)
        return self.files[name]

    @property
    def total_records(self) -> int:
        """Of all readings of this run."""
        return sum(file.records for file in self.files.values())

    # --- lines ----------------------------------------------------------------------------------

    def add(self, file: JournalFile, chunk: Chunk) -> None:
        """Write the rows of one chunk of `file`."""
        self.changed = True
        bad_lines = chunk.bad_lines
        loops = sum(item.get("t") == "loop" for item in chunk.objects)
        self._next_loop = self._db.allocate("loop", loops) if loops else 0
        for item in chunk.objects:
            try:
                handler = HANDLERS.get(item["t"])
                if handler is not None:  # a newer flor may know more lines
                    handler(self, file, item)
            except fields.NONSENSE:
                bad_lines += 1
        bad_lines += self._add_records(file, chunk.records)
        file.bad_lines += bad_lines
        self.bad_lines += bad_lines
        file.read_bytes = chunk.end
        self._flush()

    def _run(self, file: JournalFile, item: dict[str, Any]) -> None:
        run = Run.from_json({**item, "run_id": self.run["run_id"]})
        tstamp = fields.utc_from_iso(run.tstamp)
        self.run |= {
            "projid": fields.text(run.projid),
            "tstamp": tstamp,
            "filename": fields.text(run.filename),
            "argv": cells.to_json([fields.text(item) for item in run.argv]),
            "cwd": fields.text(run.cwd),
            "host": fields.text(run.host),
            "user_name": fields.text(run.user),
            "pid": fields.integer(run.pid),
            "python": fields.text(run.python),
            "platform": fields.text(run.platform),
            "parent": fields.maybe(fields.text, run.parent),
            "rank": fields.maybe(fields.integer, run.rank),
        }

    def _child(self, file: JournalFile, item: dict[str, Any]) -> None:
        main = next(iter(self.files.values()))
        file.loop_pk = file.loops[0] = main.loops[fields.integer(item["loop"])]
        file.iteration = fields.iteration(item["iteration"])

    def _site(self, file: JournalFile, item: dict[str, Any]) -> None:
        written = tuple(map(item.get, SITE_FIELDS))
        site_pk = self._known.written.get(written)
        if site_pk is None:
            name, filename, line, func, arg, source = written
            key = (
                *(fields.text(name), fields.text(filename), fields.integer(line)),
                *(fields.text(func or ""), bool(arg), fields.text(source or "")),
            )
            site_pk = self._known.written[written] = self._site_pk(key)
        file.sites[fields.integer(item["id"])] = site_pk

    def _site_pk(self, key: tuple[Any, ...]) -> int:
        site_pk = self._known.sites.get(key)
        if site_pk is None:
            found = self._db.execute(
                "select site_pk from sites where name = ? and filename = ? and line = ? "
                "and func = ? and is_arg = ? and source = ?",
                key,
            )
            site_pk = found[0][0] if found else self._db.allocate("site")
            if not found:
                self._db.execute(
                    "insert into sites (site_pk, name, filename, line, func, is_arg, source) "
                    "values (?, ?, ?, ?, ?, ?, ?)",
                    (site_pk, *key),
                )
            self._known.sites[key] = site_pk
            self._known.described[site_pk] = (key[0], key[4])
        return site_pk

    def _loop(self, file: JournalFile, item: dict[str, Any]) -> None:
        loop, parent = fields.integer(item["id"]), fields.integer(item["parent"])
        if loop in file.loops:
            raise ValueError(f"loop {loop} begins twice")
        parent_pk = file.loops[parent]
        if len(self._paths[parent_pk]) >= MAX_LOOPS:
            raise ValueError(f"more than {MAX_LOOPS} loops inside each other")
        iteration = fields.iteration(item["iteration"]) if parent else file.iteration
        name, started = fields.text(item["name"]), self._at(item)
        length = fields.maybe(fields.integer, item.get("len"))
        loop_pk, self._next_loop = self._next_loop, self._next_loop + 1
        row = [loop_pk, self.run_pk, file.file_no, loop, name, parent_pk, iteration, length]
        row += [0, started, None, None]
        file.loops[loop] = loop_pk
        self._paths[loop_pk] = (*self._paths[parent_pk], name)
        self._loop_rows.append(row)
        self._open[loop_pk] = OpenLoop(0, started, row)
        self._reached(parent_pk, iteration)

    def _loop_end(self, file: JournalFile, item: dict[str, Any]) -> None:
        loop_pk = file.loops[fields.integer(item["id"])]
        entries, at, done = fields.iteration(item["n"]), self._at(item), bool(item["done"])
        loop = self._open.pop(loop_pk)
        seconds = max(0.0, at - loop.started)
        if loop.row is not None:
            loop.row[-4:] = [entries, loop.started, seconds, done]
        else:
            self._db.execute(
                "update loop_instances set entries = ?, seconds = ?, done = ? where loop_pk = ?",
                (entries, seconds, done, loop_pk),
            )

    def _value(self, file: JournalFile, item: dict[str, Any]) -> None:
        label = item["value"]
        if isinstance(label, (list, dict)):
            raise ValueError("a loop value is a scalar")
        loop_pk, iteration = (
            file.loops[fields.integer(item["loop"])],
            fields.iteration(item["iteration"]),
        )
        # The same iteration is labelled again when another thread logs in it.
        self._put("loop_values", (loop_pk, iteration, cells.to_json(label)))
        self._reached(loop_pk, iteration)

    def _times(self, file: JournalFile, item: dict[str, Any]) -> None:
        loop_pk, first = file.loops[fields.integer(item["loop"])], fields.iteration(item["first"])
        count, seconds = fields.iteration(item["n"]), fields.real(item["sum"])
        self._put(
            "times", (loop_pk, first, count, seconds, fields.maybe(fields.text, item.get("each")))
        )
        self._reached(loop_pk, first + count - 1)

    def _version(self, file: JournalFile, item: dict[str, Any]) -> None:
        version = Version.from_json({k: v for k, v in item.items() if k != "t"})
        commit = fields.text(version.commit)
        row = (
            commit,
            fields.text(version.tree),
            fields.maybe(fields.text, version.user_branch),
            fields.maybe(fields.text, version.user_commit),
            bool(version.user_dirty),
            bool(version.partial),
            cells.to_json([_left_out(item) for item in version.left_out]),
        )
        self.run |= {"commit_id": commit, "version_id": self._version_id(row)}

    def _version_id(self, row: Row) -> int:
        commit = row[0]
        if commit not in self._known.versions:
            found = self._db.execute(
                "select version_id from versions where commit_id = ?", (commit,)
            )
            version_id = found[0][0] if found else self._db.allocate("version")
            if not found:
                self._db.execute(
                    "insert into versions (version_id, commit_id, tree_id, user_branch, "
                    "user_commit, user_dirty, partial, left_out) values (?, ?, ?, ?, ?, ?, ?, ?)",
                    (version_id, *row),
                )
            self._known.versions[commit] = version_id
        return self._known.versions[commit]

    def _environment(self, file: JournalFile, item: dict[str, Any]) -> None:
        environment = json.loads(self.run["environment"])
        found = {k: v for k, v in item.items() if k != "t"}
        if item["t"] == "seeds":
            found = {"seeds": found}
        self.run["environment"] = fields.json_text(environment | found)

    def _data(self, file: JournalFile, item: dict[str, Any]) -> None:
        data = DataFile.from_json({k: v for k, v in item.items() if k != "t"})
        row = (
            self.run_pk,
            fields.text(data.path),
            fields.maybe(fields.integer, data.size_bytes),
            fields.maybe(fields.integer, data.mtime_ns),
            fields.maybe(fields.text, data.digest),
            bool(data.declared),
            fields.maybe(fields.text, data.note),
        )
        self._put("data_files", row)

    def _scope(self, file: JournalFile, item: dict[str, Any]) -> None:
        loop, names = fields.integer(item["loop"]), [fields.text(name) for name in item["names"]]
        iteration = fields.iteration(item["iteration"]) if loop else file.iteration
        row = (self.run_pk, file.file_no, fields.integer(item["id"]), cells.to_json(names))
        self._put("scopes", (*row, file.loops[loop], iteration, self._at(item), None))

    def _scope_end(self, file: JournalFile, item: dict[str, Any]) -> None:
        key = (self._at(item), self.run_pk, file.file_no, fields.integer(item["id"]))
        self._flush_others()
        self._db.execute(
            "update scopes set ended = ? where run_pk = ? and file_no = ? and scope = ?", key
        )

    def _checkpoint(self, file: JournalFile, item: dict[str, Any]) -> None:
        found = Checkpoint.from_json({k: v for k, v in item.items() if k != "t"})
        loop = fields.integer(found.loop)
        row = (
            *(self.run_pk, file.file_no, fields.integer(found.number)),
            *(fields.integer(found.scope), file.loops[loop]),
            fields.iteration(found.iteration) if loop else file.iteration,
            fields.maybe(fields.text, found.boundary),
            bool(found.final),
            fields.digest(found.manifest),
            *(fields.integer(found.size_bytes), fields.integer(found.new_bytes)),
            *(fields.real(found.stall_seconds), fields.real(found.write_seconds), self._at(item)),
            cells.to_json([fields.text(name) for name in found.names]),
        )
        self._put("checkpoints", row)

    def _note(self, file: JournalFile, item: dict[str, Any]) -> None:
        # Notes are few, and the end of the journal read so far numbers them well enough.
        waiting = len(self._rows.get("notes", ()))
        number = min(file.read_bytes, fields.MAX_INT // 2**20) * 2**20 + waiting
        self._put("notes", (self.run_pk, file.file_no, number, fields.text(item["text"])))

    def _end(self, file: JournalFile, item: dict[str, Any]) -> None:
        if file.file_no:
            return  # a child's end is not the run's
        self.end = {
            "status": Status(item["status"]).value,
            "seconds": self._at(item),
            "exit_code": fields.maybe(fields.integer, item.get("exit_code")),
            "error": fields.maybe(fields.text, item.get("error")),
            "traceback": fields.maybe(fields.text, item.get("traceback")),
        }

    def _at(self, item: dict[str, Any]) -> float:
        at = fields.real(item["at"])
        self.last_at = max(self.last_at, at)
        return at

    def _reached(self, loop_pk: int, iteration: int) -> None:
        """An iteration began in a loop, of which the end is not known yet."""
        loop = self._open.get(loop_pk)
        if loop is not None and iteration >= loop.entries:
            loop.entries = iteration + 1
            if loop.row is not None:
                loop.row[-4] = loop.entries

    # --- records --------------------------------------------------------------------------------

    def _add_records(self, file: JournalFile, records: list[list[Any]]) -> int:
        """Insert records; how many of them made no sense."""
        if not records:
            return 0
        first = file.file_no * FILE_STRIDE + file.records
        file.records += len(records)
        seqs: Sequence[int] = range(first, first + len(records))
        if are_sound(records, file):
            sites, loops, iterations, values = zip(*records, strict=True)
        else:
            kept = list(sound(zip(seqs, records, strict=True), file))
            if not kept:
                return len(records)
            seqs, sites, loops, iterations, values = zip(*kept, strict=True)
        if file.loop_pk and 0 in loops:
            pairs = zip(loops, iterations, strict=True)
            iterations = tuple(item if loop else file.iteration for loop, item in pairs)
        for loop, iteration in dict(zip(loops, iterations, strict=True)).items():
            self._reached(file.loops[loop], iteration)
        columns = (seqs, loops, iterations, values)
        if len(values) < FEW:
            rows: Iterable[Row] = self._few(file, sites, columns)
        else:
            groups = (self._group(file, *group) for group in by_site(sites, columns))
            rows = chain.from_iterable(groups)
        self._db.insert("records", RECORD_COLUMNS, rows)
        self.records += len(values)
        return len(records) - len(values) + self._take_too_deep()

    def _take_too_deep(self) -> int:
        count, self._too_deep = self._too_deep, 0
        return count

    def _few(
        self, file: JournalFile, sites: Sequence[int], columns: tuple[Sequence[Any], ...]
    ) -> Iterator[Row]:
        """The rows of few records, of which many sites may have one each."""
        run_pk, described = self.run_pk, self._known.described
        paths, counts = self._paths, self._counts
        for site, seq, loop, iteration, value in zip(sites, *columns, strict=True):
            site_pk, loop_pk = file.sites[site], file.loops[loop]
            name, is_arg = described[site_pk]
            counts[name, paths[loop_pk], is_arg] += 1
            kind, num, txt = cells.cell(value)
            if kind == Kind.TEXT and not cells.is_text(value):
                self._too_deep += 1
            yield run_pk, site_pk, 0, seq, loop_pk, iteration, kind, num, txt

    def _group(
        self,
        file: JournalFile,
        site: int,
        columns: tuple[Sequence[Any], ...],
    ) -> Iterator[Row]:
        """The rows of the records of one site."""
        seqs, loops, iterations, values = columns
        site_pk = file.sites[site]
        name, is_arg = self._known.described[site_pk]
        for loop, count in Counter(loops).items():
            self._counts[name, self._paths[file.loops[loop]], is_arg] += count
        kinds, nums, texts = cells.columns(values)
        self._too_deep += cells.too_deep(values, kinds)
        return zip(  # as long as seqs; some of the others repeat for ever
            repeat(self.run_pk),
            repeat(site_pk),
            repeat(0),
            seqs,
            map(file.loops.__getitem__, loops),
            iterations,
            kinds,
            nums,
            texts,
            strict=False,
        )

    # --- writing --------------------------------------------------------------------------------

    def _put(self, table: str, row: Row) -> None:
        self._rows.setdefault(table, []).append(row)

    def _flush(self) -> None:
        if self._loop_rows:
            self._db.insert("loop_instances", LOOP_COLUMNS, self._loop_rows)
            self._loop_rows = []
        self._flush_others()
        later = []
        for loop_pk, loop in self._open.items():
            if loop.row is None:
                later.append((loop.entries, loop_pk))
            loop.row = None
        if later:
            self._db.executemany("update loop_instances set entries = ? where loop_pk = ?", later)

    def _flush_others(self) -> None:
        for table, rows in self._rows.items():
            self._db.executemany(UPSERTS[table], rows)
        self._rows = {}

    def _describe_sites(self) -> None:
        """Look up what the sites of earlier readings are called."""
        wanted = {site_pk for file in self.files.values() for site_pk in file.sites.values()}
        missing = sorted(wanted - self._known.described.keys())
        if missing:
            for site_pk, name, is_arg in self._db.execute(
                "select site_pk, name, is_arg from sites where site_pk in_list(?)", (missing,)
            ):
                self._known.described[site_pk] = (name, bool(is_arg))

    def close(self, changes: dict[str, Any]) -> None:
        """Write the run's own row, with `changes`, and how far its journals were read."""
        self.run |= changes
        self.run["revision"] += self.changed
        if self.run["closed"]:
            self.run |= self._prefix_and_suffix()
        self._db.executemany(UPSERTS["runs"], [tuple(self.run[name] for name in RUN_COLUMNS)])
        self._db.executemany(
            UPSERTS["journals"],
            [
                (
                    *(self.run_pk, file.file_no, file.name, file.size_bytes, file.read_bytes),
                    *(file.records, file.bad_lines, json.dumps(file.sites)),
                    *(file.loop_pk, file.iteration),
                )
                for file in self.files.values()
            ],
        )
        self._db.executemany(
            UPSERTS["names"],
            [
                (self.run["projid"], name, path_text(path), is_arg, count)
                for (name, path, is_arg), count in self._counts.items()
            ],
        )

    def _prefix_and_suffix(self) -> dict[str, Any]:
        first, last, unended = self._db.execute(
            "select min(started), max(started + seconds), sum(case when seconds is null then 1 "
            "else 0 end) from loop_instances where run_pk = ? and file_no = 0 and parent_pk = 0",
            (self.run_pk,),
        )[0]
        ended = first is not None and not unended and self.run["seconds"] is not None
        suffix = max(0.0, self.run["seconds"] - last) if ended else None
        return {"prefix_seconds": first, "suffix_seconds": suffix}


HANDLERS: dict[str, Callable[[RunRows, JournalFile, dict[str, Any]], None]] = {
    "run": RunRows._run,
    "child": RunRows._child,
    "site": RunRows._site,
    "loop": RunRows._loop,
    "loop_end": RunRows._loop_end,
    "value": RunRows._value,
    "times": RunRows._times,
    "version": RunRows._version,
    "env": RunRows._environment,
    "seeds": RunRows._environment,
    "data": RunRows._data,
    "scope": RunRows._scope,
    "scope_end": RunRows._scope_end,
    "checkpoint": RunRows._checkpoint,
    "note": RunRows._note,
    "end": RunRows._end,
}


@lru_cache(maxsize=1024)
def path_text(path: tuple[str, ...]) -> str:
    """A path as the `names` table has it."""
    return cells.to_json(path)


def _left_out(item: LeftOut) -> dict[str, Any]:
    return {
        "path": fields.text(item.path),
        "size_bytes": fields.integer(item.size_bytes),
        "reason": fields.text(item.reason),
    }


def _unknown_run(run_pk: int, run_id: str, origin: str) -> dict[str, Any]:
    """A run of which nothing was read yet."""
    texts = dict.fromkeys(("projid", "filename", "cwd", "host", "user_name", "python"), "")
    return (
        dict.fromkeys(RUN_COLUMNS)
        | texts
        | {
            "run_pk": run_pk,
            "run_id": run_id,
            "tstamp": None,
            "status": Status.RUNNING.value,
            "argv": "[]",
            "pid": 0,
            "platform": "",
            "origin": origin,
            "closed": False,
            "revision": 0,
            "environment": "{}",
        }
    )
