"""Whatever goes on beside them, checkpoints do a training no harm."""

from __future__ import annotations

import signal
import textwrap

import pytest

from tests.e2e.conftest import Project
from tests.e2e.training import BEGIN, states, taken, train

NUMBERS = """
import os, random
random.seed(3)
weights = [0.0] * 1000
with flor.checkpointing(weights=weights, **globals().get("more", {})):
    for epoch in flor.loop("epoch", range(4)):
        for step in flor.loop("step", range(5)):
            weights[step] += random.random()
        print(epoch, sum(weights).hex())
print("done", random.random().hex())
sys.exit(7)
"""

HARMS = {
    "a state_dict that raises": """
class Bad:
    def state_dict(self): raise RuntimeError("no state for you")
    def load_state_dict(self, state): pass
more = {"bad": Bad()}
""",
    "a state_dict that returns garbage": """
class Bad:
    def state_dict(self): return lambda: 3
    def load_state_dict(self, state): pass
more = {"bad": Bad()}
""",
    "a state_dict that exits": """
class Bad:
    def state_dict(self): raise RecursionError("deep")
    def load_state_dict(self, state): pass
more = {"bad": Bad()}
""",
    "objects that hold no state": """
import threading
more = {"none": None, "number": 3, "text": "a" * 10, "function": lambda: 3, "module": sys,
        "type": dict, "file": open(__file__), "lock": threading.Lock(), "stream": sys.stdout}
""",
    "an object that cannot be asked for anything": """
class Bad:
    def __getattr__(self, name): raise RuntimeError("do not ask")
    def __eq__(self, other): raise RuntimeError("do not compare")
    def __hash__(self): raise RuntimeError("do not hash")
    def __bool__(self): raise RuntimeError("do not judge")
    def __repr__(self): raise RuntimeError("do not print")
    def __len__(self): raise RuntimeError("do not count")
more = {"bad": Bad(), "inside": [Bad()]}
""",
    "a list that holds itself": "ring = []; ring.append(ring)\nmore = {'ring': ring}\n",
    "data nested very deeply": """
deep = []
for _ in range(5000): deep = [deep]
more = {"deep": deep}
""",
    "half a surrogate pair": "more = {'text': ['\\ud800'], 'keys': {'\\udfff': 1, (1, 'a'): 2}}\n",
    "numbers of all kinds": "more = {'odd': [float('nan'), float('inf'), -0.0, 10**400, 1j, True]}\n",
}


@pytest.mark.parametrize("harm", HARMS)
def test_training_goes_on_whatever_the_objects_are(project: Project, harm: str) -> None:
    project.write("train.py", BEGIN + HARMS[harm] + NUMBERS)
    without = project.python("train.py", code=7, FLOR_DISABLE="1")

    recorded = project.python("train.py", code=7, FLOR_OVERHEAD="inf")

    assert recorded.stdout == without.stdout
    assert "Traceback" not in recorded.stderr
    assert len(recorded.stderr.splitlines()) == len(set(recorded.stderr.splitlines()))
    look = "import flor; print(len(flor.load(epoch=3)['weights']))"
    assert project.python("-c", look, FLOR_DISABLE="1").stdout == "1000\n"


def test_training_goes_on_where_objects_cannot_be_written(project: Project) -> None:
    """As on a disk that is read-only: a file is where the folder would be."""
    project.write("train.py", BEGIN + NUMBERS)
    without = project.python("train.py", code=7, FLOR_DISABLE="1").stdout
    project.write(".flor/objects", "not a folder")

    done = project.python("train.py", code=7, FLOR_OVERHEAD="inf")

    assert done.stdout == without
    assert 1 <= done.stderr.count("flor: ") <= 2
    assert "objects" in done.stderr
    assert taken(project) == []
    assert project.runs()[-1]["status"] == "failed"


def test_training_goes_on_where_the_disk_is_full(project: Project) -> None:
    """A limit on the size of files stands for the disk: the write fails in the middle."""
    project.write(
        "train.py",
        BEGIN
        + "import resource, signal\n"
        + "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        + "resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))\n"
        + "import numpy as np\n"
        + "more = {'big': np.random.default_rng(0).random(1_000_000)}\n"
        + NUMBERS,
    )
    without = project.python("train.py", code=7, FLOR_DISABLE="1").stdout

    done = project.python("train.py", code=7, FLOR_OVERHEAD="inf")

    assert done.stdout == without
    assert 1 <= done.stderr.count("flor: ") <= 2
    assert taken(project) == []
    left = [path for path in (project.root / ".flor/objects").rglob("*") if path.is_file()]
    assert left == []


def test_ten_thousand_small_tensors_are_few_files(project: Project) -> None:
    train(
        project,
        """
        import torch
        many = [torch.zeros(3) for _ in range(10_000)]
        with flor.checkpointing(many=many):
            for epoch in flor.loop("epoch", range(2)):
                for tensor in many:
                    tensor += 1
        """,
    )
    files = [path for path in (project.root / ".flor/objects").rglob("*") if path.is_file()]
    look = "import flor; s = flor.load(epoch=0)['many']; print(len(s), {float(x.sum()) for x in s})"

    assert len(files) < 20
    assert project.python("-c", look, FLOR_DISABLE="1").stdout == "10000 {3.0}\n"


FORKS = {
    "os.fork": """
        pid = os.fork()
        if pid == 0:
            flor.log("child", epoch)
            os._exit(0)
        os.waitpid(pid, 0)
    """,
    "a child that goes through the loop's rest": """
        pid = os.fork()
        if pid == 0:
            for step in flor.loop("inner", range(2)):
                big[:] = -1
            sys.exit(0)
        os.waitpid(pid, 0)
    """,
    "a pool of forked processes": """
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map(abs, range(4)) == [0, 1, 2, 3]
    """,
    "a pool of spawned processes": """
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            assert pool.map(abs, range(4)) == [0, 1, 2, 3]
    """,
    "subprocess": """
        subprocess.run([sys.executable, "-c", "import flor; flor.log('x', 1)"], check=True)
    """,
    "threads": """
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
    """,
}


@pytest.mark.parametrize("fork", FORKS)
def test_processes_and_threads_beside_the_writing_do_no_harm(project: Project, fork: str) -> None:
    """16 MB are being written while they start."""
    body = textwrap.indent(textwrap.dedent(FORKS[fork]), " " * 12)
    project.write(
        "train.py",
        f"""
import multiprocessing, os, subprocess, sys, threading
import numpy as np, flor

def work():
    for item in flor.loop("item", range(3)):
        flor.log("seen", item)

def main():
    big = np.zeros(2_000_000)
    with flor.checkpointing(big=big):
        for epoch in flor.loop("epoch", range(4)):
            for step in flor.loop("step", range(2)):
                big[:] = np.arange(big.size) + epoch
{body}
        print("end", flush=True)

if __name__ == "__main__":
    main()
""",
    )
    done = project.python("train.py", FLOR_OVERHEAD="inf")

    assert done.stdout == "end\n"
    assert done.stderr == ""
    found = [line["iteration"] for line in project.lines("checkpoint", 0) if line["boundary"]]
    assert found == [0, 1, 2, 3]
    run_id = project.journals()[0][0]["run_id"]
    check = (
        f"import flor; print([float(flor.load({run_id!r}, epoch=e)['big'][7]) for e in range(4)])"
    )
    assert project.python("-c", check, FLOR_DISABLE="1").stdout == "[7.0, 8.0, 9.0, 10.0]\n"
    assert project.python("-m", "flor", "objects", "--verify").stderr == ""


def test_a_signal_handler_that_trains_on_keeps_all_checkpoints(project: Project) -> None:
    """SIGTERM asks to stop after this epoch, as a scheduler of jobs does."""
    project.write(
        "train.py",
        BEGIN
        + textwrap.dedent("""
        import signal, time
        asked = False
        def stop(*_):
            global asked
            asked = True
        signal.signal(signal.SIGTERM, stop)
        with flor.checkpointing(weights=weights):
            for epoch in flor.loop("epoch", range(10_000)):
                for step in flor.loop("step", range(2)):
                    weights[0] += 1
                    time.sleep(0.005)
                print(epoch, flush=True)
                if asked:
                    break
        """),
    )
    process = project.start("train.py", FLOR_OVERHEAD="0")
    assert process.stdout is not None
    assert process.stderr is not None
    with process:
        printed = [process.stdout.readline() for _ in range(5)]
        process.send_signal(signal.SIGTERM)
        printed += process.stdout.readlines()
        told = process.stderr.read()

    last = int(printed[-1])
    assert (process.returncode, told) == (0, "")
    assert states(project) == [[2 * last + 2]]


def test_checkpoints_can_be_read_while_the_training_goes_on(project: Project) -> None:
    project.write(
        "train.py",
        BEGIN
        + textwrap.dedent("""
        import time
        with flor.checkpointing(weights=weights):
            for epoch in flor.loop("epoch", range(10_000)):
                for step in flor.loop("step", range(2)):
                    weights[0] += 1
                    time.sleep(0.01)
                print(epoch, flush=True)
        """),
    )
    process = project.start("train.py", FLOR_OVERHEAD="inf")
    assert process.stdout is not None
    for _ in range(6):
        process.stdout.readline()

    look = "import flor; s = flor.load(epoch=2); print(s['weights'], s.place)"
    out = project.python("-c", look, FLOR_DISABLE="1").stdout
    assert out == "[6] {'epoch': 2}\n"
    assert "epoch 2" in project.flor("checkpoints")

    process.kill()
    process.communicate()
    assert "epoch 2" in project.flor("checkpoints")


def test_a_training_that_outgrows_the_limit_is_not_disturbed(project: Project) -> None:
    """Tidying runs on its own; the newest checkpoint stays."""
    told = train(
        project,
        """
        import numpy as np, time
        big = np.zeros(250_000)
        with flor.checkpointing(big=big):
            for epoch in flor.loop("epoch", range(10)):
                for step in flor.loop("step", range(2)):
                    big[:] = np.arange(big.size) * epoch
                time.sleep(0.05)
        """,
        FLOR_OBJECTS_LIMIT_GB="0.005",
    )
    look = "import flor; print(float(flor.load()['big'][2]))"

    assert told == ""
    assert project.python("-c", look, FLOR_DISABLE="1").stdout == "18.0\n"


def test_two_trainings_at_once_do_not_mix(project: Project) -> None:
    body = """
    import numpy as np, os, time
    seed, other = int(sys.argv[1]), 1 - int(sys.argv[1])
    shared, own = np.arange(100_000.0), np.full(100_000, float(seed))
    open(f"ready{seed}", "w").close()
    while not os.path.exists(f"ready{other}"):
        time.sleep(0.01)
    with flor.checkpointing(shared=shared, own=own):
        for epoch in flor.loop("epoch", range(20)):
            for step in flor.loop("step", range(2)):
                own += 2
    """
    project.write("train.py", BEGIN + textwrap.dedent(body))
    both = [project.start("train.py", str(seed), FLOR_OVERHEAD="inf") for seed in (0, 1)]

    assert [process.communicate(timeout=60) for process in both] == [("", ""), ("", "")]
    for run in (0, 1):
        run_id = project.journals()[run][0]["run_id"]
        seed = float(project.journals()[run][0]["argv"][1])
        look = f"import flor; print([float(flor.load({run_id!r}, epoch=e)['own'][9]) for e in (0, 19)])"
        out = project.python("-c", look, FLOR_DISABLE="1").stdout
        assert out == f"{[seed + 4, seed + 80]}\n"


PREEMPTED = """
import signal, time
class Preempted(Exception): pass
def preempt(*_): raise Preempted
signal.signal(signal.SIGALRM, preempt)
class Slow:
    def state_dict(self):
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        time.sleep(1)
        return {}
    def load_state_dict(self, state): pass
try:
    with flor.checkpointing(weights=weights, slow=Slow()):
        for epoch in flor.loop("epoch", range(4)):
            for step in flor.loop("step", range(2)):
                weights[0] += 1
    print("ran to the end")
except Preempted:
    print("preempted", epoch)
"""


def test_what_a_signal_handler_raises_reaches_the_script(project: Project) -> None:
    """A time limit or a preemption, wherever the training is just then."""
    project.write("train.py", BEGIN + PREEMPTED)

    done = project.python("train.py", FLOR_OVERHEAD="inf")

    assert done.stdout == "preempted 0\n"
    assert "Preempted" not in done.stderr


DROPPED = """
import threading, weakref
lock, gone = threading.Lock(), []
def batches():
    with lock:
        while True:
            yield 1
class Shard(list): pass
def shard():
    made = Shard([1, 2])
    weakref.finalize(made, gone.append, len(gone))
    return made
def main():
    with flor.checkpointing(weights=weights):
        for epoch in flor.loop("epoch", range(3)):
            for x in flor.loop("step", batches()):
                weights[0] += x
                break
            for y in flor.loop("other", shard()):
                weights[0] += y
            print(lock.acquire(timeout=5), len(gone), flush=True)
            lock.release()
main()
"""


def test_what_loops_ran_over_is_dropped_with_them(project: Project) -> None:
    project.write("train.py", BEGIN + DROPPED)

    for overhead in ("0", "inf"):
        out = project.python("train.py", FLOR_OVERHEAD=overhead).stdout
        assert out == "True 1\nTrue 2\nTrue 3\n"


@pytest.mark.parametrize(
    "loop", ["for _ in range(3):", "for _ in flor.loop('x', [1]):\n    pass\nif 1:"]
)
def test_a_block_that_sees_no_loop_says_so(project: Project, loop: str) -> None:
    before, _, header = loop.rpartition("\n")
    told = train(
        project,
        f"{before}\nwith flor.checkpointing(weights=weights):\n    {header}\n        weights[0] += 1\n",
    )

    assert told.count("flor: ") == 1
    assert "no flor.loop began" in told
    assert taken(project) == []


def test_a_reason_that_ends_with_a_full_stop_is_followed_by_no_second_one(project: Project) -> None:
    told = train(
        project,
        """
        class Bad:
            def state_dict(self): raise RuntimeError("no state for you.")
            def load_state_dict(self, state): pass
        with flor.checkpointing(weights=weights, bad=Bad()):
            for epoch in flor.loop("epoch", range(2)):
                weights[0] += 1
        """,
    )

    assert "no state for you. A replay" in told
    assert "no state for you. A replay" in project.lines("note")[0]["text"]


@pytest.mark.parametrize("setting", ["overhead = nan", "objects_limit_gb = -1"])
def test_a_bad_setting_stops_no_training(project: Project, setting: str) -> None:
    project.write("flor.toml", setting)

    told = train(
        project,
        """
        with flor.checkpointing(weights=weights):
            for epoch in flor.loop("epoch", range(2)):
                weights[0] += 1
        assert weights == [2]
        """,
    )

    assert told.startswith("flor: this run is not recorded: ")
    assert f"{setting} makes no sense" in told
    assert told.count("\n") == 1
