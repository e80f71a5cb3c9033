"""Journals, files and names that mean harm, or are merely careless; as a user meets them."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flor.config import Settings
from flor.store.database import open_database
from tests.conftest import JournalWriter
from tests.e2e.conftest import Project

# sets the window's title, rings, moves the cursor, turns the text around, ends in half a character
ATTACK = "x\x1b]0;owned\x07\x9b2J\x7f\u202eevil\u2066\u200e\r\ud800"
BAD = re.compile(
    "\x1b\\]|[\x00-\x08\x0b\x0c\x0e-\x1a\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)
ON_A_TERMINAL = re.compile("\x1b\\[[0-9;]*[a-zA-Z]")  # the colors that are ours

SCRIPT = f"import flor\nflor.log('loss', 1)  # {ATTACK[:-2]}\n"


def hostile_run(project: Project, run_id: str, commit: str | None = None) -> None:
    """A journal with the attack in every text that it has."""
    writer = JournalWriter(project.root / ".flor" / "runs", run_id)
    names = ("filename", "cwd", "host", "user", "python", "platform", "parent")
    texts = dict.fromkeys(names, ATTACK) | ({"filename": "train.py"} if commit else {})
    writer.run(**texts, projid=project.root.name, argv=["train.py", ATTACK])
    left_out = [{"path": ATTACK, "size_bytes": 1, "reason": ATTACK}]
    version = {"commit": commit or ATTACK, "tree": ATTACK, "left_out": left_out}
    user = {"user_branch": ATTACK, "user_commit": ATTACK, "user_dirty": True, "partial": False}
    devices = [{"name": ATTACK, "count": ATTACK}, {"name": ATTACK}, ATTACK, 7]
    writer.lines(
        {"t": "version", **version, **user},
        {"t": "env", "packages": {ATTACK: ATTACK}, "devices": devices},
        {"t": "data", "path": ATTACK, "size_bytes": 1, "digest": ATTACK, "note": ATTACK},
        {"t": "data", "path": "b", "digest": f"{ATTACK}:{ATTACK}"},
        {"t": "note", "text": ATTACK},
    )
    writer.log(writer.site(ATTACK, arg=True, source=ATTACK), ATTACK)
    writer.loop(1, ATTACK)
    writer.lines({"t": "value", "loop": 1, "iteration": 0, "value": ATTACK})
    site = writer.site(ATTACK + "2")
    for value in (ATTACK, [ATTACK], {ATTACK: ATTACK}, 10**400, 0.5):
        writer.log(site, value, 1, 0)
    stored = {"media": "npy", "type": ATTACK, "digest": ATTACK, "size_bytes": 1}
    writer.lines([site, 1, 0, {**stored, "preview": {"shape": [ATTACK]}}, "object"])
    writer.lines([site, 1, 0, ATTACK, "text"], [site, 1, 0, ATTACK, "datetime"])
    writer.loop_end(1, 1)
    writer.end("failed", error=ATTACK, traceback=f"line\n\t{ATTACK}\n")


@pytest.fixture
def attacked(project: Project) -> Project:
    """A real run of a script with the attack in it, between two hostile journals."""
    project.write("train.py", SCRIPT)
    project.python("train.py")
    commit = project.git("rev-parse", "flor~1").strip()
    project.write("train.py", SCRIPT + f"# {ATTACK[:-2]}\n")
    project.python("train.py")
    hostile_run(project, "20261118-190312-aaaaaa")
    hostile_run(project, "20261118-190313-bbbbbb", commit)
    return project


COMMANDS = [
    ["runs"],
    ["show", "aaaaaa"],
    ["show", "bbbbbb"],
    ["show", "latest"],
    ["dataframe"],
    ["dataframe", ATTACK[:-1] + r"\ud800", ATTACK[:-1] + r"\ud8002"],
    ["dataframe", "nothing" + ATTACK[:-1]],
    ["dataframe", "loss", "--where", f"loss = '{ATTACK[:-1]}' and nosuch"],
    ["dataframe", "--json"],
    ["sql", "select * from runs"],
    ["sql", "select * from logs"],
    ["sql", f"select '{ATTACK[:-1]}' as a, nosuch from runs"],
    ["sql", "select * from loops", "--json"],
    ["diff", "aaaaaa", "latest"],
    ["sync"],
    ["doctor"],
    ["show", ATTACK[:-1]],
    [ATTACK[:-1]],
]


def in_terminal(project: Project, *words: str) -> str:
    """Everything that the command gives when its output is a terminal."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "flor", *words]
    environment = {**project.environment, "TERM": "xterm", "COLUMNS": "120"}
    process = subprocess.Popen(
        command, cwd=project.root, env=environment, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    found = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        found += part
    os.close(ours)
    process.wait()
    return found.decode()


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: ascii(" ".join(words))[1:40])
def test_nothing_commands_the_terminal(attacked: Project, words: list[str]) -> None:
    for text in piped(attacked, words), ON_A_TERMINAL.sub("", in_terminal(attacked, *words)):
        assert "Traceback (most" not in text
        assert "mistake in flor" not in text
        assert not BAD.search(text), ascii(BAD.search(text))


def piped(project: Project, words: list[str]) -> str:
    process = project.start("-m", "flor", *words)
    out, err = process.communicate(timeout=60)
    if words[:1] == ["diff"] and process.returncode == 0:
        out = ""  # exact, as git gave it
    return out + err


def test_code_is_exact_in_a_pipe_and_harmless_on_a_terminal(attacked: Project) -> None:
    """`flor show --code > train.py` gives the file back, whatever is in it."""
    content = b"import flor\r\nflor.log('x', 1)  # \xff\x1b[31m\n"
    (attacked.root / "train.py").write_bytes(b"# coding: latin-1\n" + content)
    attacked.python("train.py")
    command = [sys.executable, "-m", "flor", "show", "--code"]
    done = subprocess.run(
        command, cwd=attacked.root, env=attacked.environment, capture_output=True, check=True
    )
    assert done.stdout == b"# coding: latin-1\n" + content
    shown = in_terminal(attacked, "show", "--code")
    assert r"\x1b[31m" in shown
    assert "\x1b" not in shown
    diff = in_terminal(attacked, "diff", "-2", "-1")
    assert "\x1b[32m+flor.log('x', 1)  # " in diff
    assert r"\x1b[31m" in diff
    assert not BAD.search(ON_A_TERMINAL.sub("", diff))
    assert "\x1b[31m" in attacked.flor("diff", "-2", "-1"), "a pipe gets the exact text"


def test_half_characters(project: Project) -> None:
    project.write("train.py", "import flor\nflor.log('vs2', '\\ud800')\nflor.log('v\\0', 1)\n")
    project.python("train.py")
    assert r"\ud800" in project.flor("show")
    assert r"\ud800" in project.flor("dataframe", "vs2")
    assert r"\ud800" in project.flor("dataframe", "vs2", "--csv")
    assert r"\ud800" in project.flor("runs", PYTHONIOENCODING="ascii")
    assert project.frame("vs2")[0]["vs2"] == "\ud800"
    for form, name in (("--csv", "o.csv"), ("--json", "o.json"), ("--parquet", "o.parquet")):
        project.flor("dataframe", "vs2", form, name)
        (project.root / name).read_bytes().decode("utf-8" if form != "--parquet" else "latin-1")
    assert b"\\ud800" in (project.root / "o.parquet").read_bytes()


def test_values_nested_by_hundreds_of_levels(project: Project) -> None:
    writer = JournalWriter(project.root / ".flor" / "runs", "20261118-190312-aaaaaa")
    writer.run(projid=project.root.name)
    site = writer.site("h")
    writer.lines(b"[%d, 0, 0, %s]\n" % (site, b"[" * 880 + b"]" * 880))
    writer.end()
    assert "nested 880 levels deep" in project.flor("dataframe", "h", "--csv")
    assert "h" in project.flor("show")
    assert "nested too deeply" in project.flor("doctor")


# --- what is in the way ---------------------------------------------------------------------------


@pytest.mark.parametrize("blocked", [".flor", ".flor/runs", ".flor/objects"])
def test_doctor_sees_that_nothing_can_be_recorded(project: Project, blocked: str) -> None:
    path = project.root / blocked
    path.parent.mkdir(exist_ok=True)
    path.write_text("mine")
    text = project.flor("doctor", code=1)
    assert "is not a folder; runs cannot be recorded" in text
    repair = re.search(r"→ (mv .*)", text)
    assert repair is not None
    subprocess.run(repair[1], shell=True, check=True)
    assert "runs can be recorded" in project.flor("doctor")


def one_line(project: Project, *words: str, code: int = 1, **env: str) -> str:
    err = project.python("-m", "flor", *words, code=code, **env).stderr
    assert err.startswith("flor: ")
    assert err.count("\n") == 1
    return err


EVERY = [
    *(["runs"], ["show"], ["dataframe"], ["sql", "select 1"], ["diff", "-1", "-1"]),
    *(["sync"], ["doctor"]),
]


@pytest.mark.parametrize("words", EVERY, ids=lambda words: words[0])
def test_broken_settings(project: Project, words: list[str]) -> None:
    project.write("flor.toml", "branch = [\n")
    assert "flor.toml" in one_line(project, *words)
    project.write("flor.toml", "branch = 7\n")
    assert "branch = 7" in one_line(project, *words)


@pytest.mark.parametrize("words", EVERY[:5], ids=lambda words: words[0])
def test_database_that_is_locked(project: Project, words: list[str]) -> None:
    project.write("train.py", "import flor\nflor.log('a', 1)\n")
    project.python("train.py")
    impatient = (
        "import flor.store.database as d; d.BUSY_SECONDS = 0.2; from flor.cli import main; main()"
    )
    with open_database(Settings(root=project.root)) as db, db.transaction():
        done = project.python("-c", impatient, *words, code=1)
    assert "was locked by another process" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_journal_that_cannot_be_read(project: Project) -> None:
    """A link that leads in a circle: even root cannot open it. The other runs are there."""
    project.write("train.py", "import flor\nflor.log('a', 1)\n")
    project.python("train.py")
    writer = JournalWriter(project.root / ".flor" / "runs", "20261118-190312-aaaaaa")
    writer.run()
    child = writer.folder / "child-7.jsonl"
    child.mkdir()
    for words in ("runs",), ("dataframe", "a"):
        done = project.python("-m", "flor", *words)
        assert "the journals of 1 run cannot be read" in done.stderr
        assert "Traceback" not in done.stderr
        assert done.stdout.count("train.py") == 1


@pytest.mark.parametrize("words", EVERY, ids=lambda words: words[0])
def test_in_no_project(tmp_path: Path, words: list[str]) -> None:
    project = Project(tmp_path)
    process = project.start("-m", "flor", *words)
    out, err = process.communicate(timeout=60)
    assert "Traceback" not in out + err
    assert err.count("\n") <= 1


def test_a_run_that_was_taken_for_dead(project: Project) -> None:
    writer = JournalWriter(project.root / ".flor" / "runs", "20200101-000000-aaaaaa")
    writer.run(projid=project.root.name, tstamp="2020-01-01T00:00:00Z")
    site = writer.site("a")
    writer.log(site, 1)
    long_ago = time.time() - 30 * 86400
    os.utime(writer.path, (long_ago, long_ago))
    assert project.runs()[0]["status"] == "killed"
    writer.log(site, 2)
    writer.end()
    text = project.flor("doctor")
    assert "1 runs were taken for dead and have written since" in text
    project.flor("sync", "--full")
    assert project.runs()[0]["status"] == "finished"
    assert "taken for dead" not in project.flor("doctor")


def test_the_attack_is_shown_as_what_it_is(attacked: Project) -> None:
    assert r"x\x1b]0;owned\x07\x9b2J\x7f\u202eevil\u2066\u200e\r\ud800" in attacked.flor("runs")
    text = attacked.flor("show", "aaaaaa")
    for part in ("command", "where", "python", "devices", "parent", "error", "version", "left out"):
        (line,) = [line for line in text.splitlines() if line.strip().startswith(part)]
        assert r"\x1b]0;owned\x07" in line, part
    assert text.count(r"\x1b]0;owned") > 20


def test_json_stays_json(attacked: Project) -> None:
    runs = {run["run_id"]: run for run in attacked.runs()}
    assert runs["20261118-190312-aaaaaa"]["argv"][1].startswith(ATTACK[:-1])
    details = json.loads(attacked.flor("show", "aaaaaa", "--json"))
    assert details["notes"][0].startswith(ATTACK[:-1])
