"""A module's text as statements and tokens."""

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flor.source.syntax import Source, decode
from flor.source.tokens import tokens

# -- tokens ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("f(a,b)", "f( a, b )  # c"),
        ("f(a, b)", "f(\n    a,\n    b,\n)"),
        ("f('a')", 'f("a")'),
        ("f('a')", 'f("""a""")'),
        ("a = b + c", "a = b + \\\n    c"),
        ("a[1:2]", "a [ 1 : 2 ]"),
        ("F'{a}'", 'f"{a}"'),
        ("[1, 2]", "[1,\r\n 2,]"),
    ],
)
def test_formatting_does_not_count(one, other):
    assert tokens(one) == tokens(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("f(a)", "f(b)"),
        ("f('a')", "f('a ')"),
        ("f('a')", "f(b'a')"),
        ("f('#a')", "f('#b')"),
        ("a - b", "a -- b"),
        ("a == b", "a = b"),
        ("1.5", "15"),
        ("a.b", "a, b"),
        ("f(a, *b)", "f(a, **b)"),
    ],
)
def test_meaning_counts(one, other):
    assert tokens(one) != tokens(other)


WORDS = ["a", "foo", "1", "0x1f", "1e-5", "'s'", '"# s"', "f'{a}'", "+", "**=", "(", ")", ":", "->"]


@given(
    st.lists(st.sampled_from(WORDS)), st.sampled_from([" ", "  ", "\n", "\t", "  # c\n", " \\\n"])
)
def test_space_does_not_count(words, space):
    assert tokens(space.join(words)) == tokens(" ".join(words))


# -- statements ------------------------------------------------------------------------------

PROGRAM = '''\
import a, b; c = 1
@d(
    1)
def f(x):
    """Doc."""
    if x:
        y = (1,
             2)
    elif c:
        y = 3

    else:
        y = 4
    return y
try:
    f(1)
except E as e:
    f(2)
else:
    f(3)
finally:
    f(4)
match c:
    case 1:
        f(5)
    case _: f(6)
'''


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (1, "import a, b"),
        (2, "@d("),
        (4, "@d("),
        (5, '"""Doc."""'),
        (6, "if x:"),
        (7, "y = (1,"),
        (8, "y = (1,"),
        (9, "if x:"),
        (10, "y = 3"),
        (13, "y = 4"),
        (14, "return y"),
        (16, "f(1)"),
        (17, "try:"),
        (18, "f(2)"),
        (20, "f(3)"),
        (22, "f(4)"),
        (25, "f(5)"),
        (26, "f(6)"),
    ],
)
def test_the_statement_at_a_line(line, text):
    found = Source(PROGRAM).at(line)
    assert found is not None
    assert found.text.split("\n")[0] == text


def test_the_record_among_several_in_a_line():
    found = Source("a = 1; flor.log('a', a); b = 2\n").at(1)
    assert found is not None
    assert found.text == "flor.log('a', a)"


def test_branches():
    source = Source(PROGRAM)
    kinds = {s.kind: [b.kind for b in s.branches] for s in walk(source) if s.is_compound}
    assert kinds == {
        "FunctionDef": ["body"],
        "If": ["if", "if", "else"],
        "Try": ["try", "except", "else", "finally"],
        "Match": ["case", "case"],
    }


def walk(source):
    return [s for outer in source.module.statements for s in outer.walk()]


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_each_statement_s_text_is_the_statement(newline, mark):
    program = mark + PROGRAM.replace("c = 1", "c = 'é'; g = 'ü'").replace("\n", newline)
    for statement in walk(Source(program)):
        assert program[statement.start : statement.end] == statement.text
        assert statement.text == statement.text.strip()
        if not statement.is_compound and statement.kind != "Import":
            first = statement.text.replace(newline, " ")
            wrapped = f"def f():\n {first}\n"
            assert ast.dump(ast.parse(wrapped).body[0].body[0]) == ast.dump(statement.node)


# -- files -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "text", "encoding"),
    [
        (b"x\r\n", "x\r\n", "utf-8"),
        (b"# coding: latin-1\n\xe9", "# coding: latin-1\né", "iso-8859-1"),
        (b"#!x\n# -*- coding: cp1252 -*-\n\x80", "#!x\n# -*- coding: cp1252 -*-\n€", "cp1252"),
        (b"\xef\xbb\xbfx", "\ufeffx", "utf-8"),
        (b"", "", "utf-8"),
    ],
)
def test_decoded(content, text, encoding):
    assert decode(content) == (text, encoding)
    assert text.encode(encoding) == content


@pytest.mark.parametrize("content", [b"\xff", b"# coding: nonsense\n", b"# coding: ascii\n\xe9"])
def test_what_cannot_be_decoded(content):
    with pytest.raises((SyntaxError, UnicodeDecodeError)):
        decode(content)
