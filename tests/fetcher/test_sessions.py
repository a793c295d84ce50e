"""Both sides of incremental fetch sessions, each against a dumb model of the other."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fetcher.error_table import ErrorAction, classify
from fetcher.fetch_session import SourceSession
from fetcher.follower_sessions import MAX_EPOCH, SessionCache
from wire.errors import LocalProtocolError
from wire.frames.fetch import FetchPartition, FetchRequest


def part(index: int, offset: int) -> FetchPartition:
    return FetchPartition(index, 0, offset, -1, -1, 1000)


class Server:
    """The sessions of a source broker, the plain way."""

    def __init__(self) -> None:
        self.sessions: dict[int, tuple[int, dict[tuple[object, int], FetchPartition]]] = {}
        self.next_id = 1

    def answer(self, session_id: int, epoch: int, topics: Any, forgotten: Any) -> tuple[int, int, Any]:
        asked = {(t, p.index): p for t, ps in topics for p in ps}
        if epoch == 0:
            self.sessions.pop(session_id, None)
            made = self.next_id
            self.next_id += 1
            self.sessions[made] = (1, asked)
            return 0, made, asked
        if session_id not in self.sessions:
            return 70, 0, {}
        expected, held = self.sessions[session_id]
        if expected != epoch:
            return 71, 0, {}
        for topic, indexes in forgotten:
            for index in indexes:
                assert (topic, index) in held, "forgot what was never held"
                del held[topic, index]
        held.update(asked)
        self.sessions[session_id] = (1 if epoch == MAX_EPOCH else epoch + 1, held)
        return 0, session_id, held


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_source_session_always_asks_for_exactly_what_is_wanted(data: st.DataObject) -> None:
    session = SourceSession()
    server = Server()
    wanted: dict[tuple[str, int], FetchPartition] = {}
    for _ in range(data.draw(st.integers(1, 25))):
        for _ in range(data.draw(st.integers(0, 4))):
            key = (data.draw(st.sampled_from(["a", "b"])), data.draw(st.integers(0, 3)))
            if data.draw(st.booleans()):
                wanted[key] = part(key[1], data.draw(st.integers(0, 3)))
                session.want(key, wanted[key])
            else:
                wanted.pop(key, None)
                session.drop(key)
        assert len(session) == len(wanted)
        before = dict(wanted)
        request = session.next_request()
        assert (request is None) == (not before)
        if request is None:
            continue
        event = data.draw(st.sampled_from(["ok", "ok", "ok", "lost", "evicted", "unreadable", "no room"]))
        if event == "evicted":
            server.sessions.clear()
        error, session_id, held = server.answer(*request)
        if not error:
            assert held == before
            for key, value in before.items():
                assert session.asked(key) == value
        if event == "lost":
            session.failed(connection_lost=True)
            server.sessions.clear()
        elif event == "unreadable":
            session.failed(connection_lost=False)
        elif event == "no room" and not error:
            server.sessions.pop(session_id, None)
            assert session.answered(0, 0)
        else:
            assert session.answered(error, session_id) == (not error)


def test_one_request_in_flight() -> None:
    session = SourceSession()
    session.want(("a", 0), part(0, 0))
    assert session.next_request() is not None
    with pytest.raises(LocalProtocolError):
        session.next_request()
    assert session.answered(0, 5)
    with pytest.raises(LocalProtocolError):
        session.answered(0, 5)


def request(session_id: int, epoch: int, offsets: dict[int, int], forgotten: list[int]) -> FetchRequest:
    return FetchRequest(
        17,
        1,
        session_id=session_id,
        session_epoch=epoch,
        topics=[(b"t" * 16, [part(i, o) for i, o in offsets.items()])],
        forgotten=[(b"t" * 16, forgotten)],
    )


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.dictionaries(st.integers(0, 5), st.integers(0, 9)), st.lists(st.integers(0, 5))))
)
def test_server_session_holds_what_was_asked(
    steps: list[tuple[dict[int, int], list[int]]],
) -> None:
    cache = SessionCache(2)
    session = cache.create(1, True, 0.0)
    assert session is not None
    model: dict[int, int] = {}
    for offsets, forgotten in steps:
        ask = request(session.id, session.epoch, offsets, forgotten)
        assert cache.find(ask, True) is session
        session.advance_epoch()
        assert cache.find(ask, True) == 71
        named = session.update(ask)
        assert [p.index for p in named] == list(offsets)
        model.update(offsets)
        for index in forgotten:
            model.pop(index, None)
        assert {k[1]: p.request.fetch_offset for k, p in session.partitions.items()} == model
        assert {p.index for p in session.dirty} <= set(model)
        assert set(offsets) - set(forgotten) <= {p.index for p in session.dirty}


def test_cache_is_bounded_and_evicts_the_idle() -> None:
    cache = SessionCache(2, evict_after=10)
    first, second = cache.create(1, True, 0.0), cache.create(2, True, 5.0)
    assert first is not None
    assert second is not None
    assert cache.create(3, True, 9.0) is None
    third = cache.create(3, True, 11.0)
    assert third is not None
    assert first not in cache.all()
    assert second in cache.all()
    assert cache.find(FetchRequest(17, 9, session_id=third.id, session_epoch=1), True) == 70
    assert cache.find(FetchRequest(17, 3, session_id=third.id, session_epoch=1), False) == 106


def test_epochs_wrap_to_one() -> None:
    session = SessionCache().create(1, True, 0.0)
    assert session is not None
    session.epoch = MAX_EPOCH
    session.advance_epoch()
    assert session.epoch == 1


def test_an_unknown_error_is_retried_and_named() -> None:
    assert classify(31999) == (ErrorAction.RETRY, "the source answered UNKNOWN_ERROR_31999")
    assert classify(6)[0] is ErrorAction.REFRESH
    assert classify(1)[0] is ErrorAction.RERESOLVE
    assert "READ" in classify(29)[1]
