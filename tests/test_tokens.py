"""SQL text as tokens."""

import pytest

from flor.store.tokens import Unclosed, is_balanced, mentions, tokens, wants_all_columns


def texts(sql: str) -> list[str]:
    return [token.text for token in tokens(sql)]


def test_strings_and_comments_hide_what_they_hold():
    sql = "a /* ) /* ; */ b */ = 'x; it''s' -- ) c\n or d = E'\\';' and e = $q$ ;) $q$"
    assert [token.text for token in tokens(sql) if token.kind == "word"] == [
        "a",
        "or",
        "d",
        *["and", "e"],
    ]
    assert is_balanced(tokens(sql))
    assert ";" not in texts(sql)


def test_quoted_names_lose_their_quotes():
    assert [tuple(token) for token in tokens('"val/loss" > "a""b"')] == [
        ("quoted", "val/loss"),
        ("symbol", ">"),
        ("quoted", 'a"b'),
    ]


@pytest.mark.parametrize("sql", ["'a", '"a', "/* a", "/* /* */ a", "e'a\\'"])
def test_what_does_not_end(sql):
    with pytest.raises(Unclosed):
        tokens(sql)


@pytest.mark.parametrize("sql", ["(a", "a)", "a) union (b", "([)]", "}"])
def test_what_is_not_balanced(sql):
    assert not is_balanced(tokens(sql))


def test_functions_and_new_names_are_no_mentions():
    sql = 'select max(acc) as best, count(*), "count", f.loss, runs.seconds from frame f'
    found = mentions(tokens(sql), frozenset({"runs"}))
    assert "acc" in found and "loss" in found and "count" in found
    assert not {"max", "best", "seconds"} & set(found)


@pytest.mark.parametrize(
    ("sql", "everything"),
    [
        ("select * from logs", True),
        ("select l.* from logs l", True),
        ("from logs", True),
        ("summarize logs", True),
        ("select count(*) from logs", False),
        ("select value from logs where ctx_id = 1", False),
    ],
)
def test_whether_all_columns_may_be_meant(sql, everything):
    assert wants_all_columns(tokens(sql)) is everything
