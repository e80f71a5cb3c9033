"""`flor propagate`."""

from __future__ import annotations

import difflib
import json
import os
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flor.cli.terminal import clean_json, colored_diff, echo, one_line, write_exact
from flor.errors import BadSource, GitError, NoPlace
from flor.git import naming
from flor.git.process import Git
from flor.git.reading import read
from flor.source.notebooks import Notebook
from flor.source.propagate import Placed, Propagation, logging, parsed, propagate_through
from flor.source.syntax import Source, Statement, decode

if TYPE_CHECKING:
    from collections.abc import Sequence

NO_PLACE = 3
MOST_BETWEEN = 12  # versions by way of which a far one is tried


@dataclass(frozen=True)
class Side:
    """One version of a file."""

    name: str  # as the user has given it
    path: str  # in the repository, or of the file
    content: bytes
    text: str  # with its newlines
    encoding: str
    notebook: Notebook | None
    source: Source
    commit: str | None = None

    def written(self, module: str) -> str:
        """The file's text for its module's."""
        return self.notebook.with_module(module) if self.notebook is not None else module

    def place(self, line: int) -> str:
        if self.notebook is None:
            return f"line {line}"
        cell, inside = self.notebook.place(line)
        return f"cell {cell} line {inside}"


def propagate(
    new: str,
    old: str,
    lines: Sequence[str],
    names: Sequence[str],
    base: str | None,
    via: Sequence[str],
    *,
    diff: bool,
    as_json: bool,
) -> int:
    """Print the older version with the statements; the exit status."""
    newest = _side(new, None)
    try:
        oldest = _side(old, newest)
    except Unusable as error:
        return _refuse(str(error), as_json=as_json)
    ground = _side(base, newest).source if base is not None else None
    wanted = _probes(newest, lines, names)
    between = [_side(name, newest) for name in via] if via else _between(newest, oldest)
    versions = [newest.source, *(side.source for side in between), oldest.source]
    try:
        found = propagate_through(versions, wanted, ground)
        text = oldest.written(found.text)
        _insist_on_encoding(text, oldest)
    except NoPlace as error:
        return _refuse(str(error), as_json=as_json)
    if as_json:
        echo(clean_json(json.dumps(_json(found, newest, oldest), indent=1, ensure_ascii=False)))
        return 0
    _tell(found, newest, oldest)
    if diff:
        _print_diff(text, oldest)
    else:
        _write(text, oldest)
    return 0


def _refuse(why: str, *, as_json: bool) -> int:
    if as_json:
        echo(clean_json(json.dumps({"placed": None, "why": why}, ensure_ascii=False)))
    echo(f"flor: {one_line(why)}", err=True)
    return NO_PLACE


def _probes(side: Side, lines: Sequence[str], names: Sequence[str]) -> list[Statement]:
    found: list[Statement] = []
    for word in lines:
        cell, colon, line = word.rpartition(":")
        try:
            if bool(colon) != (side.notebook is not None):
                raise ValueError
            number = side.notebook.line(int(cell), int(line)) if side.notebook else int(line)
        except ValueError as error:
            if isinstance(error, BadSource):
                raise
            form = "CELL:LINE" if side.notebook is not None else "a number"
            raise click.UsageError(f"--line {word!r} of {side.name} is to be {form}.") from None
        statement = side.source.at(number)
        if statement is None:
            raise BadSource(f"{side.place(number)} of {side.name} holds no statement")
        found.append(statement)
    for name in names:
        logged = logging(side.source, name)
        if not logged:
            raise BadSource(f"nothing logs {name!r} in {side.name}; --line N names a statement")
        found += logged
    if not found:
        raise click.UsageError("which statement? Give --line N or --name NAME.")
    for statement in found:
        first, last = statement.first_line, statement.last_line
        if side.notebook is not None and side.notebook.has_magic(first, last):
            raise BadSource(f"{side.place(first)} of {side.name} has a magic, and is no Python")
    return found


# --- reading ------------------------------------------------------------------------------------


def _side(name: str, newest: Side | None, *, quiet: bool = False) -> Side:
    """A file; or REV:PATH; or REV, for the file that the newest one was there."""
    path = Path(name)
    if path.is_file():
        return _read_side(name, str(path), path.read_bytes(), None)
    if path.is_dir():
        raise BadSource(f"{name} is a folder; a file, REV:FILE or REV was expected")
    git = Git(Path.cwd())
    revision, colon, inside = name.partition(":")
    commit = naming.commit_of(git, revision)
    if commit is None:
        raise BadSource(f"{name} is no file here, and git knows no revision {revision!r}")
    if colon:
        inside = _from_top(git, inside)
        return _read_side(name, inside, read(git, commit, inside), commit)
    if newest is None:
        raise BadSource(f"{name} is a revision; which file of it? Write {name}:FILE")
    here = newest.path if newest.commit is not None else _from_top(git, newest.path)
    found = naming.find(git, commit, here, newest.content, naming.tracked(git))
    if found is None:
        raise Unusable(f"version {name} has no file {here!r}, nor one like it under another name")
    if found != here and not quiet:
        echo(f"flor: {here} was {found} in {name}", err=True)
    return _read_side(name, found, read(git, commit, found), commit)


class Unusable(BadSource):
    """A version lacks the file, or it does not parse: nothing can be put into it."""


def _from_top(git: Git, path: str) -> str:
    """A path as the repository has it."""
    top = Path(os.fsdecode(git.run("rev-parse", "--show-toplevel")).rstrip("\n")).resolve()
    absolute = (Path.cwd() / path).resolve()
    if absolute.is_relative_to(top) and absolute.exists():
        return absolute.relative_to(top).as_posix()
    return path


def _read_side(name: str, path: str, content: bytes, commit: str | None) -> Side:
    notebook = None
    try:
        if path.endswith(".ipynb"):
            text, encoding = content.decode(), "utf-8"
            notebook = Notebook(text)
        else:
            text, encoding = decode(content)
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        raise Unusable(f"{name} cannot be read as text: {error}") from None
    except BadSource as error:
        raise Unusable(f"{name}: {error}") from None
    try:
        source = parsed(notebook.module if notebook is not None else text, name)
    except BadSource as error:
        raise Unusable(str(error)) from None
    return Side(name, path, content, text, encoding, notebook, source, commit)


def _between(newest: Side, oldest: Side) -> list[Side]:
    """Versions on the way to one of the same repository, to go by if it is too far."""
    if oldest.commit is None:
        return []
    git = Git(Path.cwd())
    start = newest.commit or naming.commit_of(git, "HEAD")
    found: list[Side] = []
    seen = {newest.content, oldest.content}
    for commit in naming.between(git, oldest.commit, start or "", MOST_BETWEEN) if start else []:
        try:
            side = _side(commit, newest, quiet=True)
        except (BadSource, GitError):
            continue
        if side.content not in seen:
            found.append(side)
            seen.add(side.content)
    return found


# --- printing -----------------------------------------------------------------------------------


def _insist_on_encoding(text: str, side: Side) -> None:
    try:
        text.encode(side.encoding)
    except UnicodeEncodeError as error:
        wrong = error.object[error.start : error.end]
        raise NoPlace(
            f"{wrong!r} cannot be written in {side.encoding}, the encoding of {side.name}"
        ) from None


def _write(text: str, side: Side) -> None:
    """The file as bytes where it goes into one; on a terminal nothing in it is obeyed."""
    if sys.stdout.isatty():
        write_exact(text)
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode(side.encoding))
        sys.stdout.buffer.flush()


def _print_diff(text: str, side: Side) -> None:
    before, after = (item.splitlines(keepends=True) for item in (side.text, text))
    lines = difflib.unified_diff(before, after, side.name, f"{side.name} with the statement")
    shown = "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)
    if sys.stdout.isatty():
        click.echo(colored_diff(shown), nl=False)
    else:
        write_exact(shown)


def _tell(found: Propagation, newest: Side, oldest: Side) -> None:
    """What a user should know besides the text, on stderr."""
    for number, item in enumerate(found.placed):
        asked = number in found.probes
        if item.already and asked:
            where = oldest.place(item.line)
            echo(f"flor: {oldest.name} has the statement already, {where}", err=True)
        elif item.other_line is not None:
            other = oldest.place(item.other_line)
            echo(
                f"flor: another place is as good: before {other} of {oldest.name} as it was",
                err=True,
            )
        elif not asked and not item.already:
            echo(f"flor: {newest.place(item.new_line)} came with it", err=True)
    for note in found.notes:
        echo(f"flor: note: {one_line(note)}", err=True)
    if found.between:
        echo(f"flor: found by way of {found.between} versions between", err=True)


def _json(found: Propagation, newest: Side, oldest: Side) -> dict[str, object]:
    items = [
        _placed(item, newest) | {"asked": number in found.probes}
        for number, item in enumerate(found.placed)
    ]
    return {"old": oldest.name, "placed": items, "by_way_of": found.between}


def _placed(item: Placed, newest: Side) -> dict[str, object]:
    data = asdict(replace(item, notes=()))
    data["notes"] = list(item.notes)
    data["confidence"] = data.pop("chance")
    data["statement"] = newest.source.lines[item.new_line - 1].strip()
    return data
