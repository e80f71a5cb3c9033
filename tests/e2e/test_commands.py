"""The `flor` command, as a user types it."""

from __future__ import annotations

import csv
import io
import json
import subprocess
from pathlib import Path

import pytest

from tests.e2e.conftest import Project

TRAIN = """
import flor
lr = flor.arg("lr", 0.1)
for epoch in flor.loop("epoch", range(3)):
    for step in flor.loop("step", range(2)):
        flor.log("loss", lr * (epoch + step))
    flor.log("acc", 1 - lr * epoch)
open("data.csv").read()
"""


@pytest.fixture
def trained(project: Project) -> Project:
    """Two versions of a script, three runs."""
    project.write("data.csv", "1,2\n")
    project.write("train.py", TRAIN)
    project.python("train.py")
    project.python("train.py", "--kwargs", "lr=0.2")
    project.write("train.py", TRAIN + "flor.log('done', 'yes')\n")
    project.python("train.py", "--kwargs", "lr=0.3")
    return project


def test_runs(trained: Project) -> None:
    text = trained.flor("runs")
    assert text.count("finished") == 3
    assert "lr=0.3" in text
    assert len(json.loads(trained.flor("runs", "--json"))) == 3
    assert "the newest 1 of 3 runs" in trained.flor("runs", "-n", "1")


def test_show(trained: Project) -> None:
    text = trained.flor("show")
    for part in ("train.py", "finished", "lr", "0.3", "epoch/step/loss", "data.csv", "▁"):
        assert part in text
    assert "+flor.log('done', 'yes')" in text
    assert "the code is that of the run before" in trained.flor("show", "-2")
    assert trained.flor("show", "--code") == TRAIN + "flor.log('done', 'yes')\n"
    shown = json.loads(trained.flor("show", "latest", "--json"))
    assert shown["args"] == {"lr": 0.3}
    assert shown["data"][0]["path"] == "data.csv"


def test_dataframe(trained: Project) -> None:
    rows = json.loads(trained.flor("dataframe", "lr", "loss", "--where", "lr > 0.15", "--json"))
    assert len(rows) == 12
    assert set(rows[0]) == {
        *("projid", "tstamp", "filename", "run_id", "epoch", "step", "lr", "loss"),
    }
    text = trained.flor("dataframe", "lr", "acc", "--csv")
    assert len(list(csv.DictReader(io.StringIO(text)))) == 9
    trained.flor("dataframe", "acc", "--csv", "out.csv")
    assert (trained.root / "out.csv").read_text().startswith("projid,")
    trained.flor("dataframe", "acc", "--parquet", "out.parquet")
    assert (trained.root / "out.parquet").read_bytes()[:4] == b"PAR1"
    assert "acc" in trained.flor("dataframe", "--csv", "acc").splitlines()[0]


def test_an_unknown_name_suggests_near_ones(trained: Project) -> None:
    done = trained.python("-m", "flor", "dataframe", "los")
    assert "did you mean 'loss'" in done.stderr


def test_sql(trained: Project) -> None:
    rows = json.loads(
        trained.flor(
            "sql", "select lr, max(acc) as best from frame group by lr order by lr", "--json"
        )
    )
    assert [row["lr"] for row in rows] == [0.1, 0.2, 0.3]
    rows = json.loads(trained.flor("sql", "select count(*) as n from logs", "--json"))
    assert rows == [{"n": 31}]


def test_diff(trained: Project) -> None:
    text = trained.flor("diff", "-2", "latest")
    assert "+flor.log('done', 'yes')" in text
    assert "is the same" in trained.flor("diff", "-3", "-2")


def test_sync_between_clones(trained: Project, tmp_path: Path) -> None:
    """Two clones push their runs; each sees both."""
    hub = tmp_path / "hub.git"
    subprocess.run(["git", "init", "-q", "--bare", str(hub)], check=True)
    trained.git("remote", "add", "origin", str(hub))
    trained.git("push", "-q", "origin", "main", "flor")
    other = Project(tmp_path / "other", trained.env)
    subprocess.run(["git", "clone", "-q", str(hub), str(other.root)], check=True)
    assert "read 3 runs of other clones" in other.flor("sync")
    assert len(other.frame("loss")) == 18
    assert [row["loss"] for row in other.frame("loss")] == [
        r["loss"] for r in trained.frame("loss")
    ]

    other.write("train.py", "import flor\nflor.log('loss', 7)\n")
    other.python("train.py")
    other.flor("sync", "--push")
    trained.python("train.py", "--kwargs", "lr=0.4")
    assert "both sides are joined" in trained.flor("sync", "--push")
    other.flor("sync")
    assert {run["run_id"] for run in other.runs()} == {run["run_id"] for run in trained.runs()}
    assert len(other.runs()) == 5
    status = trained.git("status", "--porcelain", "--branch")
    assert status.startswith("## main")


def test_the_database_can_be_deleted(trained: Project) -> None:
    before = trained.flor("dataframe", "lr", "loss", "acc", "--csv")
    (trained.root / ".flor" / "flor.db").unlink()
    assert trained.flor("dataframe", "lr", "loss", "acc", "--csv") == before


def test_the_journals_come_back_from_the_branch(trained: Project) -> None:
    before = trained.flor("dataframe", "lr", "loss", "acc", "--csv")
    subprocess.run(["rm", "-rf", str(trained.root / ".flor")], check=True)
    trained.flor("sync")
    assert trained.flor("dataframe", "lr", "loss", "acc", "--csv") == before


def test_doctor(trained: Project) -> None:
    text = trained.flor("doctor")
    assert "3 runs on it" in text
    assert "problem" not in text
    (trained.root / ".git" / "HEAD").write_text("nonsense")
    assert "problem" in trained.flor("doctor", code=1)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["show", "nothing"], 1, "no run is called 'nothing'"),
        (["show", "-9"], 1, "there is no run -9"),
        (["sql", "drop table runs"], 1, "SELECT"),
        (["sql", "select * from read_csv('/etc/passwd')"], 1, "flor:"),
        (["dataframe", "acc", "--where", "acc >"], 1, "acc >"),
        (["dataframe", "acc", "--where", "ac > 1"], 1, "acc"),
        (["shwo"], 2, "Did you mean `flor show`?"),
        (["dataframe", "acc", "--csv", "--json"], 2, "choose one"),
    ],
)
def test_errors_are_one_line(trained: Project, words: list[str], code: int, message: str) -> None:
    done = trained.python("-m", "flor", *words, code=code)
    assert message.lower() in done.stderr.lower()
    assert "Traceback" not in done.stderr


def test_an_empty_project_says_what_to_type(project: Project) -> None:
    assert "import flor" in project.flor("runs")
    assert project.runs() == []


def test_help_names_every_command(project: Project) -> None:
    text = project.flor("--help")
    for command in ("runs", "show", "dataframe", "sql", "diff", "sync", "doctor", "completion"):
        assert f"  {command}" in text
        assert "Usage: flor" in project.flor(command, "--help")
    assert "_FLOR_COMPLETE" in project.flor("completion", "bash")


def test_the_branch_is_read_without_being_asked(trained: Project, tmp_path: Path) -> None:
    """A clone shows what the branch holds; without a database too."""
    clone = Project(tmp_path / "clone", trained.env)
    subprocess.run(["git", "clone", "-q", str(trained.root), str(clone.root)], check=True)
    assert len(clone.runs()) == 3
    for path in (clone.root / ".flor").glob("flor.db*"):
        path.unlink()
    assert len(clone.runs()) == 3
    assert len(clone.frame("loss")) == 18


def test_questions_leave_no_trace_where_nothing_was_recorded(folder: Project) -> None:
    for words in (["runs"], ["dataframe"], ["sql", "select * from runs"], ["doctor"]):
        folder.flor(*words)
    assert list(folder.root.iterdir()) == []


def test_doctor_of_a_project_without_runs_is_content(project: Project) -> None:
    findings = json.loads(project.flor("doctor", "--json"))
    assert {finding["level"] for finding in findings} == {"ok"}


def test_json_is_strict(project: Project) -> None:
    project.write("train.py", "import flor\nflor.log('d', {'a': float('nan'), 'b': [1, None]})\n")
    project.python("train.py")
    text = project.flor("dataframe", "d", "--json")
    (row,) = json.loads(text, parse_constant=lambda name: pytest.fail(name))
    assert row["d"] == {"a": None, "b": [1, None]}


def test_a_team_on_postgresql(project: Project, postgres_url: str) -> None:
    """The same answers from a server; set in the project, or in the environment."""
    project.write("flor.toml", f'database = "{postgres_url}"\nprojid = "team"\n')
    project.write("data.csv", "1,2\n")
    project.write("train.py", TRAIN)
    project.python("train.py")
    project.python("train.py", "--kwargs", "lr=0.2")
    assert len(project.frame("lr", "loss")) == 12
    assert {run["projid"] for run in project.runs()} == {"team"}
    query = "select lr, max(acc) as best from frame group by lr order by lr"
    best = json.loads(project.flor("sql", query, "--json"))
    assert [row["lr"] for row in best] == [0.1, 0.2]
    assert not (project.root / ".flor" / "flor.db").exists()
    assert json.loads(project.flor("sql", query, "--json", FLOR_DATABASE="")) == best


def test_a_journal_over_the_limit_is_shared_as_a_summary(project: Project, tmp_path: Path) -> None:
    project.write(
        "train.py",
        "import flor, random\nfor i in flor.loop('i', range(5000)):\n"
        "    flor.log('x', random.random())\nflor.log('top', 1)\n",
    )
    project.python("train.py", FLOR_JOURNAL_LIMIT_MB="0.01")
    clone = Project(tmp_path / "clone", project.env)
    subprocess.run(["git", "clone", "-q", str(project.root), str(clone.root)], check=True)
    assert clone.frame("x")[0]["x"] == project.frame("x")[-1]["x"]
    assert len(clone.frame("x")) == 1
    assert clone.frame("top")[0]["top"] == 1
    assert "summary" in clone.flor("show")


def test_the_status_of_a_run_is_the_runs_own(project: Project) -> None:
    """Even if some script logs a `status` of its own."""
    project.write("old.py", "import flor\nflor.log('status', 'warm')\nflor.log('seconds', -1)\n")
    project.write("new.py", "import flor\nflor.log('acc', 0.9)\n")
    project.python("old.py")
    project.python("new.py")
    clause = "status = 'finished' and seconds > 0 and acc > 0"
    rows = json.loads(project.flor("dataframe", "acc", "--where", clause, "--json"))
    assert [row["acc"] for row in rows] == [0.9]


def test_one_unreachable_remote_does_not_stop_a_sync(trained: Project, tmp_path: Path) -> None:
    hub = tmp_path / "hub.git"
    subprocess.run(["git", "init", "-q", "--bare", str(hub)], check=True)
    trained.git("remote", "add", "aaa", str(tmp_path / "nothing"))
    trained.git("remote", "add", "origin", str(hub))
    done = trained.python("-m", "flor", "sync", "--push")
    assert "aaa" in done.stderr
    assert "pushed" in done.stdout
