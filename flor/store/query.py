"""Questions to the project: `dataframe` for one table of named values, `sql` for anything else.

Both run on DuckDB in memory, on copies: whatever a query says, it reads nothing but the project's
relations and changes nothing. There are no files, no network, no settings and no Python variables
in its reach.

In SQL, `NaN` counts as null, lists, dicts and mixtures are JSON or plain text, and a stored object
is its short description. What `dataframe` returns are the values themselves.
"""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import numpy as np
import pandas as pd

from flor.config import Settings
from flor.errors import QueryError
from flor.store import cells, packs, relations
from flor.store.arrays import Ints
from flor.store.contexts import NTH, RUN_DIMENSIONS
from flor.store.database import Database
from flor.store.frames import RunRow, in_order, last_values, pivot, summary
from flor.store.iterations import loop_names, read_iterations
from flor.store.packs import Column, NameInfo
from flor.store.sandbox import answer, check_statement, for_sql, lock, sandbox, shortened
from flor.store.tokens import (
    RESERVED,
    Token,
    Unclosed,
    is_balanced,
    mentions,
    tokens,
    wants_all_columns,
    words,
)

Names = Mapping[str, NameInfo]

RELATIONS = frozenset({"runs", "versions", "args", "logs", "loops", "data"})
FRAME = "frame"
ROW = "__row__"
BATCH_RUNS = 1000
CALLER = 4  # frames from a warning here to the user's call of flor.dataframe


class FlorWarning(UserWarning):
    """Something in a question that is probably a mistake."""


@dataclass(frozen=True)
class Clause:
    """A `where` condition: one expression, and the names that it mentions."""

    text: str
    tokens: tuple[Token, ...]
    names: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Clause:
        """Raises QueryError for what is not one expression."""
        text = cells.clean(text)
        try:
            found = tokens(text)
        except Unclosed as error:
            raise QueryError(f"where = {text!r}: {error}; give one SQL condition") from None
        if not is_balanced(found) or Token("symbol", ";") in found:
            raise QueryError(
                f'where = {text!r} is not one SQL condition; write it like "acc > 0.9 and lr < 1"'
            )
        return cls(text, tuple(found), tuple(mentions(found)))

    def is_about_runs(self, names: Collection[str], known: Names) -> bool:
        """Whether it is true or false for a run as a whole, whatever is asked for."""
        mentioned = set(_folded(self.names))
        inner = _loops_of(known.values())
        of_rows = {*_folded(names), *_folded(inner), NTH, FRAME}
        suffixed = any(name.endswith(("_value", "_logged")) for name in mentioned)
        volatile = not words(self.tokens).isdisjoint({"select", "random", "uuid", "columns"})
        some = not mentioned.isdisjoint({*RUN_DIMENSIONS, *relations.RUNS, *_folded(known)})
        return some and not suffixed and not volatile and mentioned.isdisjoint(of_rows)


def dataframe(
    settings: Settings, db: Database, names: Sequence[str] = (), where: str | None = None
) -> pd.DataFrame:
    """The table of these names (`flor.store.frames.pivot`); without names, one row per run.

    `where` is a SQL condition over the table. It may also use what is known of a run (`status`,
    `seconds`, `host`, `user_name`, `branch`, `commit_id`…), its arguments and its run-level values,
    which are not returned unless they are asked for. Rows keep their types. Names are matched
    exactly; in `where`, as always in SQL, without regard to case, unless that leaves open which of
    two columns is meant.

    A loop's name gives a row for each of its iterations. A name that nobody logged is a column of
    nulls (`float64`), with a FlorWarning. Raises QueryError for a condition that cannot run.
    """
    asked = {cells.clean(name): name for name in reversed(names)}
    names = list(reversed(asked))
    known = packs.names(db)
    runs = in_order(relations.run_rows(db))
    clause = Clause.parse(where) if where is not None and where.strip() else None
    if clause is not None and names and clause.is_about_runs(names, known):
        dims = pivot(runs, {}, [])
        matching = _matching(dims, runs, clause, db, known)
        runs, clause = [runs[row] for row in matching.tolist()], None
    loops = _loops_alone(db, names, known)
    frame = _frame(db, runs, names, known, loops)
    _warn_unknown([name for name in names if name not in loops], known, frame)
    if clause is not None:
        matching = _matching(frame, runs, clause, db, known)
        frame = frame.iloc[matching].reset_index(drop=True)
    changed = {stored: name for stored, name in asked.items() if stored != name}
    return frame.rename(columns=changed) if changed else frame


def sql(settings: Settings, db: Database, query: str, *, loops: bool = False) -> pd.DataFrame:
    """The answer to one SELECT (or EXPLAIN), in DuckDB's SQL.

    The relations are `runs`, `versions`, `args`, `logs`, `loops`, `data` (files that runs read) and
    `frame`: the table of exactly those logged names that the query mentions, or one row per run if
    it mentions none. `frame` also has what is known of a run, where the query mentions that, and,
    if wanted, the iterations of `loops` that it mentions and in which none of the names was logged.

    Raises QueryError for anything else, and for what DuckDB refuses. Ctrl-C stops a query.
    """
    query = cells.clean(query)
    try:
        found = tokens(query)
    except Unclosed as error:
        raise QueryError(f"{error}: {query!r}") from None
    check_statement(query)
    known = packs.names(db)
    columns = _known_names(_columns_in(found), known)
    with sandbox() as connection:
        _create_relations(connection, db, found)
        if FRAME in words(found) or Token("quoted", FRAME) in found:
            frame = _sql_frame(db, columns, found, known, loops=loops)
            connection.register(FRAME, for_sql(frame, ()))
        lock(connection)
        try:
            return answer(connection, query)
        except duckdb.Error as error:
            available = [*columns, *relations.RUNS, *relations.LOGS, *known]
            raise QueryError(_explain(error, available, known, "")) from None


class Batches(Mapping[int, dict[str, list[Column]]]):
    """The columns of many runs, read and let go a thousand runs at a time, in their order.

    Holding millions of columns at once would cost more than reading them.
    """

    def __init__(
        self,
        db: Database,
        run_pks: Sequence[int],
        names: Sequence[str],
        loops: Sequence[str] = (),
    ) -> None:
        self._db, self._run_pks, self._names, self._loops = db, run_pks, names, loops
        self._place = {run_pk: place for place, run_pk in enumerate(run_pks)}
        self._batch: packs.Columns = {}

    def __getitem__(self, run_pk: int) -> dict[str, list[Column]]:
        if run_pk not in self._batch:
            first = self._place[run_pk] // BATCH_RUNS * BATCH_RUNS
            batch = self._run_pks[first : first + BATCH_RUNS]
            self._batch = packs.read_columns(self._db, batch, self._names)
            if self._loops:
                iterations = read_iterations(self._db, batch, self._loops)
                self._batch = {key: self._batch[key] | iterations[key] for key in batch}
        return self._batch[run_pk]

    def __iter__(self) -> Iterator[int]:
        return iter(self._run_pks)

    def __len__(self) -> int:
        return len(self._run_pks)


def _frame(
    db: Database,
    runs: Sequence[RunRow],
    names: Sequence[str],
    known: Names,
    loops: Sequence[str] = (),
) -> pd.DataFrame:
    run_pks = [run.run_pk for run in runs]
    if names:
        paths = [path for name in names if name in known for path in known[name].paths]
        return pivot(runs, Batches(db, run_pks, names, loops), names, paths, loops)
    attributes = [name for name, info in known.items() if info.is_arg or () in info.paths]
    return summary(runs, Batches(db, run_pks, attributes))


def _loops_alone(db: Database, names: Sequence[str], known: Names) -> list[str]:
    """The names that are only loops', and of loops in which none of the others was logged."""
    around = _loops_of(known[name] for name in names if name in known)
    others = {*known, *around, *RUN_DIMENSIONS, NTH}
    return loop_names(db, [name for name in names if name not in others])


def _loops_of(infos: Iterable[NameInfo]) -> set[str]:
    return {loop for info in infos for path in info.paths for loop in path}


def _warn_unknown(names: Iterable[str], known: Names, frame: pd.DataFrame) -> None:
    dims = {*_loops_of(known.values()), *RUN_DIMENSIONS, NTH}
    for name in names:
        if name in known or (name in frame and name in dims):
            continue
        near = _near(name, known)
        hint = f"; did you mean {_either(near)}?" if near else "; `flor.dataframe()` shows what is"
        message = f"nothing logged is called {name!r}{hint}"
        warnings.warn(message, FlorWarning, stacklevel=CALLER)


def _matching(
    frame: pd.DataFrame, runs: Sequence[RunRow], clause: Clause, db: Database, known: Names
) -> Ints:
    """The rows for which the condition is true, in order."""
    asked = f"where = {clause.text!r}: "
    hint = "ask for one of them only, or choose the rows in pandas"
    _check_case(frame, _columns_in(clause.tokens), known, asked, hint)
    extra = _run_attributes(frame, runs, clause.names, db, known)
    shown = for_sql(pd.concat([frame, extra], axis=1), _folded(clause.names))
    shown[ROW] = np.arange(len(frame))
    with sandbox() as connection:
        connection.register(FRAME, shown)
        lock(connection)
        statement = f"select {ROW} from {FRAME} where (\n{clause.text}\n)"  # noqa: S608 - sandboxed
        try:
            check_statement(statement)
            rows = answer(connection, statement)[ROW].to_numpy(np.int64)
        except (duckdb.Error, QueryError) as error:
            available = [name for name in shown.columns if name != ROW]
            raise QueryError(
                _explain(error, [*available, *relations.RUNS], known, asked)
                + f"; there are: {_listed(available)}, and what is known of runs"
            ) from None
    return np.sort(rows)


def _run_attributes(
    frame: pd.DataFrame,
    runs: Sequence[RunRow],
    mentioned: Iterable[str],
    db: Database,
    known: Names,
) -> pd.DataFrame:
    """What is mentioned and is not in the frame, but is one value for each run; row by row."""
    present = set(_folded(frame.columns))
    missing = {name.lower(): name for name in mentioned if name.lower() not in present}
    at = pd.Index([run.run_id for run in runs]).get_indexer(pd.Index(frame["run_id"]))
    attributes: dict[str, Any] = {}
    # `status` in a condition is the run's, whether or not some script logged one of its own.
    wanted = [
        name
        for name in _known_names(missing.values(), known)
        if _is_of_runs(known[name]) and name not in relations.RUNS
    ]
    if wanted:
        found = last_values(Batches(db, [run.run_pk for run in runs], wanted).values(), len(runs))
        attributes |= {name: pd.Series(values) for name, (values, _) in found.items()}
    of_run = [name for name in relations.RUNS if name in missing and name not in attributes]
    if of_run:
        table = relations.runs(db, ["run_id", *of_run]).set_index("run_id")
        table = table.reindex([run.run_id for run in runs])
        attributes |= {name: table[name] for name in of_run}
    rows = {name: values.array.take(at) for name, values in attributes.items()}
    return pd.DataFrame(rows, index=frame.index)


def _is_of_runs(info: NameInfo) -> bool:
    return info.is_arg or () in info.paths


def _known_names(mentioned: Iterable[str], known: Names) -> list[str]:
    """The logged names that are meant: spelled so, else so but for the case.

    What is spelled like a dimension or a fact of the run is meant to be that.
    """
    folded: dict[str, list[str]] = {}
    for name in known:
        folded.setdefault(name.lower(), []).append(name)
    others = {*_loops_of(known.values()), *RUN_DIMENSIONS, NTH, *relations.RUNS}
    found: dict[str, None] = {}
    for name in mentioned:
        if name in known:
            found[name] = None
        elif name not in others:
            found |= dict.fromkeys(folded.get(name.lower(), []))
    return list(found)


def _columns_in(found: Sequence[Token]) -> list[str]:
    """The names in some SQL, except words that it cannot mean as a column."""
    quoted = {token.text for token in found if token.kind == "quoted"}
    names = mentions(found, RELATIONS)
    return [name for name in names if name.lower() not in RESERVED or name in quoted]


def _check_case(
    frame: pd.DataFrame, mentioned: Iterable[str], known: Names, asked: str, hint: str
) -> None:
    """Raises QueryError if a mentioned name may mean columns that differ in case only.

    To SQL they are one, and it would silently take either.
    """
    columns: dict[str, list[str]] = {}
    for name in frame.columns:
        columns.setdefault(name.lower(), []).append(name)
    meant: dict[str, dict[str, None]] = {}
    for name in mentioned:
        folded = name.lower()
        names = columns.get(folded, [])
        if name in known or name in relations.RUNS:
            names = [*names, name]
        elif not names:
            names = [*_known_names([name], known), *({folded} & relations.RUNS.keys())]
        meant[folded] = meant.get(folded, {}) | dict.fromkeys(names)
    for several in meant.values():
        if len(several) > 1:
            raise QueryError(
                f"{asked}SQL does not tell the columns {_either([*several], 'and')} apart; {hint}"
            )


def _sql_frame(
    db: Database,
    columns: Sequence[str],
    found: Sequence[Token],
    known: Names,
    *,
    loops: bool,
) -> pd.DataFrame:
    runs = in_order(relations.run_rows(db))
    alone = _loops_in(db, columns, found, known) if loops else []
    frame = _frame(db, runs, [*columns, *alone], known, alone)
    hint = "mention one of them only, or read them from `logs`, by value_name"
    _check_case(frame, _columns_in(found), known, "", hint)
    extra = _run_attributes(frame, runs, mentions(found, RELATIONS), db, {})
    return pd.concat([frame, extra], axis=1)


def _loops_in(
    db: Database, columns: Sequence[str], found: Sequence[Token], known: Names
) -> list[str]:
    """The loops that some SQL mentions, by name or for what they yielded, and no column is in."""
    mentioned = [name for name in _columns_in(found) if name not in known]
    names = dict.fromkeys([*mentioned, *(name.removesuffix("_value") for name in mentioned)])
    return [name for name in _loops_alone(db, [*columns, *names], known) if name not in columns]


def _create_relations(
    connection: duckdb.DuckDBPyConnection, db: Database, found: Sequence[Token]
) -> None:
    mentioned = set(_folded(mentions(found))) & RELATIONS
    for name in mentioned - {"logs"}:
        connection.register(name, getattr(relations, name)(db))
    if "logs" in mentioned:
        columns = set(_folded(mentions(found)))
        everything = wants_all_columns(found)
        relations.create_logs(connection, db, relations.LOGS if everything else columns)


def _explain(error: Exception, available: Iterable[str], known: Names, asked: str) -> str:
    message = shortened(error)
    if asked:  # the user wrote a condition: neither FROM nor the last bracket
        message = message.replace(" in FROM clause", "")
        message = message.replace(
            'syntax error at or near ")"', "syntax error before a ) or the end"
        )
    missing = re.search(r'(?:[Cc]olumn|named) "([^"]+)"', message)
    if missing is None:
        return asked + message
    name = missing[1]
    inside = _known_names([name], known)
    if asked and inside and not _is_of_runs(known[inside[0]]):
        return f"{asked}{inside[0]!r} was logged inside loops; name it in the dataframe as well"
    near = _near(name, dict.fromkeys([*available, *known]))
    return asked + message + (f"; did you mean {_either(near)}?" if near else "")


def _near(name: str, known: Iterable[str]) -> list[str]:
    spelled = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), list(spelled), n=2, cutoff=0.6)
    return [spelled[each] for each in near]


def _either(names: Sequence[str], word: str = "or") -> str:
    return f" {word} ".join(repr(name) for name in names)


def _listed(names: Sequence[str], most: int = 20) -> str:
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def _folded(names: Iterable[str]) -> list[str]:
    return [name.lower() for name in names]
