"""Settings: where the project is and what its owner wants, read once.

The project's root is the nearest folder upwards, from the script or the working directory, that
holds runs in `.flor/`, a `flor.toml`, a `pyproject.toml` with a `[tool.flor]` table, or a git
repository.
Each setting comes from the environment (`FLOR_DATABASE`), else from `flor.toml` or
`[tool.flor]` (`database`), else from its default. Standard library only: a training imports this.
"""

from __future__ import annotations

import math
import os
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from flor.errors import ConfigError

MiB = 1024 * 1024
LARGEST = 1e15  # of an amount: what it is multiplied by stays finite


@dataclass(frozen=True)
class Settings:
    """What can be set, with the defaults."""

    root: Path
    projid: str = ""  # the root's name
    database: str = ""  # a postgresql:// URL; empty: SQLite in .flor/
    branch: str = "flor"  # the side branch that versions and journals go to
    file_limit_mb: float = 10  # a larger file is listed in a version, not committed
    tree_limit_mb: float = 200  # new content that one version may add to the repository
    journal_limit_mb: float = 20  # a larger compressed journal joins the branch as a summary
    snapshot_seconds: float = 10  # after this, only the script and its imports are versioned
    overhead: float = 1 / 15  # of the training's time that checkpoints may cost; inf: no limit
    bucket: str = ""  # s3://bucket/prefix, where objects go that the limit leaves no room for
    objects_limit_gb: float = 50  # what .flor/objects may hold before it is spooled or thinned

    @property
    def flor_dir(self) -> Path:
        return self.root / ".flor"

    @property
    def runs_dir(self) -> Path:
        return self.flor_dir / "runs"

    @property
    def objects_dir(self) -> Path:
        return self.flor_dir / "objects"

    @property
    def sqlite_path(self) -> Path:
        return self.flor_dir / "flor.db"


def load(start: Path | None = None) -> Settings:
    """The settings of the project around `start` (default: the working directory)."""
    here = (start or Path.cwd()).resolve()
    root = find_root(here) or here
    found = {**_from_files(root), **_from_environment()}
    found.setdefault("projid", root.name or "root")
    return Settings(root=root, **found)


def find_root(start: Path) -> Path | None:
    """The nearest project folder at or above `start`, or None."""
    for folder in (start, *start.parents):
        marked = (folder / ".flor" / "runs").is_dir() or (folder / "flor.toml").is_file()
        if marked or (folder / ".git").exists() or _tool_table(folder / "pyproject.toml"):
            return folder
    return None


def _from_files(root: Path) -> dict[str, Any]:
    own = root / "flor.toml"
    if own.is_file():
        return _checked(_parse(own), own)
    shared = root / "pyproject.toml"
    return _checked(_tool_table(shared), shared)


def _tool_table(path: Path) -> dict[str, Any]:
    """The `[tool.flor]` table; a file that does not mention it is not parsed at all."""
    try:
        if b"tool.flor" not in path.read_bytes():
            return {}
    except OSError:
        return {}
    table = _parse(path).get("tool", {}).get("flor", {})
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: tool.flor = {table!r} is not a table; write [tool.flor]")
    return table


def _parse(path: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}; mend it or remove it") from error


def _from_environment() -> dict[str, Any]:
    found = {}
    for setting in fields(Settings):
        text = os.environ.get(f"FLOR_{setting.name.upper()}")
        if not text or setting.name == "root":  # empty is unset
            continue
        if setting.type == "float":
            try:
                found[setting.name] = float(text)
            except ValueError:
                raise ConfigError(f"FLOR_{setting.name.upper()}={text!r} is not a number") from None
            _insist_on_amount(setting.name, found[setting.name], f"FLOR_{setting.name.upper()}=")
        else:
            found[setting.name] = text  # type: ignore[assignment]  # str or float, as declared
    return found


def _checked(table: dict[str, Any], source: Path) -> dict[str, Any]:
    types = {item.name: item.type for item in fields(Settings) if item.name != "root"}
    for name, value in table.items():
        if name not in types:
            known = ", ".join(sorted(types))
            raise ConfigError(f"{source}: unknown setting {name!r}; there are: {known}")
        expected = (int, float) if types[name] == "float" else str
        if not isinstance(value, expected) or isinstance(value, bool):
            raise ConfigError(f"{source}: {name} = {value!r} is not a {types[name]}")
        if not isinstance(value, str):
            _insist_on_amount(name, value, f"{source}: {name} = ")
    return dict(table)


def _insist_on_amount(name: str, value: float, where: str) -> None:
    """All numbers are amounts, and only `overhead` may be without a limit."""
    if value == math.inf and name == "overhead":
        return
    if not 0 <= value <= LARGEST:
        unlimited = ", or inf for no limit" if name == "overhead" else ""
        raise ConfigError(
            f"{where}{value!r:.40} makes no sense; give a number from 0 to {LARGEST:g}{unlimited}"
        )
