"""Nothing of the older version changes but that the statement is in it."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flor.errors import NoPlace
from flor.source.propagate import patched, propagate
from flor.source.splice import unit
from flor.source.syntax import Source, decode

# -- single cases ----------------------------------------------------------------------------

NEW = "a = 1\nif a:\n    b = 2\n    print(a)\n    c = 3\nd = 4\n"
LAYOUTS = [
    ("a = 1\nif a:\n  b = 2\n  c = 3\nd = 4\n", "  print(a)\n"),
    ("a = 1\nif a:\n\tb = 2\n\tc = 3\nd = 4\n", "\tprint(a)\n"),
    ("a = 1\r\nif a:\r\n    b = 2\r\n    c = 3\r\nd = 4\r\n", "    print(a)\r\n"),
    ("a = 1\rif a:\r    b = 2\r    c = 3\rd = 4\r", "    print(a)\r"),
    ("\ufeffa = 1\nif a:\n    b = 2\n    c = 3\nd = 4", "    print(a)\n"),
    ("a = 1 \nif a: \n    b = 2 \t\n    c = 3  \nd = 4", "    print(a)\n"),
    ("a = 1\n\x0c\nif a:\n    b = 2\n    c = 3\n\x0cd = 4\n", "    print(a)\n"),
    ("a = 1\nif \\\n  a:\n    b = \\\n 2\n    c = 3\nd = 4\n", "    print(a)\n"),
    ("a = 1\nif a:\n    b = 2; c = 3\nd = 4\n", "print(a); "),
    ("a = 1\nif a:\n    b = 2 ; c = 3 ; \nd = 4\n", "print(a); "),
    ("a = 1\nif a: b = 2; c = 3 # so\nd = 4\n", "print(a); "),
    ("a = 1\nif a: b = 2\nd = 4\n", "; print(a)"),
    ("a = 1\nif a: b = 2;\nd = 4\n", "; print(a)"),
    ("a = 1\nif a:\n    b = 2", "\n    print(a)"),
    ("a = 1\nif a:\n    b = 2  # two", "\n    print(a)"),
    ('a = 1\nif a:\n    b = """2\n"""\n    c = 3\n', "    print(a)\n"),
    ('a = 1\nif a:\n    b = """2\n  3"""; c = 3\n', "print(a); "),
    ("ä = 'ö'; a = 1\nif a:\n    b = 2; c = 'é'\n", "print(a); "),
    ("a = 1\nif a:\n    b = 2\n    # three\n    c = 3\n", "    print(a)\n"),
    ("a = 1\nif a:\n    b = 2\n\n\n    c = 3\n", "    print(a)\n"),
]


@pytest.mark.parametrize(("old", "inserted"), LAYOUTS)
def test_only_the_statement_is_added(old, inserted):
    text = patched(NEW, old, 4)
    place = text.index("print(a)") - inserted.index("print(a)")
    assert text[place : place + len(inserted)] == inserted
    assert text[:place] + text[place + len(inserted) :] == old
    assert Source(text).at(text.count("\n", 0, place) + 1) or "\r" in old


@pytest.mark.parametrize("bytes_", [b"# coding: latin-1\nx = '\xe9'\n", b"\xef\xbb\xbfx = 1\n"])
def test_the_encoding_line_stays_the_first(bytes_):
    text, encoding = decode(bytes_)
    done = patched("import sys\nprint(sys)\nx = 1\n", text, 2).encode(encoding)
    assert done.startswith((b"# coding", b"\xef\xbb\xbf"))
    assert decode(done)[1] == encoding


@pytest.mark.parametrize(
    "top", ["#!/usr/bin/env python\n", "#!python\n# coding: utf-8\n", "# Copyright\n\n"]
)
def test_what_is_at_the_top_stays_there(top):
    assert patched("print(0)\nx = 1\n", top + "x = 1\n", 1) == top + "print(0)\nx = 1\n"


def test_behind_the_docstring_and_imports_from_the_future():
    old = '"""Doc."""\nfrom __future__ import annotations\nx = 1\n'
    done = patched("print(0)\nx = 1\n", old, 1)
    assert done == '"""Doc."""\nfrom __future__ import annotations\nprint(0)\nx = 1\n'


MULTILINE = [
    ("print(\n        a,\n    )", "print(\n      a,\n  )"),
    ('print("""\n  a\n\n""")', 'print("""\n  a\n\n""")'),
    ("print(a,  # one\n          a)", "print(a,  # one\n        a)"),
    ("if a:\n        print(a)\n\n        b = 3", "if a:\n      print(a)\n\n      b = 3"),
    ("print(f'''\n    {a}\n''')", "print(f'''\n    {a}\n''')"),
    ("x = a + \\\n        a", "x = a + \\\n      a"),
]


@pytest.mark.parametrize(("probe", "expected"), MULTILINE)
def test_statements_of_several_lines_keep_their_form(probe, expected):
    new = f"a = 1\nif a:\n    b = 2\n    {probe}\n    c = 3\n"
    old = "a = 1\nif a:\n  b = 2\n{}  c = 3\n"
    text = patched(new, old.format(""), 4)
    assert text == old.format(f"  {expected}\n") or "if a:\n        " in probe
    assert ast.dump(ast.parse(text)) == ast.dump(ast.parse(new))


def test_a_string_of_several_lines_keeps_its_value_in_other_newlines():
    new = 'a = 1\nprint("""x\n  y""")\nb = 2\n'
    text = patched(new, "a = 1\r\nb = 2\r\n", 2)
    assert text == 'a = 1\r\nprint("""x\r\n  y""")\r\nb = 2\r\n'
    assert ast.dump(ast.parse(text)) == ast.dump(ast.parse(new))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = 1\n", "    "),
        ("if x:\n  y\n", "  "),
        ("if x: y\nwhile x:\n\ty\n", "\t"),
        ("class C:\n   def f(self): y\n", "   "),
    ],
)
def test_what_a_file_is_indented_by(text, expected):
    assert unit(Source(text)) == expected


# -- any program -----------------------------------------------------------------------------

SIMPLE = st.sampled_from(
    [
        "a = 1",
        "b = a",
        "step(a, 'é')",
        "c = (a,\n  b)",
        "d = '''x\n y'''",
        "a += 1  # more",
        "pass",
        "a = 1; b = 2",
        "a = 1 ;b = 2;",
        "e = a + \\\n  1",
        "step(a)\n",
        "# a comment\nstep(b)",
    ]
)
HEADS = st.sampled_from(
    ["if a:", "for i in b:", "while a :", "with a as c:  # c", "def f(x):", "class C:"]
)


@st.composite
def blocks(draw, depth=0, indent=""):
    """The lines of a block, as people lay them out."""
    lines = []
    for _ in range(draw(st.integers(1, 4))):
        if depth < 3 and draw(st.integers(0, 3)) == 0:
            head = draw(HEADS)
            if draw(st.integers(0, 3)) == 0 and "#" not in head:
                lines.append(f"{indent}{head} step(a); b = 1")
            else:
                deeper = indent + draw(st.sampled_from(["    ", "  ", "\t"]))
                lines += [indent + head, *draw(blocks(depth + 1, deeper))]
        else:
            first, *rest = draw(SIMPLE).split("\n")
            is_plain = first.startswith(("#", "step(a)"))
            lines += [indent + first, *[(indent + r if is_plain and r else r) for r in rest]]
    return lines


@st.composite
def programs(draw):
    newline = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    end = draw(st.sampled_from(["", "\n", "\n\n", "  \n", "\n# end"]))
    mark = draw(st.sampled_from(["", "\ufeff", "# coding: utf-8\n", "\n\x0c\n"]))
    text = mark + "\n".join(["import a, b", *draw(blocks())]) + end
    return text.replace("\n", newline)


PROBES = ["print(a)", "print(\n    a,\n)", "if a:\n    print(b)", "print('''\n  a''')  # why"]


@settings(max_examples=400, deadline=None)
@given(programs(), programs(), st.sampled_from(PROBES), st.data())
def test_what_is_added_is_all_that_changes(new, old, probe, data):
    """Into the new version itself and into another one, which has other newlines."""
    source = Source(new)
    statements = [s for outer in source.module.statements for s in outer.walk()]
    own_line = [s for s in statements if not new[source.starts[s.first_line - 1] : s.start].strip()]
    before = data.draw(st.sampled_from(own_line))
    start = source.starts[before.first_line - 1]
    indent = new[start : before.start]
    lines = source.newline.join(indent + line for line in probe.split("\n"))
    version = new[:start] + lines + source.newline + new[start:]
    line = before.first_line
    for older in (new, old):
        try:
            found = propagate(Source(version), Source(older), line)
        except NoPlace:
            continue
        check_added(older, found.text, in_one_piece=len(found.placed) == 1 and probe[:2] != "if")


def check_added(old: str, text: str, in_one_piece: bool) -> None:
    """The text is the old one with something in between."""
    assert Source(text)
    assert text.count("print") == old.count("print") + 1
    head = next((n for n, (a, b) in enumerate(zip(old, text, strict=False)) if a != b), len(old))
    if in_one_piece:
        assert text[head + len(text) - len(old) :] == old[head:]
    rest = iter(text)
    assert all(char in rest for char in old)
