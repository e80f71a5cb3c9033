"""Going back: `flor.load`, `flor.checkpoints` and `flor checkpoints`, as a user calls them."""

from __future__ import annotations

import json
import re
import shutil
import textwrap
from pathlib import Path

import pytest

from tests.e2e.conftest import Project

TRAIN = """
import sys
import numpy as np, flor
rate = int(flor.arg("rate", 1))
weights, history = np.zeros(1000), []
with flor.checkpointing(weights=weights):
    for epoch in flor.loop("epoch", range(5)):
        for step in flor.loop("step", range(2)):
            weights += rate
        history.append(epoch)
        flor.log("acc", float(weights[0] / (10 * rate)))
"""
FOLDS = """
import flor
weights = [0]
for fold in flor.loop("fold", ["left", "right"]):
    with flor.checkpointing(weights=weights):
        for epoch in flor.loop("epoch", range(10, 13)):
            for step in flor.loop("step", range(2)):
                weights[0] += 1
            flor.log("acc", weights[0] / 12)
"""
ALL = {"FLOR_OVERHEAD": "inf"}


def ask(project: Project, text: str, cwd: Path | None = None, **env: str) -> str:
    """What a script prints that only looks."""
    text = "import flor\n" + textwrap.dedent(text)
    return project.python("-c", text, cwd=cwd, **({"FLOR_DISABLE": "1"} | env)).stdout.strip()


def refusal(project: Project, call: str, cwd: Path | None = None) -> str:
    """The error of a call, as "Type: message"; anything but one of flor's own is a failure."""
    found = ask(
        project,
        f"""
        try:
            {call}
            print("nothing was refused")
        except flor.errors.FlorError as error:
            print(f"{{type(error).__name__}}: {{error}}")
        """,
        cwd,
    )
    assert "nothing was refused" not in found
    assert "\\n" not in found
    return found


def run_ids(project: Project) -> list[str]:
    return [str(lines[0]["run_id"]) for lines in project.journals()]


@pytest.fixture
def trained(project: Project) -> Project:
    project.write("train.py", TRAIN)
    project.python("train.py", **ALL)
    return project


# --- which ------------------------------------------------------------------------------------


def test_a_checkpoint_is_found_by_number_run_prefix_and_as_the_last(trained: Project) -> None:
    trained.python("train.py", "--kwargs", "rate=10", **ALL)
    first, second = run_ids(trained)

    out = ask(
        trained,
        f"""
        print(flor.load(epoch=1)["weights"][0], flor.load()["weights"][0])
        print(flor.load({first!r}, epoch=1)["weights"][0], flor.load({first[-6:]!r})["weights"][0])
        print(flor.load("latest", epoch=0)["weights"][0], flor.load("-2", epoch=0)["weights"][0])
        """,
    )

    assert out.splitlines() == ["40.0 100.0", "4.0 10.0", "20.0 2.0"]
    assert second.startswith(second[:15])


def test_an_iteration_may_be_a_number_out_of_a_data_frame(trained: Project) -> None:
    """NumPy's, as `max` and `iloc` give them."""
    out = ask(
        trained,
        """
        table = flor.dataframe("acc")
        best = table.loc[table["acc"].idxmax()]
        print(flor.load(best["run_id"], epoch=best["epoch"])["weights"][0])
        print(flor.load(epoch=flor.checkpoints()["epoch"].max())["weights"][0])
        """,
    )

    assert out == "10.0\n10.0"


def test_a_run_without_checkpoints_is_not_the_newest_that_has_any(trained: Project) -> None:
    trained.write("other.py", "import flor\nflor.log('a', 1)\n")
    trained.python("other.py")

    assert ask(trained, "print(flor.load(epoch=2)['weights'][0])") == "6.0"


def test_iterations_are_named_by_number_or_by_the_text_that_they_yielded(project: Project) -> None:
    project.write("train.py", FOLDS)
    project.python("train.py", **ALL)

    out = ask(
        project,
        """
        print(flor.load(fold="left", epoch=1)["weights"], flor.load(fold=1, epoch=1)["weights"])
        print(flor.load(fold="left")["weights"], flor.load(epoch=0)["weights"])
        state = flor.load(fold="right", epoch=2)
        print(state.place, state["epoch"])
        """,
    )

    lines = out.splitlines()
    assert lines[:2] == ["[4] [10]", "[6] [8]"]
    assert lines[2] == "{'fold': 1, 'epoch': 2} 12"
    for call in ("fold='up'", "fold=2", "fold='left', epoch=3"):
        told = refusal(project, f"flor.load({call})")
        assert told.startswith("NoCheckpoint: ")
        assert "fold 0 ('left'), epoch 1 (11)" in told, told


def test_unknown_places_runs_and_names_are_errors_that_say_what_there_is(trained: Project) -> None:
    run_id = run_ids(trained)[0]
    expected = {
        "flor.load(epoch=99)": ("NoCheckpoint", "no such iteration of 'epoch', which had 5"),
        "flor.load(epoch=-1)": ("NoCheckpoint", "no such iteration of 'epoch', which had 5"),
        "flor.load(epoch=1.5)": ("NoCheckpoint", "epoch 4"),
        "flor.load(where='acc > 0', batch=1)": ("NoCheckpoint", "with checkpoints: epoch"),
        "flor.load(where='acc > 0.5', epoch=0)": (
            "NoCheckpoint",
            "none has a checkpoint at epoch=0",
        ),
        "flor.load('')": ("UnknownRun", "empty"),
        "flor.checkpoints('')": ("UnknownRun", "empty"),
        "flor.load(batch=1)": ("NoCheckpoint", "its loops with checkpoints: epoch"),
        "flor.load('19990101-000000-aaaaaa')": ("UnknownRun", "flor runs"),
        "flor.load(epoch=1, model=[0])": ("NoCheckpoint", "weights"),
        "flor.load(epoch=1)['model']": ("NoCheckpoint", "weights"),
        "flor.load(where='acc > 7')": ("NoCheckpoint", "acc > 7"),
        "flor.load(where='accuracy > 7')": ("QueryError", "accuracy"),
        "flor.load(where='')": ("QueryError", "the condition is empty"),
        f"flor.load({run_id!r}, epoch='x')": (
            "NoCheckpoint",
            "no iteration of 'epoch' yielded 'x'",
        ),
        "flor.checkpoints('zzz')": ("UnknownRun", "zzz"),
    }
    for call, (kind, hint) in expected.items():
        told = refusal(trained, call)
        assert told.startswith(f"{kind}: "), (call, told)
        assert hint in told, (call, told)


def test_without_any_checkpoint_the_error_shows_how_to_take_them(project: Project) -> None:
    assert "flor.checkpointing" in refusal(project, "flor.load()")
    assert "flor.checkpointing" in refusal(project, "flor.load(epoch=1)")

    project.write("other.py", "import flor\nflor.log('a', 1)\n")
    project.python("other.py")

    assert "flor.checkpointing" in refusal(project, "flor.load('latest')")
    assert "flor.checkpointing" in project.flor("checkpoints", "latest")


def test_no_place_means_the_last_and_the_middle_of_a_name_means_nothing(trained: Project) -> None:
    """A number or text for an object is no place by accident."""
    told = refusal(trained, "flor.load(epoch=1, weights='best.pt')")

    assert told.startswith("NoCheckpoint: ")
    assert "weights" in told


# --- where ------------------------------------------------------------------------------------


def test_a_condition_finds_the_newest_epoch_that_fulfils_it(trained: Project) -> None:
    trained.python("train.py", "--kwargs", "rate=10", **ALL)
    first, second = run_ids(trained)

    out = ask(
        trained,
        f"""
        for state in (
            flor.load(where="acc < 0.7"),
            flor.load(where="acc < 0.7 and rate = 1"),
            flor.load({first!r}, where="acc > 0.2"),
            flor.load(where="acc = (select max(acc) from frame)"),
            flor.load(where="acc < 0.7 -- the middle"),
        ):
            print(state.run_id, state.place["epoch"])
        """,
    )

    found = [f"{second} 2", f"{first} 2", f"{first} 4", f"{second} 4", f"{second} 2"]
    assert out.splitlines() == found


def test_a_condition_is_answered_among_the_epochs_that_have_a_checkpoint(project: Project) -> None:
    project.write("train.py", TRAIN)
    project.python("train.py", FLOR_OVERHEAD="0")

    assert ask(project, "print(flor.load(where='acc > 0.3').place)") == "{'epoch': 4}"
    told = refusal(project, "flor.load(where='acc < 0.7')")
    assert told.startswith("NoCheckpoint: 3 rows fulfil")
    assert "epoch 4" in told


def test_a_condition_and_a_place_both_count(trained: Project) -> None:
    """Epoch 1 fulfils it, and so do later ones."""
    assert ask(trained, "print(flor.load(where='acc > 0.1', epoch=1).place)") == "{'epoch': 1}"


def test_a_condition_may_be_about_loops_alone(project: Project) -> None:
    project.write("train.py", FOLDS)
    project.python("train.py", **ALL)
    conditions = {
        "epoch = 1": "{'fold': 1, 'epoch': 1}",
        "fold = 0": "{'fold': 0, 'epoch': 2}",
        "fold = 0 and epoch < 2": "{'fold': 0, 'epoch': 1}",
        "fold_value = 'left' and epoch_value = 11": "{'fold': 0, 'epoch': 1}",
        "epoch_value = 11 and status = 'finished'": "{'fold': 1, 'epoch': 1}",
        "acc < 0.4 and epoch_value = 11": "{'fold': 0, 'epoch': 1}",
        "fold = 0 and step = 1": "{'fold': 0, 'epoch': 2}",
    }
    for where, place in conditions.items():
        assert ask(project, f"print(flor.load(where={where!r}).place)") == place, where
    assert "no row" in refusal(project, "flor.load(where='epoch = 7')")
    assert "batch" in refusal(project, "flor.load(where='batch = 7')")


HOSTILE = [
    "1=1; drop table runs",
    "1=1) union select * from frame --",
    "acc > (select count(*) from read_csv('/etc/passwd'))",
    "acc > 0; attach '.flor/flor.db' as x",
    "acc > 0) or (exists (select * from read_text('/etc/passwd'))",
    "__import__('os').system('touch owned')",
    "acc > 0 \x00",
    "(" * 500,
]


def test_a_hostile_condition_is_only_an_error(trained: Project) -> None:
    for where in HOSTILE:
        told = refusal(trained, f"flor.load(where={where!r})")
        assert told.startswith("QueryError: "), (where, told)
        assert len(told) < 1000
    assert not (trained.root / "owned").exists()
    assert ask(trained, "print(len(flor.checkpoints()))") == "6"


# --- into -------------------------------------------------------------------------------------


def test_a_training_rolls_itself_back_in_its_own_process(project: Project) -> None:
    """It may name itself, too."""
    project.write(
        "train.py",
        TRAIN
        + textwrap.dedent("""
        import glob, os
        own = max(os.listdir(".flor/runs"))
        state = flor.load(own, epoch=2, weights=weights)
        print(weights[0], state["history"], state["epoch"])
        with flor.checkpointing(weights=weights):
            for round in flor.loop("round", range(2)):
                weights += 1000
                if round == 0:
                    print(flor.load(own, epoch=0, weights=weights)["weights"][0], weights[0])
        """),
    )
    done = project.python("train.py", **ALL)

    assert done.stderr == ""
    assert done.stdout.splitlines() == ["6.0 [0, 1] 2", "2.0 2.0"]


def test_objects_are_restored_in_place_under_the_names_they_were_declared_with(
    project: Project,
) -> None:
    setup = """
    import collections, random
    import numpy as np, flor
    class Meter:
        def __init__(self): self.sum, self.seen = 0.0, []
    class Net:
        def __init__(self): self.w = np.zeros(4)
        def state_dict(self): return {"w": self.w}
        def load_state_dict(self, state): self.w = state["w"] * 1
    net, meter, table, queue = Net(), Meter(), {"a": [1]}, collections.deque(maxlen=2)
    draws, seen = random.Random(3), set()
    """
    project.write(
        "train.py",
        textwrap.dedent(setup)
        + textwrap.dedent("""
        with flor.checkpointing(
            net=net, meter=meter, table=table, queue=queue, draws=draws, seen=seen
        ):
            for epoch in flor.loop("epoch", range(3)):
                for step in flor.loop("step", range(2)):
                    net.w += 1
                    meter.sum += 0.5
                    meter.seen.append(step)
                    table["a"].append(epoch)
                    queue.append(epoch)
                    seen.add(epoch)
                    draws.random()
        """),
    )
    project.python("train.py", **ALL)

    out = ask(
        project,
        textwrap.dedent(setup)
        + textwrap.dedent("""
        inner, seen_list, a = table["a"], meter.seen, net
        flor.load(epoch=1, net=net, meter=meter, table=table, queue=queue, draws=draws, seen=seen)
        other = random.Random(3)
        [other.random() for _ in range(4)]
        print(net.w[0], a is net, meter.sum, meter.seen is seen_list, meter.seen)
        print(table, inner is table["a"], queue, draws.random() == other.random(), seen)
        """),
    )

    assert out.splitlines() == [
        "4.0 True 2.0 True [0, 1, 0, 1]",
        "{'a': [1, 0, 0, 1, 1]} True deque([1, 1], maxlen=2) True {0, 1}",
    ]


def test_what_does_not_fit_is_refused_and_nothing_is_changed(trained: Project) -> None:
    told = ask(
        trained,
        """
        import numpy as np
        small, other = np.zeros(3), [1]
        for wrong in (small, np.zeros(1000, dtype="float32"), other, None, {}, object()):
            try:
                flor.load(epoch=1, weights=wrong)
                print("taken")
            except flor.errors.FlorError as error:
                print(type(error).__name__, str(error))
        print(small, other)
        """,
    ).splitlines()

    assert all(line.startswith("RestoreError weights is ") for line in told[:-1]), told
    assert "(1000,) of float64" in told[0]
    assert "(3,) of float64" in told[0]
    assert told[-1] == "[0. 0. 0.] [1]"


def test_random_numbers_continue_if_asked_for(project: Project) -> None:
    project.write(
        "train.py",
        """
import random
import numpy as np, flor
random.seed(1)
np.random.seed(2)
with flor.checkpointing(nothing=[]):
    for epoch in flor.loop("epoch", range(3)):
        print(random.random().hex(), float(np.random.rand()).hex())
""",
    )
    drawn = project.python("train.py", **ALL).stdout.splitlines()

    draw = "print(random.random().hex(), float(np.random.rand()).hex())\n"
    out = ask(
        project,
        "import random\nimport numpy as np\nrandom.seed(7)\nnp.random.seed(7)\n"
        + f"flor.load(epoch=0, with_rng=True)\n{draw}{draw}",
    )
    assert out.splitlines() == drawn[1:]
    out = ask(project, f"import random\nimport numpy as np\nflor.load(epoch=0)\n{draw}")
    assert out not in drawn


def test_a_state_is_a_mapping_that_reads_well(project: Project) -> None:
    project.write(
        "train.py",
        """
import threading, flor
lock, weights, best = threading.Lock(), [0], None
with flor.checkpointing(weights=weights, lock=lock):
    for epoch in flor.loop("epoch", range(2)):
        weights[0] += 1
        best = max(best or 0, weights[0])
""",
    )
    told = project.python("train.py", **ALL).stderr
    run_id = run_ids(project)[0]

    out = ask(
        project,
        """
        state = flor.load(epoch=0)
        print(sorted(state), len(state), "best" in state, "loss" in state, state.get("loss"))
        print(repr(state), state.place, state.run_id)
        print(state.missing)
        print({k: state[k] for k in sorted(state) if k != "lock"})
        """,
    ).splitlines()

    assert told.count("flor: ") == told.count("hold lock") == 1
    assert out[0] == "['best', 'epoch', 'lock', 'weights'] 4 True False None"
    assert out[1].startswith(f"<state of run {run_id} at epoch 0: ")
    assert out[1].endswith(f"{{'epoch': 0}} {run_id}")
    assert "lock" in out[2]
    assert out[3] == "{'best': 1, 'epoch': 0, 'weights': [1]}"


def test_what_is_taken_from_a_state_is_ones_own(trained: Project) -> None:
    out = ask(
        trained,
        """
        state = flor.load(epoch=1)
        first = state["weights"]
        first += 5
        print(first.flags.writeable, flor.load(epoch=1)["weights"][0])
        """,
    )

    assert out == "True 4.0"


# --- gone and damaged ---------------------------------------------------------------------------


def test_a_checkpoint_that_was_thinned_away_is_told_from_one_never_taken(trained: Project) -> None:
    trained.flor("gc", "--keep", "2", "--grace", "0", "--yes")

    told = refusal(trained, "flor.load(epoch=0)")
    assert told.startswith("NoCheckpoint: ")
    assert "is not kept any more" in told
    assert told.endswith("There are: epoch 1; epoch 4")
    assert ask(trained, "print(flor.checkpoints()['kept'].tolist())") == (
        "[False, True, False, False, True, True]"
    )
    shown = re.findall(r"epoch (\d).* (yes|no)", trained.flor("checkpoints"))
    assert shown[:-1] == [("0", "no"), ("1", "yes"), ("2", "no"), ("3", "no"), ("4", "yes")]
    assert shown[-1] == ("4", "yes")  # at the end of the loop
    assert ask(trained, "print(flor.load(where='acc < 0.9').place)") == "{'epoch': 1}"


def objects_by_size(project: Project) -> list[Path]:
    files = [path for path in (project.root / ".flor/objects").rglob("*") if path.is_file()]
    return sorted(files, key=lambda path: path.stat().st_size)


@pytest.mark.parametrize("damage", ["flipped", "cut", "emptied", "removed"])
def test_a_damaged_checkpoint_is_an_error_that_names_the_whole_ones(
    project: Project, damage: str
) -> None:
    project.write("train.py", TRAIN.replace("zeros(1000)", "zeros(200_000)"))
    project.python("train.py", **ALL)
    number = 3
    for path in objects_by_size(project)[::-1]:
        content = path.read_bytes()
        first = memoryview(content)[: 8 * 5].cast("d") if len(content) == 1_600_000 else [0.0]
        if first[0] == 2.0 * (number + 1):
            break
    path.chmod(0o644)
    if damage == "removed":
        path.unlink()
    else:
        changed = content[:700] + b"\xff" + content[701:]
        path.write_bytes({"flipped": changed, "cut": content[:5000], "emptied": b""}[damage])

    told = refusal(project, f"flor.load(epoch={number}, weights=[])")
    assert told.startswith("DamagedCheckpoint: "), told
    assert "epoch 0; epoch 1; epoch 2; epoch 4" in told
    told = refusal(project, f"flor.load(epoch={number})['weights']")
    assert told.startswith("DamagedCheckpoint: "), told
    assert ask(project, "print(flor.load(epoch=4)['weights'][0])") == "10.0"


@pytest.mark.parametrize("content", [b"", b"{", b'{"v": 99}'])
def test_a_damaged_manifest_is_an_error_of_its_own(trained: Project, content: bytes) -> None:
    digest = trained.lines("checkpoint")[1]["manifest"]
    path = next((trained.root / ".flor/objects").rglob(f"{digest[2:]}*"))
    path.chmod(0o644)
    path.write_bytes(content)

    told = refusal(trained, "flor.load(epoch=1)")
    assert told.startswith("DamagedCheckpoint: "), told
    assert "epoch 2" in told, told
    assert ask(trained, "print(flor.load(epoch=2)['weights'][0])") == "6.0"
    assert "epoch 1" in trained.flor("checkpoints")


def test_a_damaged_last_manifest_leaves_the_list_of_checkpoints_readable(trained: Project) -> None:
    digest = trained.lines("checkpoint")[-1]["manifest"]
    path = next((trained.root / ".flor/objects").rglob(f"{digest[2:]}*"))
    path.chmod(0o644)
    path.write_bytes(b"{")

    assert "epoch 3" in trained.flor("checkpoints")


def test_the_database_can_be_removed(trained: Project) -> None:
    ask(trained, "flor.load(epoch=1)")
    for path in (trained.root / ".flor").glob("flor.db*"):
        path.unlink()

    assert ask(trained, "print(flor.load(epoch=1)['weights'][0])") == "4.0"


# --- from where ---------------------------------------------------------------------------------


def test_a_folder_inside_the_project_is_the_project_and_another_one_is_not(
    trained: Project, folder: Project
) -> None:
    inside = trained.root / "notebooks"
    inside.mkdir()

    assert ask(trained, "print(flor.load(epoch=1)['weights'][0])", inside) == "4.0"
    told = refusal(trained, f"flor.load({run_ids(trained)[0]!r}, epoch=1)", folder.root)
    assert told.startswith("UnknownRun: ")
    assert not (folder.root / ".flor").exists()


def test_a_copy_of_the_project_without_its_objects_says_what_is_missing(trained: Project) -> None:
    shutil.rmtree(trained.root / ".flor/objects")

    for call in ("flor.load(epoch=1)", "flor.load()", "flor.load(where='acc > 0')"):
        assert refusal(trained, call).startswith("NoCheckpoint: ")
    assert "no" in trained.flor("checkpoints")


def test_loading_records_nothing_and_leaves_no_run(trained: Project) -> None:
    trained.python("-c", "import flor; flor.load(epoch=1)")

    assert len(trained.journals()) == 1


# --- the command --------------------------------------------------------------------------------


def test_the_command_lists_none_one_and_many(project: Project) -> None:
    told = project.python("-m", "flor", "checkpoints", code=1).stderr
    assert told.startswith("flor: no run has checkpoints yet")
    assert told.count("\n") == 1

    project.write("train.py", TRAIN)
    project.python("train.py", FLOR_OVERHEAD="0")
    run_id = run_ids(project)[0]
    shown = project.flor("checkpoints")
    listed = re.findall(r"^epoch \d", shown, re.MULTILINE)
    assert set(listed) == {"epoch 4"}  # after its steps, if there was time, and at the loop's end
    assert f'flor.load("{run_id}", ' in shown

    project.python("train.py", **ALL)
    shown = project.flor("checkpoints")
    assert len(re.findall(r"^epoch \d", shown, re.MULTILINE)) == 6
    assert "after step, last" in shown
    assert "objects     weights\n" in shown
    assert re.search(r"variables .*\bhistory\b", shown)
    assert re.findall(r"^epoch \d", project.flor("checkpoints", run_id), re.MULTILINE) == listed


def test_the_commands_json_is_complete(project: Project) -> None:
    project.write("train.py", FOLDS)
    project.python("train.py", **ALL)

    rows = json.loads(project.flor("checkpoints", "--json"))

    assert [row["place"] for row in rows] == [
        {"fold": fold, "epoch": epoch} for fold in (0, 1) for epoch in (0, 1, 2)
    ]
    assert {row["run_id"] for row in rows} == set(run_ids(project))
    assert all(row["kept"] is True and row["size_bytes"] > 0 for row in rows)
    assert [row["final"] for row in rows] == [False, False, True] * 2
    project.write("other.py", "import flor\nflor.log('a', 1)\n")
    project.python("other.py")
    assert json.loads(project.flor("checkpoints", "latest", "--json")) == []


def test_the_command_says_which_run_it_does_not_know(trained: Project) -> None:
    told = trained.python("-m", "flor", "checkpoints", "19990101", code=1).stderr

    assert told.startswith("flor: ")
    assert "19990101" in told
    assert told.count("\n") == 1


def test_what_the_command_suggests_works(project: Project) -> None:
    """The line that it prints, with the objects at hand."""
    project.write("train.py", FOLDS)
    project.python("train.py", **ALL)
    shown = project.flor("checkpoints")
    line = re.search(r"^restore +(flor\.load\(.*\))$", shown, re.MULTILINE)
    assert line is not None

    assert ask(project, f"weights = [0]\n{line[1]}\nprint(weights)") == "[12]"


def test_the_table_of_checkpoints_is_a_data_frame_with_a_column_for_each_loop(
    project: Project,
) -> None:
    project.write("train.py", FOLDS)
    project.python("train.py", **ALL)

    out = ask(
        project,
        """
        frame = flor.checkpoints()
        print(*frame.columns)
        print(frame[["fold", "epoch"]].values.tolist(), frame["kept"].all())
        print(*frame["fold_value"], *frame["epoch_value"])
        """,
    ).splitlines()

    assert out[0].split()[:5] == ["run_id", "fold", "fold_value", "epoch", "epoch_value"]
    assert out[2] == "left left left right right right 10 11 12 10 11 12"
    assert {"boundary", "final", "size_bytes", "kept"} <= set(out[0].split())
    assert out[1] == "[[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]] True"


def test_checkpoints_of_the_newest_run_that_has_any_are_the_default(trained: Project) -> None:
    """As for `flor checkpoints` and `flor.load`."""
    trained.write("other.py", "import flor\nflor.log('a', 1)\n")
    trained.python("other.py")

    assert "epoch 4" in trained.flor("checkpoints")
    assert ask(trained, "print(len(flor.checkpoints()))") == "6"
    out = ask(trained, "t = flor.checkpoints('latest'); print(len(t), t['size_bytes'].sum(), *t)")
    assert out.startswith("0 0 run_id boundary")


def test_what_the_command_suggests_without_declared_objects_works_too(project: Project) -> None:
    project.write("train.py", FOLDS.replace("weights=weights", ""))
    project.python("train.py", **ALL)
    line = re.search(r"^restore +(flor\.load\(.*\))$", project.flor("checkpoints"), re.MULTILINE)
    assert line is not None

    assert ask(project, f"model = [0]\nprint({line[1]}.place)") == "{'fold': 1, 'epoch': 2}"


def test_a_number_that_the_loop_yielded_is_no_name_and_the_error_says_what_is(
    project: Project,
) -> None:
    project.write("train.py", FOLDS.replace('["left", "right"]', "[0.1, 0.01]"))
    project.python("train.py", **ALL)

    told = refusal(project, "flor.load(fold=0.1)")
    assert told.startswith("NoCheckpoint: ")
    assert "fold_value=0.1 means the number that it yielded" in told
    assert "fold 0 (0.1)" in told
    assert ask(project, "print(flor.load(fold_value=0.01).place)") == "{'fold': 1, 'epoch': 2}"


VALUES = """
import flor
weights = [0]
with flor.checkpointing(weights=weights):
    for epoch in flor.loop("epoch", [0, 5, 2.5, True, "last"]):
        for step in flor.loop("step", range(2)):
            weights[0] += 1
"""


def test_iterations_are_named_by_what_the_loop_yielded(project: Project) -> None:
    project.write("train.py", VALUES)
    project.python("train.py", **ALL)

    out = ask(
        project,
        """
        import numpy as np
        weights = [0]
        for value in (0, 5, 2.5, "last", np.int64(5), np.float64(2.5), 5.0):
            flor.load(epoch_value=value, weights=weights)
            print(weights[0], end=" ")
        print(flor.checkpoints()["epoch_value"].tolist())
        print(flor.load(epoch_value=5)["weights"], flor.load(epoch=1)["weights"])
        """,
    )

    assert out.splitlines() == ["2 4 6 10 4 6 4 [0, 5, 2.5, True, 'last']", "[4] [4]"]
    for value in ("1", "3", "2.4", "'5'", "float('nan')", "float('inf')", "10**30", "-1"):
        told = refusal(project, f"flor.load(epoch_value={value})")
        assert told.startswith("NoCheckpoint: ")
        assert "no iteration of 'epoch' yielded " in told
        assert "There are: epoch 0; epoch 1 (5); epoch 2 (2.5); epoch 3 (True); epoch 4 (" in told
    shown = project.flor("checkpoints")
    assert re.findall(r"^epoch \d(?: \(.*?\))?", shown, re.MULTILINE) == [
        *("epoch 0", "epoch 1 (5)", "epoch 2 (2.5)", "epoch 3 (True)", "epoch 4 ('last')"),
    ]
    rows = json.loads(project.flor("checkpoints", "--json"))
    assert [row["values"].get("epoch") for row in rows] == [None, 5, 2.5, True, "last"]


def test_a_value_without_a_checkpoint_is_told_from_none(project: Project) -> None:
    project.write("train.py", VALUES)
    project.python("train.py", FLOR_OVERHEAD="0")

    assert "it was never taken" in refusal(project, "flor.load(epoch_value=5)")
    assert "yielded 7" in refusal(project, "flor.load(epoch_value=7)")


def test_values_that_are_the_numbers_make_no_column(trained: Project) -> None:
    assert ask(trained, "print('epoch_value' in flor.checkpoints())") == "False"
    assert ask(trained, "print(flor.load(epoch_value=3).place)") == "{'epoch': 3}"
    assert "(" not in trained.flor("checkpoints").partition("objects")[0]


def test_a_loop_and_an_object_that_are_called_like_values(project: Project) -> None:
    project.write(
        "train.py",
        "import flor\n"
        "epoch_value, weights = [0], [0]\n"
        "with flor.checkpointing(epoch_value=epoch_value, weights=weights):\n"
        "    for e in flor.loop('epoch', range(10, 12)):\n"
        "        for v in flor.loop('epoch_value', range(3)):\n"
        "            epoch_value[0] += 1\n",
    )
    project.python("train.py", **ALL)
    out = ask(
        project,
        """
        epoch_value = [0]
        flor.load(epoch=0, epoch_value=epoch_value)
        print(epoch_value, flor.load(epoch_value=11).place)
        """,
    )
    assert out == "[3] {'epoch': 1}"

    project.write("train.py", FOLDS.replace('"fold"', '"epoch_value"'))
    project.python("train.py", **ALL)
    out = ask(
        project,
        """
        print(flor.load(epoch_value=0, epoch=1).place, *flor.checkpoints().columns[:5])
        """,
    )
    place = "{'epoch_value': 0, 'epoch': 1}"
    columns = "epoch_value epoch_value_value epoch epoch_value_yielded"
    assert out == f"{place} run_id {columns}"


TWO_ENDS = """
import flor
weights = [0]
with flor.checkpointing(weights=weights):
    for epoch in flor.loop("epoch", range(4)):
        for step in flor.loop("step", range(2)):
            weights[0] += 1
        flor.log("acc", weights[0])
        for part in flor.loop("part", range(1)):
            weights[0] += 100
"""


def test_a_named_iteration_is_where_its_nested_loop_ended(project: Project) -> None:
    """The last one too, which has another checkpoint at the end of the main loop."""
    project.write("train.py", TWO_ENDS)
    project.python("train.py", **ALL)
    shown = project.flor("checkpoints")
    assert "epoch 3      after step, last" in shown
    assert "epoch 3      at the end of the loop" in shown

    out = ask(
        project,
        """
        for state in (
            flor.load(epoch=2), flor.load(epoch=3), flor.load(epoch_value=3), flor.load(),
            flor.load(where="acc > 300"), flor.load(where="run_id is not null"),
            flor.load(where="epoch = 3"), flor.load(where="run_id is not null", epoch=3),
        ):
            print(state["weights"][0], end=" ")
        """,
    )

    assert out == "206 308 308 408 308 408 308 308"
    line = re.search(r"^restore +(flor\.load\(.*\))$", shown, re.MULTILINE)
    assert line is not None
    assert ask(project, f"weights = [0]\n{line[1]}\nprint(weights)") == "[408]"


def test_of_an_iteration_without_another_the_end_of_the_loop_is_taken(project: Project) -> None:
    project.write("train.py", TWO_ENDS.replace("range(4)", "iter(range(4))"))
    project.python("train.py", FLOR_OVERHEAD="0")

    shown = project.flor("checkpoints")
    assert "at the end of the loop" in shown
    assert "epoch=3, weights=weights)" in shown
    assert ask(project, "print(flor.load(epoch=3)['weights'])") == "[408]"


def test_names_that_are_no_python_are_shown_as_they_can_be_given(project: Project) -> None:
    project.write(
        "train.py",
        "import flor\n"
        "weights = [0]\n"
        "with flor.checkpointing(weights=weights):\n"
        "    for epoch in flor.loop('my epoch', range(2)):\n"
        "        weights[0] += 1\n",
    )
    project.python("train.py", **ALL)
    line = re.search(r"^restore +(flor\.load\(.*\))$", project.flor("checkpoints"), re.MULTILINE)
    assert line is not None

    assert ask(project, f"weights = [0]\n{line[1]}\nprint(weights)") == "[2]"


def test_loops_called_as_an_option_of_load_can_be_asked_for(project: Project) -> None:
    """A loop may be called `where`, an object `run`; then the last checkpoint is found anyway."""
    project.write(
        "train.py",
        "import flor\n"
        "run = [0]\n"
        "with flor.checkpointing(run=run):\n"
        "    for epoch in flor.loop('epoch', range(2)):\n"
        "        run[0] += 1\n",
    )
    project.python("train.py", **ALL)

    assert ask(project, "run = [0]\nflor.load(epoch=0, run=run)\nprint(run)") == "[1]"


OWN = """
import sys, flor
weights, by = [0], int(sys.argv[1])
with flor.checkpointing(weights=weights):
    for epoch in flor.loop("epoch", range(4)):
        for step in flor.loop("step", range(2)):
            weights[0] += by
        if epoch == 2:
            print(flor.load()["weights"])
print(flor.load(epoch=1)["weights"], flor.load("latest", epoch=2)["weights"], len(flor.checkpoints()))
"""


def test_a_training_goes_back_to_its_own_checkpoints(project: Project) -> None:
    """While it runs and afterwards, in the same process; not to those of the run before."""
    project.write("train.py", OWN)

    for by in (1, 10):
        out = project.python("train.py", str(by), FLOR_OVERHEAD="inf").stdout.split("\n")
        assert out[:2] == [f"[{6 * by}]", f"[{4 * by}] [{6 * by}] 4"]
