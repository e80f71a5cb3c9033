"""The names of objects in journals that the database may not have wholly understood.

A line that is damaged may have listed a checkpoint. So whatever looks like the name of an object
in such a journal counts as one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from flor.config import Settings
from flor.errors import GitError, NoRepository
from flor.git import Repository, open_repository
from flor.store import journals
from flor.store.database import Database
from flor.store.ingest import known_runs
from flor.store.project import GIT_SECONDS

BLOCK_BYTES = 16 * 1024 * 1024  # of a journal at a time

_NAME = re.compile(rb"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")


class Mentions:
    """Looks into journals, here and on the branch; those that it cannot read become `doubts`."""

    def __init__(self, settings: Settings, db: Database, doubts: list[str]) -> None:
        self._settings = settings
        self._db = db
        self._doubts = doubts

    def find(self, run_ids: Iterable[str]) -> set[str]:
        """What is mentioned by those runs, and by all whose journals have lines that were not read.

        Those are damaged ones, and lines that came after the run had ended.
        """
        known = known_runs(self._db)
        doubtful = self._not_wholly_read().union(known.intersection(run_ids))
        folders = {run_id: self._settings.runs_dir / run_id for run_id in sorted(doubtful)}
        here = {run_id: folder for run_id, folder in folders.items() if folder.is_dir()}
        found: set[str] = set()
        for folder in here.values():
            try:
                for name in journals.journal_files(folder):
                    with (folder / name).open("rb") as file:
                        found |= names_in(file.read)
            except OSError as error:
                self._doubts.append(f"{folder} cannot be read: {error.strerror}")
        repository = self._repository()
        if repository is not None and doubtful - here.keys():
            for _, payload in repository.journals(known - (doubtful - here.keys())):
                found |= names_in(journals.Unpacked(payload).read)
        return found

    def _not_wholly_read(self) -> set[str]:
        rows = self._db.execute(
            "select r.run_id, r.origin, r.closed, j.name, j.size_bytes, j.bad_lines "
            "from runs r join journals j on j.run_pk = r.run_pk order by r.run_id"
        )
        read: dict[str, dict[str, int]] = {}
        found = set()
        for run_id, origin, closed, name, size_bytes, bad_lines in rows:
            if bad_lines:
                found.add(run_id)
            if closed and origin == "local":
                read.setdefault(run_id, {})[name] = size_bytes
        return found.union(run_id for run_id, sizes in read.items() if self._grew(run_id, sizes))

    def _grew(self, run_id: str, sizes: Mapping[str, int]) -> bool:
        """Whether a run that has ended has written since."""
        folder = self._settings.runs_dir / run_id
        try:
            names = journals.journal_files(folder)
            return any((folder / name).stat().st_size != sizes.get(name) for name in names)
        except FileNotFoundError:
            return False  # the database still knows what it listed
        except OSError:
            return True

    def _repository(self) -> Repository | None:
        """Where runs of others are; if git cannot tell, their runs may be missing here."""
        settings = self._settings
        place = settings.root, settings.flor_dir, settings.branch
        try:
            return open_repository(*place, create=False, seconds=GIT_SECONDS)
        except NoRepository:
            return None
        except GitError as error:
            self._doubts.append(f"the branch {settings.branch} cannot be read: {error}")
            return None


def names_in(read: Callable[[int], bytes]) -> set[str]:
    """What looks like the name of an object."""
    found: set[str] = set()
    rest = b""
    while block := read(BLOCK_BYTES):
        block = rest + block
        found.update(match.decode() for match in _NAME.findall(block))
        rest = block[-64:]  # a name may go on in the next one
    return found
