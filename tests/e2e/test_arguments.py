"""`--kwargs` beside whatever else a script has on its command line."""

from __future__ import annotations

import pytest

from tests.e2e.conftest import Project

PRINT = """
import flor, sys
lr, name, flag, n = (flor.arg("lr", 0.1), flor.arg("name", "x"), flor.arg("flag", False),
                     flor.arg("n", 3))
print(lr, name, flag, n, sys.argv[1:])
"""


def test_values_are_typed_by_their_defaults(project: Project) -> None:
    project.write("train.py", PRINT)
    assert project.python("train.py").stdout == "0.1 x False 3 []\n"
    done = project.python("train.py", "--kwargs", "lr=1e-3", "name=a=b", "flag=yes", "n=7")
    assert done.stdout == "0.001 a=b True 7 []\n"
    first, second = project.frame("lr", "name", "flag", "n")
    assert (first["lr"], first["name"], first["flag"], first["n"]) == (0.1, "x", False, 3)
    assert (second["lr"], second["name"], second["flag"], second["n"]) == (0.001, "a=b", True, 7)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("lr=fast", "--kwargs lr=fast: flor.arg('lr', 0.1) expects a float such as 0.1"),
        ("flag=maybe", "--kwargs flag=maybe: flor.arg('flag', False) expects true or false"),
        ("n=1.5", "--kwargs n=1.5: flor.arg('n', 3) expects an int such as 3"),
    ],
)
def test_a_bad_value_says_what_was_expected(project: Project, given: str, expected: str) -> None:
    project.write("train.py", PRINT)
    done = project.python("train.py", "--kwargs", given, code=1)
    assert done.stderr.rstrip().endswith(expected)


def test_a_missing_value_says_so(project: Project) -> None:
    project.write("train.py", PRINT)
    done = project.python("train.py", "--kwargs", "lr", "0.5", code=1)
    assert "--kwargs expects name=value" in done.stderr


def test_a_name_that_nobody_reads_is_reported(project: Project) -> None:
    project.write("train.py", PRINT)
    done = project.python("train.py", "--kwargs", "lrr=0.5")
    assert done.stderr == "flor: --kwargs lrr=… was read by no flor.arg; did you mean lr?\n"


def test_beside_argparse(project: Project) -> None:
    project.write(
        "train.py",
        """
import argparse, flor
parser = argparse.ArgumentParser()
parser.add_argument("file")
parser.add_argument("--epochs", type=int)
print(parser.parse_args(), flor.arg("lr", 0.1))
""",
    )
    done = project.python("train.py", "a.csv", "--kwargs", "lr=0.5", "--epochs", "3")
    assert done.stdout == "Namespace(file='a.csv', epochs=3) 0.5\n"
    done = project.python("train.py", "--epochs", "3", "--kwargs", "lr=0.5", "a.csv")
    assert done.stdout == "Namespace(file='a.csv', epochs=3) 0.5\n"


def test_a_script_with_its_own_kwargs_option_keeps_it(project: Project) -> None:
    project.write(
        "train.py",
        """
import argparse, flor
parser = argparse.ArgumentParser()
parser.add_argument("--kwargs", nargs="*")
print(parser.parse_args().kwargs, flor.arg("lr", 0.1))
""",
    )
    words = ("train.py", "--kwargs", "a=1", "--flor-kwargs", "lr=0.5")
    assert project.python(*words).stdout == "['a=1'] 0.5\n"


def test_beside_click(project: Project) -> None:
    project.write(
        "train.py",
        """
import click, flor
@click.command()
@click.option("--epochs", type=int)
@click.argument("file")
def main(epochs, file):
    print(epochs, file, flor.arg("lr", 0.1))
main()
""",
    )
    done = project.python("train.py", "a.csv", "--kwargs", "lr=0.5", "--epochs", "3")
    assert done.stdout == "3 a.csv 0.5\n"
    assert project.lines("end")[0]["status"] == "finished"
    project.python("train.py", "--nonsense", code=2)


def test_as_a_module_and_from_another_folder(project: Project) -> None:
    project.write("package/__init__.py", "")
    project.write("package/train.py", PRINT)
    project.python("-m", "package.train", "--kwargs", "lr=0.5")
    project.python(str(project.root / "package" / "train.py"), cwd=project.root.parent)
    names = [run["filename"] for run in project.runs()]
    assert names == ["package/train.py"] * 2
    assert not (project.root.parent / ".flor").exists()


def test_under_pytest(project: Project) -> None:
    project.write("train.py", "import flor\ndef train():\n    return flor.arg('lr', 0.1)\n")
    project.write(
        "test_train.py",
        "import flor, train\ndef test_it():\n    assert train.train() == 0.1\n    flor.log('x', 1)\n",
    )
    done = project.python("-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert "1 passed" in done.stdout
    assert [row["x"] for row in project.frame("x")] == [1]


def test_from_the_environment(project: Project) -> None:
    project.write("train.py", PRINT)
    done = project.python("train.py", FLOR_KWARGS="lr=0.5 'name=two words'")
    assert done.stdout == "0.5 two words False 3 []\n"
