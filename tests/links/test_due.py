"""Which mirror is looked at next."""

from __future__ import annotations

from linker.links.due import DueTopics


def test_what_is_in_trouble_comes_last_and_after_its_own_pause() -> None:
    due = DueTopics()
    due.ask("a", 0)
    due.ask("b", 0)
    assert due.take(0) == "a"
    due.failed("a", 0)
    assert due.take(0) == "b"
    due.done("b")
    assert due.take(0.1) is None
    assert due.in_trouble
    due.ask("b", 0.3)
    assert [due.take(0.3), due.take(0.3), due.take(0.3)] == ["b", "a", None], "both were due"
    assert not due.in_trouble


def test_the_pause_grows_until_it_is_done() -> None:
    due = DueTopics()
    due.ask("a", 0)
    now, pauses = 0.0, []
    for _ in range(7):
        assert due.take(now) == "a"
        due.failed("a", now)
        at = due.next_at()
        assert at is not None
        pauses.append(round(at - now, 3))
        now = at
    assert pauses == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert due.take(now) == "a"
    due.done("a")
    due.ask("a", now)
    assert due.take(now) == "a"
    due.failed("a", now)
    assert due.next_at() == now + 0.2


def test_news_of_it_shorten_its_pause_alone() -> None:
    due = DueTopics()
    for topic in ("a", "b"):
        due.ask(topic, 0)
        due.take(0)
        due.failed(topic, 0)
    due.ask("b", 0.1)
    assert due.take(0.1) is None
    assert [due.take(0.16), due.take(0.16)] == ["b", None]
    due.done("b")
    assert due.next_at() == 0.2
    assert due.take(0.2) == "a"


def test_what_asks_for_itself_and_fails_leaves_room() -> None:
    due = DueTopics()
    due.ask("a", 0)
    assert due.take(0) == "a"
    due.ask("a", 0)
    due.failed("a", 0)
    assert due.take(0.04) is None
    assert due.take(0.05) == "a"


def test_of_those_in_trouble_each_has_its_turn() -> None:
    due = DueTopics()
    for topic in ("a", "b", "c"):
        due.ask(topic, 0)
    tried = []
    now = 0.0
    for _ in range(9):  # a try takes longer than a pause
        topic = due.take(now)
        assert topic is not None
        tried.append(topic)
        now += 10
        due.failed(topic, now)
        now += 5
    assert tried == ["a", "b", "c"] * 3
