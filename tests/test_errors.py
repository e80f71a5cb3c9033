"""What messages look like."""

from __future__ import annotations

import pytest

from flor.errors import with_single_stops


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("it failed.. Try again", "it failed. Try again"),
        ("it failed..", "it failed."),
        ("it failed. Try again", "it failed. Try again"),
        ("wait...", "wait..."),
        ("look into .. or ../.. then", "look into .. or ../.. then"),
        ("a..b", "a..b"),
    ],
)
def test_only_full_stops_are_made_one(text: str, shown: str) -> None:
    assert with_single_stops(text) == shown
