"""Real projects in temporary folders, real scripts in real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest


@dataclass
class Project:
    root: Path
    env: dict[str, str] = field(default_factory=dict)

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def git(self, *words: str) -> str:
        done = subprocess.run(
            ["git", *words], cwd=self.root, env=self.environment, capture_output=True, check=True
        )
        return done.stdout.decode()

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "FLOR_DISABLE": "", **self.env}

    def start(self, *words: str, cwd: Path | None = None, **env: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, *words],
            cwd=cwd or self.root,
            env={**self.environment, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def python(
        self, *words: str, cwd: Path | None = None, code: int = 0, **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Run to the end, and insist on the exit code."""
        process = self.start(*words, cwd=cwd, **env)
        out, err = process.communicate(timeout=120)
        done = subprocess.CompletedProcess(words, process.returncode, out, err)
        assert done.returncode == code, f"exit {done.returncode}\n{out}\n{err}"
        return done

    def flor(self, *words: str, code: int = 0, **env: str) -> str:
        return self.python("-m", "flor", *words, code=code, **env).stdout

    def frame(self, *names: str) -> list[dict[str, Any]]:
        """`flor dataframe NAMES --json`."""
        rows: list[dict[str, Any]] = json.loads(self.flor("dataframe", *names, "--json"))
        return rows

    def runs(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = json.loads(self.flor("runs", "--json"))
        return rows

    def journals(self) -> list[list[Any]]:
        """The parsed lines of each run's journal, oldest run first."""
        files = (self.root / ".flor" / "runs").glob("*/journal.jsonl")
        found = [[json.loads(line) for line in path.read_text().splitlines()] for path in files]
        return sorted(found, key=lambda lines: str(lines[0]["tstamp"]))

    def lines(self, kind: str, run: int = -1) -> list[dict[str, Any]]:
        """The journal's object lines of one type."""
        return [x for x in self.journals()[run] if isinstance(x, dict) and x["t"] == kind]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A git repository with one commit and an identity."""
    made = Project(tmp_path / "project")
    made.root.mkdir()
    made.git("init", "-q", "-b", "main")
    made.git("config", "user.name", "Ann")
    made.git("config", "user.email", "ann@example.org")
    made.write("README", "a project\n")
    made.git("add", "-A")
    made.git("commit", "-qm", "begin")
    return made


@pytest.fixture
def folder(tmp_path: Path) -> Project:
    """A project that is not a git repository."""
    made = Project(tmp_path / "folder")
    made.root.mkdir()
    return made
