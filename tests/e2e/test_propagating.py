"""`flor propagate` in a git repository."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.conftest import Project

OLD = """\
import flor

for e in range(5):
    cost = train(e)
    save(cost)
"""
MID = OLD.replace("cost", "loss")
NEW = """\
import flor

for epoch in range(9):
    loss = train(epoch)
    flor.log("loss", loss)
    save(loss)
"""
DONE = OLD.replace("    save", '    flor.log("loss", cost)\n    save')


@pytest.fixture
def versions(project: Project) -> Project:
    """`old` is committed with a tag, then a version between; the new one is not committed."""
    for text, tag in ((OLD, "old"), (MID, "mid")):
        project.write("train.py", text)
        project.git("add", "-A")
        project.git("commit", "-qm", tag)
        project.git("tag", tag)
    project.write("train.py", NEW)
    return project


def state(project: Project) -> tuple[str, ...]:
    asked = ("status", "--porcelain"), ("rev-parse", "HEAD"), ("for-each-ref",), ("diff",)
    return (*(project.git(*words) for words in asked), str(sorted(project.root.rglob("*"))))


def propagate(project: Project, *words: str, code: int = 0, cwd: Path | None = None):
    """Stdout as bytes and stderr as text, once it is sure that nothing has changed."""
    before = state(project)
    process = project.start("-m", "flor", "propagate", *words, cwd=cwd)
    assert process.stdout is not None and process.stderr is not None
    out, err = process.stdout.buffer.read(), process.stderr.read()  # type: ignore[attr-defined]
    assert process.wait(60) == code, f"{out!r}\n{err}"
    process.stdout.close()
    process.stderr.close()
    assert state(project) == before
    assert "Traceback" not in err
    return out, err


# -- the two versions ------------------------------------------------------------------------


@pytest.mark.parametrize("old", ["old", "old:train.py", "old.py", "HEAD~1", "tags/old"])
@pytest.mark.parametrize("what", [["--line", "5"], ["--name", "loss"]])
def test_into_a_file_or_a_revision(versions, old, what):
    versions.write("old.py", OLD)
    out, err = propagate(versions, "train.py", old, *what)
    assert (out.decode(), err) == (DONE, "")


def test_from_a_revision(versions):
    versions.git("commit", "-qam", "new")
    out, _ = propagate(versions, "HEAD:train.py", "old", "--name", "loss")
    assert out.decode() == DONE


def test_from_a_folder_below(versions):
    versions.write("sub/train.py", NEW)
    out, _ = propagate(versions, "../train.py", "old", "--line", "5", cwd=versions.root / "sub")
    assert out.decode() == DONE


def test_a_file_of_another_name(versions):
    versions.git("mv", "train.py", "fit.py")
    versions.git("commit", "-qam", "moved")
    out, err = propagate(versions, "fit.py", "old", "--line", "5")
    assert out.decode() == DONE
    assert err == "flor: fit.py was train.py in old\n"


def test_a_version_without_the_file(versions):
    versions.write("other.py", "print('hello')\nx = 1\n")
    out, err = propagate(versions, "other.py", "old", "--line", "1", code=3)
    assert out == b""
    assert "version old has no file 'other.py'" in err


# -- what is printed -------------------------------------------------------------------------


def test_diff(versions):
    out, _ = propagate(versions, "train.py", "old", "--line", "5", "--diff")
    lines = out.decode().splitlines()
    assert [x for x in lines if x[0] in "+-" and x[:3] not in ("+++", "---")] == [
        '+    flor.log("loss", cost)'
    ]


def test_json(versions):
    out, _ = propagate(versions, "train.py", "old", "--line", "5", "--json")
    (item,) = json.loads(out)["placed"]
    assert (item["new_line"], item["line"], item["asked"]) == (5, 5, True)
    assert item["statement"] == 'flor.log("loss", loss)'
    assert item["renames"]["names"] == {"loss": "cost"}
    assert {"new_line": 4, "old_line": 4} in [
        {k: v for k, v in anchor.items() if k != "similarity"} for anchor in item["anchors"]
    ]
    assert 0 < item["confidence"] <= 1


def test_json_of_a_refusal(versions):
    versions.write("new.py", "def f():\n    print(1)\n")
    out, err = propagate(versions, "new.py", "old:train.py", "--line", "2", "--json", code=3)
    data = json.loads(out)
    assert data["placed"] is None
    assert "function f" in data["why"]
    assert err.count("\n") == 1


def test_what_is_there_already_is_told(versions):
    versions.write("done.py", DONE)
    out, err = propagate(versions, "train.py", "done.py", "--line", "5")
    assert out.decode() == DONE
    assert err == "flor: done.py has the statement already, line 5\n"


def test_another_place_is_told_in_one_line(versions):
    versions.write("new.py", "i = 0\nif i == 0:\n    print(i)\n    i = i + 1\n")
    versions.write("twice.py", "i = 0\nif i == 0:\n    i = i + 1\n    i = i + 1\n")
    out, err = propagate(versions, "new.py", "twice.py", "--line", "3")
    assert out.decode().split("\n")[2] == "    print(i)"
    assert err.count("\n") == 1
    assert "before line 4 of twice.py" in err


def test_what_came_with_it_is_told(versions):
    versions.write(
        "new.py", "import math\n" + NEW.replace("\n    save", "\n    print(math.pi)\n    save")
    )
    out, err = propagate(versions, "new.py", "old:train.py", "--line", "7")
    assert "import math\n" in out.decode()
    assert "line 1 came with it" in err


# -- what is refused -------------------------------------------------------------------------

REFUSED = [
    (["new.py", "old:train.py", "--line", "2"], 3, "function f"),
    (["train.py", "two.py", "--line", "5"], 3, "two.py does not parse: line 1"),
    (["train.py", "binary.py", "--line", "5"], 3, "binary.py"),
    (["train.py", "zero.py", "--line", "5"], 3, "zero.py"),
    (["train.py", "empty.py", "--line", "5"], 3, "lacks any statement"),
    (["two.py", "old:train.py", "--line", "1"], 1, "two.py does not parse: line 1"),
    (["train.py", "nowhere", "--line", "5"], 1, "git knows no revision 'nowhere'"),
    (["train.py", "--", "-x", "--line"], 2, ""),
    (["nothing.py", "old", "--line", "5"], 1, "nothing.py"),
    (["train.py", "sub", "--line", "5"], 1, "sub is a folder"),
    (["old", "train.py", "--line", "5"], 1, "which file of it? Write old:FILE"),
    (["train.py", "old:nothing.py", "--line", "5"], 1, "nothing.py"),
    (["train.py", "old", "--line", "99"], 1, "line 99"),
    (["train.py", "old", "--line", "2"], 1, "line 2"),
    (["train.py", "old", "--name", "acc"], 1, "nothing logs 'acc' in train.py"),
    (["train.py", "old"], 2, "--line N or --name NAME"),
    (["train.py", "old", "--line", "x"], 2, "--line 'x'"),
    (["train.py", "old", "--line", "1:5"], 2, "--line '1:5'"),
    (["train.py"], 2, "OLD"),
]


@pytest.mark.parametrize(("words", "code", "why"), REFUSED)
def test_refused(versions, words, code, why):
    versions.write("new.py", "def f():\n    print(1)\n")
    versions.write("two.py", "print 'two'\n")
    versions.write("empty.py", "")
    versions.write("sub/file.py", "")
    (versions.root / "binary.py").write_bytes(bytes(range(256)))
    (versions.root / "zero.py").write_bytes(b"a = 1\0\n")
    out, err = propagate(versions, *words, code=code)
    assert out == b""
    assert why in err


# -- base, and versions between --------------------------------------------------------------


def test_base(versions):
    added = '    if epoch % 10 == 0:\n        flor.log("loss", loss)\n'
    before, _, after = NEW.partition('    flor.log("loss", loss)\n')
    versions.write("base.py", before + after)
    versions.write("train.py", before + added + after)
    _, err = propagate(versions, "train.py", "old", "--line", "6", code=3)
    assert "if epoch % 10" in err
    out, _ = propagate(versions, "train.py", "old", "--line", "6", "--base", "base.py")
    added = '    if e % 10 == 0:\n        flor.log("loss", cost)\n'
    assert out.decode() == OLD.replace("    save", f"{added}    save")


FAR = """\
def train(model):
    prepare(model)
    for piece in stream(model):
        score = model.evaluate(piece, strict=True)
"""
NEAR = """\
def train(net):
    for batch in net.batches:
        score = net.score(batch)
"""
HERE = NEAR.replace("train", "fit") + "        print(score)\n"


def test_by_way_of_another_version(versions):
    for name, text in (("far.py", FAR), ("near.py", NEAR), ("here.py", HERE)):
        versions.write(name, text)
    propagate(versions, "here.py", "far.py", "--line", "4", code=3)
    out, err = propagate(versions, "here.py", "far.py", "--line", "4", "--via", "near.py")
    assert out.decode() == FAR + "        print(score)\n"
    assert "by way of 1 versions" in err


def test_by_way_of_the_commits_between(versions):
    for text in (FAR, NEAR, HERE):
        versions.write("net.py", text)
        versions.git("add", "-A")
        versions.git("commit", "-qm", "net")
    out, _ = propagate(versions, "net.py", "HEAD~2", "--line", "4")
    assert out.decode() == FAR + "        print(score)\n"


# -- bytes -----------------------------------------------------------------------------------

BYTES = [
    OLD.replace("\n", "\r\n").encode(),
    b"\xef\xbb\xbf" + OLD.encode(),
    b"# coding: latin-1\n# \xe9\n" + OLD.encode() + b"x = '\xfc'",
    OLD.replace("    ", "\t").encode() + b"\x0c\n\n",
]


@pytest.mark.parametrize("content", BYTES)
def test_all_other_bytes_stay(versions, content):
    (versions.root / "old.py").write_bytes(content)
    out, _ = propagate(versions, "train.py", "old.py", "--line", "5")
    (added,) = [line for line in out.splitlines(keepends=True) if b"flor.log" in line]
    assert added.strip() == b'flor.log("loss", cost)'
    assert out.replace(added, b"") == content


def test_what_the_encoding_lacks(versions):
    versions.write("train.py", NEW.replace('"loss", loss', '"l€ss", loss'))
    (versions.root / "old.py").write_bytes(b"# coding: latin-1\n" + OLD.encode())
    _, err = propagate(versions, "train.py", "old.py", "--line", "5", code=3)
    assert "'€' cannot be written in iso-8859-1" in err


# -- notebooks -------------------------------------------------------------------------------


def notebook(*cells: str) -> str:
    made = [
        {
            "cell_type": "code",
            "metadata": {},
            "outputs": [],
            "source": cell.splitlines(keepends=True),
        }
        for cell in cells
    ]
    return json.dumps({"cells": made, "metadata": {}, "nbformat": 4}, indent=1) + "\n"


def test_into_a_notebook(versions):
    head, _, body = OLD.rstrip("\n").partition("\n\n")
    versions.write("old.ipynb", notebook("%matplotlib inline\n" + head, body))
    out, _ = propagate(versions, "train.py", "old.ipynb", "--line", "5")
    body = DONE.rstrip("\n").partition("\n\n")[2]
    assert out.decode() == notebook("%matplotlib inline\n" + head, body)


def test_from_a_notebook(versions):
    head, _, body = NEW.rstrip("\n").partition("\n\n")
    versions.write("new.ipynb", notebook(head, body))
    out, _ = propagate(versions, "new.ipynb", "old:train.py", "--line", "2:3")
    assert out.decode() == DONE
    for line, code in (("5", 2), ("2:x", 2), ("9:1", 1)):
        propagate(versions, "new.ipynb", "old:train.py", "--line", line, code=code)


def test_a_magic_is_no_statement(versions):
    versions.write("new.ipynb", notebook("x = !ls\nif x:\n    %cd ..\n    print(x)"))
    for line, code in (("1:1", 1), ("1:2", 1), ("1:3", 1), ("1:4", 3)):
        _, err = propagate(versions, "new.ipynb", "old:train.py", "--line", line, code=code)
        assert ("magic" in err) == (code == 1)


def test_a_file_that_is_no_notebook(versions):
    versions.write("old.ipynb", "{}")
    propagate(versions, "train.py", "old.ipynb", "--line", "5", code=3)


# -- elsewhere -------------------------------------------------------------------------------


def test_without_a_repository(folder):
    folder.write("new.py", NEW)
    folder.write("old.py", OLD)
    assert folder.flor("propagate", "new.py", "old.py", "--line", "5") == DONE
    done = folder.start("-m", "flor", "propagate", "new.py", "old", "--line", "5")
    _, err = done.communicate(timeout=60)
    assert done.returncode == 1
    assert "Traceback" not in err


def test_the_function(versions):
    versions.write("old.py", OLD)
    script = (
        "import flor, pathlib; n, o = (pathlib.Path(p).read_text() for p in ('train.py', 'old.py'));"
        "print(flor.propagate(n, o, 5), end='')"
    )
    assert versions.python("-c", script).stdout == DONE
