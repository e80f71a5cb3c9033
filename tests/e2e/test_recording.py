"""What a run leaves behind, however it goes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.e2e.conftest import Project

TRAIN = """
import flor
lr = flor.arg("lr", 0.1)
for epoch in flor.loop("epoch", range(3)):
    for step in flor.loop("step", range(2)):
        flor.log("loss", lr / (1 + epoch + step))
    flor.log("acc", epoch * 10)
flor.log("done", True)
"""


def records(project: Project, run: int = -1) -> list[list[object]]:
    """Records as [name, loop path with iterations, value]."""
    lines = project.journals()[run]
    sites = {x["id"]: x["name"] for x in lines if isinstance(x, dict) and x["t"] == "site"}
    loops = {x["id"]: x for x in lines if isinstance(x, dict) and x["t"] == "loop"}

    def path(loop: int, iteration: int) -> str:
        if loop == 0:
            return ""
        above = path(loops[loop]["parent"], loops[loop]["iteration"])
        return f"{above}/{loops[loop]['name']}{iteration}"

    return [[sites[x[0]], path(x[1], x[2]), x[3]] for x in lines if isinstance(x, list)]


def test_records_carry_their_loops(project: Project) -> None:
    project.write("train.py", TRAIN)
    done = project.python("train.py")
    assert done.stdout == done.stderr == ""
    assert records(project) == [
        ["lr", "", 0.1],
        ["loss", "/epoch0/step0", 0.1],
        ["loss", "/epoch0/step1", 0.05],
        ["acc", "/epoch0", 0],
        ["loss", "/epoch1/step0", 0.05],
        ["loss", "/epoch1/step1", 0.1 / 3],
        ["acc", "/epoch1", 10],
        ["loss", "/epoch2/step0", 0.1 / 3],
        ["loss", "/epoch2/step1", 0.025],
        ["acc", "/epoch2", 20],
        ["done", "", True],
    ]
    assert [end["status"] for end in project.lines("end")] == ["finished"]


def test_a_run_describes_itself(project: Project) -> None:
    project.write("sub/train.py", TRAIN)
    project.python("sub/train.py", "--kwargs", "lr=0.5", "--epochs", "3")
    (run,) = project.lines("run")
    assert run["filename"] == "sub/train.py"
    assert run["projid"] == "project"
    assert run["argv"] == ["sub/train.py", "--kwargs", "lr=0.5", "--epochs", "3"]
    assert run["python"] == ".".join(map(str, sys.version_info[:3]))
    (version,) = project.lines("version")
    assert version["user_branch"] == "main"
    assert version["user_commit"] == project.git("rev-parse", "HEAD").strip()
    assert project.git("show", f"{version['commit']}:sub/train.py") == TRAIN
    (env,) = project.lines("env")
    assert "pytest" in env["packages"]
    assert env["devices"][0]["kind"] == "cpu"
    assert project.lines("seeds")


def test_git_state_stays_as_it_was(project: Project) -> None:
    project.write("train.py", TRAIN)
    before = project.git("status", "--porcelain=v2", "--branch")
    project.python("train.py")
    assert project.git("status", "--porcelain=v2", "--branch") == before
    assert "flor" in project.git("branch", "--list", "flor")


def test_a_folder_without_git(folder: Project) -> None:
    folder.write("train.py", TRAIN)
    assert folder.python("train.py").stderr == ""
    assert len(folder.lines("version")) == 1
    assert (folder.root / ".flor" / "repo.git").is_dir()
    assert not (folder.root / ".git").exists()


@pytest.mark.parametrize(
    ("body", "code", "status", "error"),
    [
        ("pass", 0, "finished", None),
        ("sys.exit(0)", 0, "finished", None),
        ("sys.exit(3)", 3, "failed", "exit code 3"),
        ("sys.exit('no data')", 1, "failed", "no data"),
        ("1 / 0", 1, "failed", "ZeroDivisionError: division by zero"),
        ("raise KeyboardInterrupt", -2, "killed", "KeyboardInterrupt"),
        ("os._exit(0)", 0, "finished", None),
        ("os._exit(4)", 4, "failed", "exit code 4"),
        ("\ntry:\n    sys.exit(3)\nexcept SystemExit:\n    pass", 0, "finished", None),
    ],
)
def test_status_is_true(
    project: Project, body: str, code: int, status: str, error: str | None
) -> None:
    project.write("train.py", f"import flor, sys, os\nflor.log('a', 1)\n{body}\n")
    project.python("train.py", code=code)
    (end,) = project.lines("end")
    assert (end["status"], end["error"]) == (status, error)
    assert (end["traceback"] is not None) == ((error is not None and ":" in error) or code == -2)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_signal_loses_no_record(project: Project, number: int) -> None:
    project.write(
        "train.py",
        "import flor\nfor i in flor.loop('i', range(10**9)):\n"
        "    flor.log('x', i)\n    print(i, flush=True)\n",
    )
    with project.start("train.py") as process:
        assert process.stdout is not None
        for _ in range(500):
            process.stdout.readline()
        process.send_signal(number)
        rest = process.stdout.read().split()
    printed = int(rest[-1]) if rest else 499
    logged = [record[2] for record in records(project)]
    assert logged == list(range(len(logged)))
    assert len(logged) >= printed + 1
    assert project.lines("end") == []
    (run,) = project.runs()
    assert run["status"] == "killed"


def test_loops_behave_as_their_iterables(project: Project) -> None:
    project.write(
        "train.py",
        """
import flor
assert len(flor.loop("a", [1, 2, 3])) == 3
assert list(flor.loop("a", [1, 2, 3])) == [1, 2, 3]
assert next(flor.loop("b", iter("xyz"))) == "x"
try:
    len(flor.loop("c", (x for x in range(3))))
    raise SystemExit("a generator has no length")
except TypeError:
    pass
for x in flor.loop("d", range(5)):
    if x == 1:
        continue
    if x == 3:
        break
    flor.log("x", x)
try:
    for x in flor.loop("e", range(5)):
        raise ValueError("from the body")
except ValueError:
    pass
def failing():
    yield 1
    raise RuntimeError("from the iterable")
try:
    for x in flor.loop("f", failing()):
        pass
except RuntimeError:
    pass
flor.log("top", "level")
for a, b in zip(flor.loop("g", range(2)), flor.loop("h", "uv")):
    pass
for name in flor.loop("dataset", ["mnist", "cifar"]):
    flor.log("size", len(name))
""",
    )
    assert project.python("train.py").stderr == ""
    assert records(project) == [
        ["x", "/d0", 0],
        ["x", "/d2", 2],
        ["top", "", "level"],
        ["size", "/dataset0", 5],
        ["size", "/dataset1", 5],
    ]
    ends = {x["id"]: (x["n"], x["done"]) for x in project.lines("loop_end")}
    names = {x["id"]: x["name"] for x in project.lines("loop")}
    by_name = {names[number]: end for number, end in ends.items()}
    assert by_name["a"] == (3, True)
    assert by_name["d"] == (4, False)
    assert by_name["e"] == (1, False)
    assert by_name["f"] == (1, False)
    labels = {x["value"] for x in project.lines("value")}
    assert labels == {"mnist", "cifar"}


def test_times_of_loops_are_recorded(project: Project) -> None:
    project.write(
        "train.py",
        """
import flor, time
for epoch in flor.loop("epoch", range(3)):
    for step in flor.loop("step", range(2)):
        time.sleep(0.02)
    time.sleep(0.05)
time.sleep(0.05)
""",
    )
    project.python("train.py")
    names = {x["id"]: x["name"] for x in project.lines("loop")}
    seconds: dict[str, float] = {}
    for times in project.lines("times"):
        seconds[names[times["loop"]]] = seconds.get(names[times["loop"]], 0) + times["sum"]
    assert 0.27 <= seconds["epoch"] <= 3
    assert 0.12 <= seconds["step"] <= seconds["epoch"]
    (run,) = project.runs()
    assert run["suffix_seconds"] >= 0.05


def test_forked_and_spawned_children(project: Project) -> None:
    """Children log into the same run, once, under the loop that they were started in."""
    project.write(
        "train.py",
        """
import multiprocessing as mp, sys
import flor
lr = flor.arg("lr", 0.1)
flor.log("module_level", 1)

def work(i):
    return flor.log("child", i)

if __name__ == "__main__":
    for method in flor.loop("method", sys.argv[1:]):
        with mp.get_context(method).Pool(2) as pool:
            assert pool.map(work, range(4)) == [0, 1, 2, 3]
            pool.close()
            pool.join()
    flor.log("end", lr)
""",
    )
    project.python("train.py", "fork", "spawn", "forkserver", "--kwargs", "lr=0.3")
    names = [record[0] for record in records(project)]
    assert names.count("module_level") == 1
    rows = project.frame("child")
    assert sorted(row["child"] for row in rows) == sorted([0, 1, 2, 3] * 3)
    fork = [row for row in rows if row.get("method") == 0]
    assert sorted(row["child"] for row in fork) == [0, 1, 2, 3]
    assert project.frame("end")[0]["end"] == 0.3


def test_only_rank_zero_records(project: Project) -> None:
    project.write("train.py", TRAIN)
    project.python("train.py", RANK="1", WORLD_SIZE="2")
    assert not (project.root / ".flor").exists()
    project.python("train.py", RANK="0", WORLD_SIZE="2")
    project.python("train.py", RANK="1", WORLD_SIZE="2", FLOR_ALL_RANKS="1")
    assert [project.lines("run", run)[0]["rank"] for run in (0, 1)] == [0, 1]


def test_disabled(project: Project) -> None:
    project.write("train.py", TRAIN + "print(lr)")
    done = project.python("train.py", "--kwargs", "lr=0.7", FLOR_DISABLE="1")
    assert done.stdout == "0.7\n"
    assert not (project.root / ".flor").exists()


def as_nobody(project: Project, script: str) -> subprocess.CompletedProcess[str]:
    """Root may write anywhere; permissions mean something to nobody, who may not reach Python."""
    code = (
        "import flor, flor.record.recording, flor.record.environment, os, pkgutil, runpy; "
        f"os.setgid(65534); os.setuid(65534); runpy.run_path({script!r}, run_name='__main__')"
    )
    return project.python("-c", code, HOME="/nonexistent")


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user to lose the right to write")
def test_a_read_only_folder() -> None:
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are closed to others
        project = Project(Path(name))
        project.write("train.py", TRAIN + "print('trained')")
        project.root.chmod(0o555)
        done = as_nobody(project, "train.py")
        assert done.stdout == "trained\n"
        assert done.stderr.count("flor:") == 1
        assert "not recorded: [Errno 13]" in done.stderr
        assert [path.name for path in project.root.iterdir()] == ["train.py"]


def test_a_full_disk(project: Project) -> None:
    """RLIMIT_FSIZE makes writes fail as a full disk does; one warning, and training goes on."""
    project.write(
        "train.py",
        """
import flor, resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
flor.log("before", 1)
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (20000, hard))
for i in flor.loop("i", range(2000)):
    flor.log("x", i)
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
print("trained")
""",
    )
    done = project.python("train.py")
    assert done.stdout == "trained\n"
    assert done.stderr.count("flor:") == 1, done.stderr
    assert [row["x"] for row in project.frame("x")] == list(range(2000))


def test_a_broken_repository(project: Project) -> None:
    project.write("train.py", TRAIN + "print('trained')")
    (project.root / ".git" / "HEAD").write_text("nonsense\n")
    done = project.python("train.py")
    assert done.stdout == "trained\n"
    assert done.stderr.startswith("flor: ")
    assert len(records(project)) == 11


def test_values_keep_their_types(project: Project) -> None:
    project.write(
        "train.py",
        """
import flor, numpy as np, datetime, enum, pathlib
flor.log("nan", float("nan")); flor.log("inf", -float("inf")); flor.log("tiny", 5e-324)
flor.log("big", 2**80); flor.log("true", True); flor.log("none", None); flor.log("text", "a\\n\\ud800é")
flor.log("list", [1, 2.5, None, {"a": (1, 2)}]); flor.log("np", np.float32(0.1))
flor.log("npi", np.int64(7)); flor.log("npb", np.bool_(True)); flor.log("zero", np.array(3.5))
flor.log("array", np.arange(6.0).reshape(2, 3)); flor.log("path", pathlib.Path("a/b"))
flor.log("odd", object()); flor.log("odd", object()); flor.log("when", datetime.date(2026, 1, 2))
class Broken:
    def __repr__(self): raise RuntimeError
flor.log("broken", Broken())
assert flor.log("same", [1]) == [1]
""",
    )
    done = project.python("train.py")
    values = {record[0]: record[2] for record in records(project)}
    assert values["nan"] != values["nan"]
    assert values["inf"] == -float("inf")
    assert values["tiny"] == 5e-324
    assert values["big"] == 2**80
    assert values["true"] is True
    assert values["none"] is None
    assert values["text"] == "a\n\ud800é"
    assert values["list"] == [1, 2.5, None, {"a": [1, 2]}]
    assert values["np"] == 0.10000000149011612
    assert values["npi"] == 7
    assert values["npb"] is True
    assert values["zero"] == 3.5
    assert values["array"]["preview"]["shape"] == [2, 3]
    assert values["path"] == "a/b"
    assert values["when"] == "2026-01-02"
    assert done.stderr.count("'odd'") == 1
    assert done.stderr.count("'broken'") == 1


def test_data_files_are_recorded(project: Project) -> None:
    project.write("data/train.csv", "1,2,3\n")
    project.write("data/more.bin", "x" * 5000)
    project.write(
        "train.py",
        """
import flor
rows = open("data/train.csv").read()
flor.data("data/more.bin")
open("out.txt", "w").write(rows)
open("out.txt").read()
flor.data("missing.csv")
flor.data("data")
flor.log("rows", len(rows))
""",
    )
    done = project.python("train.py")
    assert "missing.csv" in done.stderr
    files = {x["path"]: x for x in project.lines("data")}
    assert set(files) == {"data/train.csv", "data/more.bin", "missing.csv", "data"}
    assert files["data/train.csv"]["size_bytes"] == 6
    assert files["data/train.csv"]["digest"].startswith("blake2b:")
    assert files["data/more.bin"]["declared"] is True
    assert files["missing.csv"]["note"] == "missing"
    assert files["data"]["digest"].startswith("tree:")


def test_data_that_worker_processes_open(project: Project) -> None:
    project.write("data/a.txt", "a")
    project.write(
        "train.py",
        """
import flor, os, time
flor.log("x", 1)
pid = os.fork()
if pid == 0:
    open("data/a.txt").read()
    os._exit(0)
os.waitpid(pid, 0)
""",
    )
    project.python("train.py")
    assert [x["path"] for x in project.lines("data")] == ["data/a.txt"]
    assert project.lines("end")[0]["status"] == "finished"


def test_runs_at_the_same_time_all_land(project: Project) -> None:
    project.write("train.py", TRAIN)
    processes = [project.start("train.py") for _ in range(6)]
    for process in processes:
        _, err = process.communicate(timeout=120)
        assert (process.returncode, err) == (0, "")
    subjects = project.git("log", "--format=%s", "flor").splitlines()
    assert sum(subject.startswith("Run ") for subject in subjects) == 6
    assert len(project.runs()) == 6
    assert len({row["run_id"] for row in project.frame("done")}) == 6


def test_identical_code_makes_no_second_version(project: Project) -> None:
    project.write("train.py", TRAIN)
    project.python("train.py")
    project.python("train.py")
    first, second = (project.lines("version", run)[0]["commit"] for run in (0, 1))
    assert first == second
    project.write("train.py", TRAIN + "\n")
    project.python("train.py")
    assert project.lines("version")[0]["commit"] != first


def test_an_edit_during_the_run_is_not_the_code_that_ran(project: Project) -> None:
    project.write(
        "train.py",
        "import flor, pathlib\nflor.log('a', 1)\npathlib.Path('train.py').write_text('edited')\n",
    )
    project.python("train.py")
    (version,) = project.lines("version")
    assert "import flor" in project.git("show", f"{version['commit']}:train.py")


def test_a_killed_run_joins_the_branch_later(project: Project) -> None:
    project.write(
        "train.py", "import flor, os, signal\nflor.log('a', 1)\nos.kill(os.getpid(), 9)\n"
    )
    project.python("train.py", code=-9)
    assert "Run" not in project.git("log", "--format=%s", "flor")
    project.flor("sync")
    assert "Run" in project.git("log", "--format=%s", "flor")


def test_the_run_in_progress_is_there(project: Project) -> None:
    project.write(
        "train.py",
        "import flor, sys\nfor i in flor.loop('i', range(3)):\n    flor.log('x', i)\n"
        "print('ready', flush=True)\nimport time; time.sleep(60)\n",
    )
    with project.start("train.py") as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            assert [run["status"] for run in project.runs()] == ["running"]
            assert [row["x"] for row in project.frame("x")] == [0, 1, 2]
        finally:
            process.kill()
    deadline = time.time() + 10
    while project.runs()[0]["status"] != "killed" and time.time() < deadline:
        time.sleep(0.1)
    assert project.runs()[0]["status"] == "killed"


def test_commit_closes_a_run(project: Project) -> None:
    project.write(
        "train.py",
        "import flor\nflor.log('a', 1)\nfirst = flor.commit()\nflor.log('a', 2)\n"
        "second = flor.commit()\nprint(first != second, flor.commit())\n",
    )
    assert project.python("train.py").stdout == "True None\n"
    assert [row["a"] for row in project.frame("a")] == [1, 2]


def test_querying_inside_a_run(project: Project) -> None:
    project.write(
        "train.py",
        "import flor\nflor.log('a', 1)\nprint(flor.dataframe('a')['a'].tolist())\n"
        "flor.log('a', 2)\nprint(flor.dataframe('a')['a'].tolist())\n",
    )
    assert project.python("train.py").stdout == "[1]\n[1, 2]\n"
    assert [run["status"] for run in project.runs()] == ["finished"]


def test_torch_values_and_loaders(project: Project) -> None:
    torch = pytest.importorskip("torch", reason="torch is not in the test environment")
    assert torch
    project.write(
        "train.py",
        """
import flor, torch
from torch.utils.data import DataLoader
loader = DataLoader(list(range(8)), batch_size=2, num_workers=2)
loop = flor.loop("step", loader)
assert len(loop) == 4
for batch in loop:
    flor.log("loss", batch.float().mean())
flor.log("weights", torch.ones(2, 2, dtype=torch.bfloat16))
""",
    )
    assert project.python("train.py").stderr == ""
    assert [row["loss"] for row in project.frame("loss")] == [0.5, 2.5, 4.5, 6.5]


def test_json_lines_of_a_journal_are_lines(project: Project) -> None:
    project.write("train.py", TRAIN)
    project.python("train.py")
    for path in (project.root / ".flor" / "runs").glob("*/journal.jsonl"):
        for line in path.read_bytes().split(b"\n")[:-1]:
            json.loads(line)


def test_commit_inside_a_loop(project: Project) -> None:
    """The loop goes on into the next run, which names it again."""
    project.write(
        "train.py",
        """
import flor
for seed in flor.loop("seed", ["a", "b", "c"]):
    for epoch in flor.loop("epoch", range(2)):
        flor.log("x", seed + str(epoch))
    flor.log("y", seed)
    flor.commit()
""",
    )
    assert project.python("train.py").stderr == ""
    rows = project.frame("x", "y")
    assert [(r["seed"], r["seed_value"], r["epoch"], r["x"], r["y"]) for r in rows] == [
        (0, "a", 0, "a0", "a"),
        (0, "a", 1, "a1", "a"),
        (1, "b", 0, "b0", "b"),
        (1, "b", 1, "b1", "b"),
        (2, "c", 0, "c0", "c"),
        (2, "c", 1, "c1", "c"),
    ]
    assert len({row["run_id"] for row in rows}) == 3


def test_a_fork_in_a_loop_with_both_sides_going_on(project: Project) -> None:
    project.write(
        "train.py",
        """
import flor, os
for i in flor.loop("i", range(6)):
    flor.log("v", i)
    if i == 2:
        pid = os.fork()
    if i >= 2 and pid == 0:
        flor.log("child", 10 * i)
if pid == 0:
    os._exit(0)
os.waitpid(pid, 0)
flor.log("end", 1)
""",
    )
    project.python("train.py")
    rows = project.frame("child")
    assert [(row["i"], row["child"]) for row in rows] == [(2, 20), (3, 30), (4, 40), (5, 50)]
    assert [row["i"] for row in project.frame("v")] == [0, 1, 2, 3, 3, 4, 4, 5, 5]
    names = {x["id"]: x["name"] for x in project.lines("loop")}
    assert [names[x["id"]] for x in project.lines("loop_end")] == ["i"]


def test_threads_that_begin_together_share_one_run(project: Project) -> None:
    project.write(
        "train.py",
        """
import flor, threading
barrier = threading.Barrier(4)
def work(i):
    barrier.wait()
    flor.log("x", i)
threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]
""",
    )
    project.python("train.py")
    assert sorted(row["x"] for row in project.frame("x")) == [0, 1, 2, 3]
    assert len(project.runs()) == 1


def test_signal_handlers_may_log(project: Project) -> None:
    """Whatever is interrupted, each value stands under its own name."""
    project.write(
        "train.py",
        """
import flor, signal, time
count = 0
def handler(*_):
    global count
    count = mine = count + 1  # the handler itself may be interrupted by the next signal
    flor.log(f"sig{mine % 500}", 1000000 + mine)
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.0003, 0.0003)
end, n = time.time() + 2, 0
while time.time() < end:
    for i in flor.loop("i", range(3)):
        n += 1
        flor.log(f"main{n % 5000}", n)
signal.setitimer(signal.ITIMER_REAL, 0)
""",
    )
    assert project.python("train.py").stderr == ""
    lines = project.journals()[0]
    sites: dict[int, str] = {}
    for line in lines:
        if isinstance(line, list):
            name, value = sites[line[0]], line[3]
            expected = f"sig{(value - 1000000) % 500}" if value > 1000000 else f"main{value % 5000}"
            assert name == expected
        elif line["t"] == "site":
            assert line["id"] not in sites
            sites[line["id"]] = line["name"]


def test_a_copy_of_the_folder_does_not_end_the_run(project: Project) -> None:
    """Reading the lock file from the run itself does not drop the lock."""
    project.write(
        "train.py",
        "import flor, shutil, sys\nflor.log('a', 1)\nflor.data('.')\n"
        "shutil.copytree('.', '../copy')\nprint('ready', flush=True)\nsys.stdin.read()\n",
    )
    with subprocess.Popen(
        [sys.executable, "train.py"],
        cwd=project.root,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert [run["status"] for run in project.runs()] == ["running"]
        process.communicate(b"")
    assert [run["status"] for run in project.runs()] == ["finished"]


def test_a_script_that_closes_descriptors(project: Project) -> None:
    project.write(
        "train.py",
        """
import flor, os, resource
flor.log("a", 1)
os.closerange(3, 4096)
files = [open(f"checkpoint{i}.bin", "wb", buffering=0) for i in range(20)]
for i in flor.loop("i", range(5)):
    flor.log("b", i)
for f in files:
    f.close()
print({os.path.getsize(f.name) for f in files})
""",
    )
    for prefix in ("", "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"):
        script = (project.root / "train.py").read_text()
        project.write("train.py", prefix + script)
        done = project.python("train.py")
        assert (done.stdout, done.stderr) == ("{0}\n", "")
        assert project.lines("end")[0]["status"] == "finished"
    assert [row["b"] for row in project.frame("b")] == [0, 1, 2, 3, 4] * 2


def test_items_are_not_kept_alive(project: Project) -> None:
    project.write(
        "train.py",
        """
import flor, weakref
class Batch: pass
def batches():
    for _ in range(3):
        yield Batch()
for batch in flor.loop("i", batches()):
    seen = weakref.ref(batch)
    del batch
    assert seen() is None
class Loader:
    def __iter__(self): return iter(range(2))
    def __len__(self): raise SystemExit("nobody asked")
assert list(flor.loop("j", Loader().__iter__())) == [0, 1]
for _ in flor.loop("k", Loader()): pass
""",
    )
    project.python("train.py")


def test_exit_codes_stay_what_they_are(project: Project) -> None:
    bodies = {
        "try:\n    sys.exit(3)\nexcept SystemExit as e:\n    sys.exit(e)": 3,
        "exit(2)": 2,
        "quit()": 0,
        "sys.exit(True)": 1,
        "sys.exit(None)": 0,
        "import threading; t = threading.Thread(target=lambda: sys.exit(4)); t.start(); t.join()": 0,
        "import pickle; e = None\ntry:\n    sys.exit(7)\nexcept SystemExit as x:\n"
        "    assert type(x) is SystemExit\n    sys.exit(pickle.loads(pickle.dumps(x)).code)": 7,
    }
    for body, code in bodies.items():
        project.write("train.py", f"import flor, sys\nflor.log('a', 1)\n{body}\n")
        project.python("train.py", code=code)
        assert project.lines("end")[0]["exit_code"] == code
        assert project.lines("end")[0]["status"] == ("failed" if code else "finished")


def test_a_script_with_modules_named_like_pythons_own(project: Project) -> None:
    for name in ("secrets", "datetime", "random", "zlib", "subprocess", "array"):
        project.write(f"{name}.py", f"print('own {name}')\nkey = 1\n")
    project.write(
        "train.py", "import flor\nflor.log('a', 1)\nimport secrets, random\nassert secrets.key\n"
    )
    done = project.python("train.py")
    assert (done.stdout, done.stderr) == ("own secrets\nown random\n", "")
    assert project.lines("end")[0]["status"] == "finished"


@pytest.mark.parametrize("ending", ["pass", "os._exit(0)"])
def test_a_git_that_hangs_does_not_hold_the_script(project: Project, ending: str) -> None:
    fake = project.write("bin/git", "#!/bin/sh\nexec sleep 100\n")
    fake.chmod(0o755)
    project.write("train.py", f"import flor, os\nflor.log('a', 1)\n{ending}\n")
    started = time.monotonic()
    done = project.python(
        "train.py",
        PATH=f"{fake.parent}:{os.environ['PATH']}",
        FLOR_SNAPSHOT_SECONDS="3",
    )
    assert time.monotonic() - started < 30
    assert done.stderr.count("flor:") <= 1
    assert len(records(project)) == 1


def test_nothing_raises_into_the_training(project: Project) -> None:
    project.write(
        "train.py",
        """
import flor, os, sys
class Name:
    def __repr__(self): raise RuntimeError
    __str__ = __repr__
class Odd(type):
    __hash__ = None
class Item(metaclass=Odd): pass
flor.log(Name(), 1)
flor.log(["unhashable"], 1)
list(flor.loop(Name(), range(2)))
list(flor.loop("odd", [Item()]))
flor.log("r", range(10**10))
os.mkdir("gone"); os.chdir("gone"); os.rmdir("../gone")
flor.data("x.csv")
def deep(n):
    try:
        return deep(n + 1)
    except RecursionError:
        flor.log("depth", n)
        return n
print(deep(0) > 10)
""",
    )
    assert project.python("train.py").stdout == "True\n"


def test_a_record_after_the_end_is_told(project: Project) -> None:
    project.write(
        "train.py",
        "import atexit\natexit.register(lambda: flor.log('late', 1))\nimport flor\nflor.log('a', 1)\n",
    )
    assert "'late'" in project.python("train.py").stderr


def test_a_disk_that_fills_up_while_threads_log(project: Project) -> None:
    project.write(
        "train.py",
        """
import flor, resource, signal, threading
import flor.record.journal
flor.record.journal.RETRY_SECONDS = 0.05
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
flor.log("start", 1)
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
def work(k):
    for i in range(3000):
        flor.log("x", k * 3000 + i)
        if k == 0 and i % 500 == 250:
            resource.setrlimit(resource.RLIMIT_FSIZE, (20000 + 60 * i, hard))
        if k == 0 and i % 500 == 0:
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
""",
    )
    project.python("train.py")
    assert sorted(row["x"] for row in project.frame("x")) == list(range(12000))


def test_a_loop_that_yields_something_else_the_second_time(project: Project) -> None:
    """What stands beside a value is what its own loop yielded."""
    project.write(
        "train.py",
        """
import flor
for ds in flor.loop("ds", ["a", "b"]):
    flor.log("m", ds + "1")
for ds in flor.loop("ds", ["c", "d"]):
    flor.log("m", ds + "2")
    flor.log("n", ds)
for epoch in flor.loop("epoch", range(2)):
    flor.log("e", epoch)
for epoch in flor.loop("epoch", range(2, 4)):
    flor.log("e", epoch)
""",
    )
    project.python("train.py")
    rows = project.frame("m", "n")
    found = [(row["ds"], row["ds_value"], row["m"], row["n"]) for row in rows]
    assert sorted(found, key=str) == [
        (0, "a", "a1", None),
        (0, "c", "c2", "c"),
        (1, "b", "b1", None),
        (1, "d", "d2", "d"),
    ]
    assert sorted((row["epoch_value"], row["e"]) for row in project.frame("e")) == [
        (0, 0),
        (1, 1),
        (2, 2),
        (3, 3),
    ]


def test_cells_of_an_interactive_session(project: Project) -> None:
    """Each commit closes a run; an error in one cell fails none; what was typed is kept."""
    cells = [
        "import flor",
        "lr = flor.arg('lr', 0.5)",
        "for i in flor.loop('i', range(2)): flor.log('x', lr * i)",
        "",
        "1 / 0",
        "flor.commit()",
        "flor.log('y', 3)",
    ]
    process = subprocess.run(
        [sys.executable, "-m", "IPython", "--no-banner", "--simple-prompt", "--no-confirm-exit"],
        cwd=project.root,
        env={**project.environment, "IPYTHONDIR": str(project.root.parent / "ipython")},
        input="\n".join(cells) + "\n",
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert "ZeroDivisionError" in process.stdout + process.stderr
    assert [(run["filename"], run["status"]) for run in project.runs()] == [
        ("session", "finished"),
        ("session", "finished"),
    ]
    assert [row["x"] for row in project.frame("x") if row["i"] is not None] == [0, 0.5]
    first, second = (project.lines("cells", run)[0] for run in (0, 1))
    assert first["source"][first["first"]] == "lr = flor.arg('lr', 0.5)"
    assert second["source"][second["first"]] == "flor.log('y', 3)"


def test_a_loop_left_open_ends_with_the_one_around_it(project: Project) -> None:
    """Taking one batch by hand leaves an iterator that never ends."""
    project.write(
        "train.py",
        """
import flor
for e in flor.loop("e", range(2)):
    it = iter(flor.loop("s", range(3)))
    next(it)
    flor.log("w", e)
flor.log("after", 0)
for k in flor.loop("k", range(2)):
    flor.log("kk", k)
""",
    )
    project.python("train.py")
    assert records(project) == [
        ["w", "/e0/s0", 0],
        ["w", "/e1/s0", 1],
        ["after", "", 0],
        ["kk", "/k0", 0],
        ["kk", "/k1", 1],
    ]


def test_keys_and_passwords_stay_out_of_versions(project: Project) -> None:
    kept = ["secrets.py", ".env.example", "data.csv", "tokenizer.json"]
    withheld = [".env", "prod.env", ".envrc", ".ssh/config", ".docker/config.json", "a/token.txt"]
    for name in [*kept, *withheld]:
        project.write(name, "x\n")
    project.write("train.py", "import flor\nflor.log('a', 1)\n")
    project.python("train.py")
    (version,) = project.lines("version")
    files = project.git("ls-tree", "-r", "--name-only", version["commit"]).splitlines()
    assert set(files) == {*kept, "README", "train.py"}
    assert {item["path"] for item in version["left_out"]} == set(withheld)
