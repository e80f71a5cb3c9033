"""A notebook's code as one module, and back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flor.errors import BadSource
from flor.source.notebooks import Notebook
from flor.source.propagate import propagate
from flor.source.syntax import Source


def notebook(*cells: Any, **form: Any) -> str:
    """A file with code cells; a text in a list is a markdown cell."""
    made = [
        {"cell_type": "markdown", "metadata": {}, "source": cell}
        if isinstance(cell, list)
        else {"cell_type": "code", "metadata": {}, "outputs": ["é"], "source": written(cell, form)}
        for cell in cells
    ]
    data = {"cells": made, "metadata": {"x": 1.50}, "nbformat": 4}
    form = {"indent": 1, "ensure_ascii": False} | {k: v for k, v in form.items() if k != "as_list"}
    return json.dumps(data, **form) + "\n"


def written(cell: str, form: dict[str, Any]) -> Any:
    return cell.splitlines(keepends=True) if form.get("as_list", True) else cell


CELLS = ["import a\na.run()", ["# Title\n", "print(0)"], "", "%matplotlib inline\nx = 'é'\n\ny = x"]
FORMS = [
    {},
    {"indent": None},
    {"indent": 2},
    {"ensure_ascii": True},
    {"as_list": False},
    {"as_list": False, "ensure_ascii": True, "indent": None},
    {"indent": None, "separators": (",", ":")},
]


@pytest.mark.parametrize("form", FORMS)
def test_nothing_changes_where_nothing_is_added(form):
    content = notebook(*CELLS, **form)
    found = Notebook(content)
    assert found.with_module(found.module) == content


@pytest.mark.parametrize("form", FORMS)
def test_only_one_cell_changes(form):
    content = notebook(*CELLS, **form)
    found = Notebook(content)
    done = found.with_module(found.module.replace("y = x", "print(x)\ny = x"))
    assert done == notebook(*CELLS[:3], CELLS[3].replace("y = x", "print(x)\ny = x"), **form)


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_what_json_leaves_open_stays(newline):
    """Numbers, escapes, spaces and the order of keys are those of the file."""
    content = (
        '{ "nbformat":4.0, "cells" : [ {"source":["x = \\u0031\\n", "\\u0079 = 2"],'
        '\n\t"cell_type":"code","execution_count":1e2}]\n}'
    ).replace("\n", newline)
    found = Notebook(content)
    assert found.with_module(found.module) == content
    done = found.with_module(found.module.replace("y = 2", "print(x)\ny = 2"))
    assert done.startswith('{ "nbformat":4.0, "cells" : [ {"source":[')
    assert done.endswith('"cell_type":"code","execution_count":1e2}]\n}'.replace("\n", newline))
    assert json.loads(done)["cells"][0]["source"] == ["x = 1\n", "print(x)\n", "y = 2"]
    assert '"x = \\u0031\\n"' in done


MAGICS = [
    "%matplotlib inline",
    "!pip install torch",
    "x = !ls",
    "x = %time f()",
    "%%bash\necho 'a\nls",
    "%%html\n<b>\n",
    "%%time\nx = 1",
    "%%capture out\nx = 1",
    "if 1:\n    %time f()",
    "print('%s'\n%(1))",
    "for i in a:\n    !echo {i}\n    f(i)",
    "obj?",
    "obj.f??",
    "?obj",
    "x = 5 % 3\ny = (x\n     % 2)",
    "x = 'what?'",
    "x = '''\n%not a magic\n!nor this\nwhat?\n'''",
    "print('a')  # what?",
    "# what?",
    "files = !ls | grep a",
    "a, b = %sql select 1",
    "%time x = f()",
]


@pytest.mark.parametrize("cell", MAGICS)
def test_magics(cell):
    """The module parses, and a statement behind them gets into the notebook."""
    content = notebook(cell, "a = 1")
    found = Notebook(content)
    assert Source(found.module)
    assert found.with_module(found.module) == content
    done = found.with_module(found.module.replace("a = 1", "a = 1\nprint(a)"))
    assert done == notebook(cell, "a = 1\nprint(a)")


@pytest.mark.parametrize("cell", [m for m in MAGICS if not m.startswith(("%%bash", "%%html", " "))])
def test_magics_in_the_same_cell(cell):
    content = notebook(f"{cell}\na = 1\nb = 2")
    found = Notebook(content)
    done = found.with_module(found.module.replace("a = 1", "a = 1\nprint(a)"))
    assert done == notebook(f"{cell}\na = 1\nprint(a)\nb = 2")


@pytest.mark.parametrize(
    ("cell", "line", "words"),
    [(1, 1, "import a"), (1, 2, "a.run()"), (3, 1, ""), (4, 2, "x = 'é'"), (4, 4, "y = x")],
)
def test_lines_and_places(cell, line, words):
    found = Notebook(notebook(*CELLS))
    number = found.line(cell, line)
    assert found.module.split("\n")[number - 1] == words
    assert found.place(number) == (cell, line)


@pytest.mark.parametrize(("cell", "line"), [(2, 1), (9, 1), (0, 1), (1, 3), (1, 0), (3, 2)])
def test_no_such_line(cell, line):
    with pytest.raises(BadSource, match="notebook"):
        Notebook(notebook(*CELLS)).line(cell, line)


@pytest.mark.parametrize(
    "content",
    ["", "no json", "[]", "{}", '{"cells": 1}', '{"cells": [{}]}', '{"cells": [1]}', "[" * 100_000],
)
def test_what_is_no_notebook(content):
    with pytest.raises(BadSource, match="notebook cannot be read"):
        Notebook(content)


def test_a_notebook_without_cells():
    found = Notebook(notebook())
    assert found.with_module(found.module) == found.content


def test_what_is_no_magic_travels_as_it_is():
    text = "a = 1\nprint(a, '''\n%d items\n!\n''',\n% 2)\nb = 2"
    text = text.replace("\n% 2", "\nb\n% 2").replace("b = 2", "c = 2").replace("a = 1", "a = b = 1")
    newer, older = Notebook(notebook(text)), Notebook(notebook("a = b = 1\nc = 2"))
    found = propagate(Source(newer.module), Source(older.module), 2)
    assert older.with_module(found.text) == notebook(text)


@pytest.mark.parametrize("indent", [1, 2, 4, "\t", None])
def test_an_empty_list_of_lines_gets_the_form_of_the_file(indent):
    found = Notebook(notebook("", indent=indent))
    assert found.with_module("b = 2\nc = 3\n") == notebook("b = 2\nc = 3", indent=indent)


def test_a_cell_that_looks_like_what_is_between_cells():
    content = notebook("a = 1\n\n# %% next cell\n\nb = 2", "c = 3")
    found = Notebook(content)
    assert found.with_module(found.module) == content


PLACES = [
    (["a = 1", "b = 2\nprint(a)"], ["a = 1", "b = 2"], 1, "b = 2\nprint(a)"),
    (["a = 1", "print(a)\nb = 2"], ["a = 1", "b = 2"], 1, "print(a)\nb = 2"),
    (["a = 1\nprint(a)", "b = 2"], ["a = 1", "b = 2"], 0, "a = 1\nprint(a)"),
    (["a = 1\nb = 2\nprint(a)"], ["%cd\na = 1", "b = 2\n"], 1, "b = 2\nprint(a)\n"),
    (["for i in x:\n    print(i)\n    f(i)"], ["for i in x:\n    f(i)"], 0, None),
]


@pytest.mark.parametrize(("new", "old", "cell", "expected"), PLACES)
def test_a_statement_goes_into_its_cell(new, old, cell, expected):
    newer, older = Notebook(notebook(*new)), Notebook(notebook(*old))
    line = next(n for n, t in enumerate(newer.module.split("\n"), 1) if "print" in t)
    found = propagate(Source(newer.module), Source(older.module), line)
    done = older.with_module(found.text)
    changed = [*old[:cell], expected or new[0], *old[cell + 1 :]]
    assert done == notebook(*changed)
