"""Long lists are cut, and say so."""

from __future__ import annotations

from wire.shown_id import listed


def test_a_list_that_is_cut_says_how_many_more_there_are() -> None:
    assert listed([]) == ""
    assert listed(["a", "b"], 2) == "a, b"
    assert listed(iter("abcd"), 2) == "a, b and 2 more"
    assert listed("abc", 2, apart="; ", last="; and ") == "a; b; and 1 more"
