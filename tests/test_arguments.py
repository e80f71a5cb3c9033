"""flor.record.arguments: the command line."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Any

import pytest

from flor.errors import ArgumentError
from flor.record.arguments import Given, convert, take


class Color(enum.Enum):
    RED = "r"
    BLUE = "b"


@pytest.mark.parametrize(
    ("words", "pairs", "rest"),
    [
        (["x"], {}, ["x"]),
        (["--kwargs", "a=1", "b=2"], {"a": "1", "b": "2"}, []),
        (["--kwargs", "a=1=2", "b="], {"a": "1=2", "b": ""}, []),
        (["f", "--kwargs", "a=1", "g", "--c=3"], {"a": "1"}, ["f", "g", "--c=3"]),
        (["--kwargs", "a=1", "--kwargs", "b=2"], {"a": "1", "b": "2"}, []),
        (["--flor-kwargs", "a=1"], {"a": "1"}, []),
        (["--", "--kwargs", "a=1"], {}, ["--", "--kwargs", "a=1"]),
        (["--kwargs", "a=1", "--lr=3"], {"a": "1"}, ["--lr=3"]),
        (["--kwargs=a=1", "b=2", "c"], {"a": "1", "b": "2"}, ["c"]),
    ],
)
def test_take(words: list[str], pairs: dict[str, str], rest: list[str]) -> None:
    argv = ["train.py", *words]
    given = take(argv, None, None)
    assert (given.command_line, given.mistake) == (pairs, None)
    assert argv == ["train.py", *rest]


@pytest.mark.parametrize(
    "words", [["--kwargs"], ["--kwargs", "lr", "0.1"], ["--kwargs", "=1"], ["--kwargs=lr"]]
)
def test_a_mistake_is_kept_for_later(words: list[str]) -> None:
    mistake = take(["train.py", *words], None, None).mistake
    assert mistake is not None
    assert "name=value" in mistake


def test_environment() -> None:
    given = take(["train.py", "--kwargs", "a=1"], None, "a=2 'b=x y'")
    assert given.get("a") == ("1", "kwargs")
    assert given.get("b") == ("x y", "environment")
    assert "pairs" in (take(["t"], None, "lonely").mistake or "")
    assert "read" in (take(["t"], None, "'open").mistake or "")


def test_a_script_that_owns_the_option(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text('parser.add_argument("-k", "--kwargs")')
    argv = ["train.py", "--kwargs", "a=1"]
    assert take(argv, script, None) == Given({}, {})
    assert argv == ["train.py", "--kwargs", "a=1"]
    script.write_text("run(['train.py', '--kwargs', 'a=1'])\n")
    assert take([*argv], script, None).command_line == {"a": "1"}


def test_an_option_that_a_project_file_owns(tmp_path: Path) -> None:
    """It counts if the script mentions the file, and the user is told."""
    script = tmp_path / "train.py"
    script.write_text("import utils.args\n")
    (tmp_path / "utils").mkdir()
    options = tmp_path / "utils" / "args.py"
    options.write_text("@click.option(\n    '--kwargs', multiple=True)\n")
    argv = ["train.py", "--kwargs", "a=1"]
    given = take(argv, script, None)
    assert given.command_line == {}
    assert str(options) in given.notes[0]
    script.write_text("import other\n")
    assert take(argv, script, None).command_line == {"a": "1"}


@pytest.mark.parametrize(
    ("text", "default", "value"),
    [
        ("1", 0, 1),
        ("-7", 3, -7),
        ("1", 0.5, 1.0),
        ("inf", 0.5, float("inf")),
        ("No", True, False),
        ("1", "a", "1"),
        ("", "a", ""),
        ("a/b", Path("x"), Path("a/b")),
        ("[1, 2]", [0], [1, 2]),
        ("1,2", [0], [1, 2]),
        ("adam,sgd", ["x"], ["adam", "sgd"]),
        ("(1, 2)", (0,), (1, 2)),
        ("5", (0,), (5,)),
        ("{'a': 1}", {}, {"a": 1}),
        ("None", None, None),
        ("3", None, 3),
        ("text", None, "text"),
        ("BLUE", Color.RED, Color.BLUE),
        ("b", Color.RED, Color.BLUE),
    ],
)
def test_convert(text: str, default: Any, value: Any) -> None:
    found = convert("x", text, default)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "default", "expected"),
    [
        ("a", 1, "an int such as 1"),
        ("1e3", 1, "an int such as 1"),
        ("x", 0.5, "a float such as 0.5"),
        ("2", True, "true or false"),
        ("[1", {"a": 1}, "a dict such as {'a': 1}"),
        ("GREEN", Color.RED, "one of RED, BLUE"),
    ],
)
def test_what_does_not_fit(text: str, default: Any, expected: str) -> None:
    with pytest.raises(ArgumentError, match="expects") as caught:
        convert("x", text, default)
    assert str(caught.value).endswith(expected)
