"""What comes out of a channel is checked before anybody acts on it."""

from __future__ import annotations

import asyncio
import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet import channel
from fleet import messages as m
from fleet.channel import ChannelClosed, pair
from fleet.progress import CopyReport, FollowerReport, decode_copies, encode_copies
from tests.controller.fleet_kit import command, hello, welcome
from tests.controller.virtual_loop import run_virtual
from tests.fakes.copy_marks import substance

FROM_MEMBER = [
    hello(rack="r1", replaces=["x"], highest_epoch=4),
    m.Renew(n=3),
    m.Done(command=1, error="no", data=[{"a": 1}]),
    m.Ask(n=1, what="source_epochs", link="l", topic="t", partition=0, pairs=[(1, 2)]),
    m.Report(copies=[]),
    m.Bye(),
]
FROM_HEAD = [
    welcome(7, None),
    m.Refusal(reason="r", fatal=True),
    m.Renewed(n=1, controller_epoch=2),
    m.Delta(controller_epoch=1, seq=1, put=[("/p", {"a": [1]}, 0)], gone=[["promote", "l", 1]]),
    command("fence"),
    m.Answer(n=1, error=("Refused", "no")),
]


@pytest.mark.parametrize("message", FROM_MEMBER, ids=lambda x: str(x.type))
def test_there_and_back_from_a_member(message: m.FromMember) -> None:
    assert m.from_member(json.loads(json.dumps(m.encode(message)))) == message


@pytest.mark.parametrize("message", FROM_HEAD, ids=lambda x: str(x.type))
def test_there_and_back_from_a_head(message: m.FromController) -> None:
    assert m.from_controller(json.loads(json.dumps(m.encode(message)))) == message


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"type": "nothing"},
        {"type": None},
        {"type": ["renew"]},
        {"type": "renew"},
        {"type": "renew", "n": "1"},
        {"type": "renew", "n": True},
        {"type": "renew", "n": 1.5},
        {"type": "hello", "broker_id": -1, "session": "s"},
        {"type": "hello", "broker_id": 2**31, "session": "s"},
        {"type": "hello", "broker_id": 1, "session": "s" * 513},
        {"type": "hello", "broker_id": 1, "session": "s", "protocol": [1]},
        {"type": "hello", "broker_id": 1, "session": "s", "replaces": "s"},
        {"type": "ask", "n": 1, "what": "drop", "link": "l", "topic": "t", "partition": 0},
        {"type": "report", "copies": {}},
        {"type": "welcome", "protocol": 1, "controller_epoch": 1, "broker_id": 1, "lease": 1, "image": []},
    ],
)
def test_hostile_input_from_a_member(raw: dict[str, object]) -> None:
    with pytest.raises(m.BadMessage):
        m.from_member(raw)  # type: ignore[arg-type]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
kinds = st.sampled_from([x.type for x in (*FROM_MEMBER, *FROM_HEAD)])
fields = st.sampled_from(
    sorted({f for x in (*FROM_MEMBER, *FROM_HEAD) for f in type(x).model_fields} - {"type"})
)


@settings(max_examples=50)
@given(st.builds(lambda kind, rest: rest | {"type": kind}, kinds, st.dictionaries(fields, json_values)))
def test_any_json_is_a_message_or_bad(raw: dict[str, object]) -> None:
    for read in (m.from_member, m.from_controller):
        try:
            message = read(raw)  # type: ignore[operator]
        except m.BadMessage:
            continue
        assert json.loads(json.dumps(m.encode(message)))["type"] == raw["type"]


def test_an_unknown_field_is_for_newer_programs() -> None:
    assert m.from_member({"type": "renew", "n": 1, "colour": "red"}) == m.Renew(n=1)


def test_reports_there_and_back() -> None:
    copy = CopyReport(
        link="l",
        topic="t",
        partition=0,
        leader_epoch=3,
        loaded=True,
        high_watermark=10,
        log_start_offset=0,
        followers={1: FollowerReport(fetch_offset=5, broker_epoch=2, silent=0.5, restarts=((3, 1.5),))},
    )
    assert decode_copies(json.loads(json.dumps(encode_copies([copy])))) == [copy]
    with pytest.raises(m.BadMessage):
        decode_copies([{"link": "l"}])


# The channel of one process.


def test_what_was_sent_arrives_though_the_channel_was_closed_after_it() -> None:
    async def main() -> None:
        one, two = pair("one", "two")
        one.send({"n": 1})
        one.close("enough")
        with pytest.raises(ChannelClosed, match="enough"):
            one.send({"n": 2})
        assert await two.receive() == {"n": 1}
        with pytest.raises(ChannelClosed, match="enough"):
            await two.receive()
        two.close("again")
        with pytest.raises(ChannelClosed, match="enough"):
            two.send({"n": 3})

    run_virtual(main())


def test_a_receive_that_was_cancelled_loses_nothing() -> None:
    async def main() -> None:
        one, two = pair("one", "two")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await two.receive()
        for n in range(3):
            one.send({"n": n})
        assert [(await two.receive())["n"] for _ in range(3)] == [0, 1, 2]

    run_virtual(main())


def test_who_does_not_read_loses_the_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "MAX_WAITING", 3)

    async def main() -> None:
        one, two = pair("one", "two")
        for n in range(3):
            one.send({"n": n})
        with pytest.raises(ChannelClosed, match="keep up"):
            one.send({"n": 3})
        waiting = [await two.receive() for _ in range(3)]
        assert len(waiting) == 3
        with pytest.raises(ChannelClosed):
            await two.receive()

    run_virtual(main())


_NAMES = {"link", "topic", "partition"}


@pytest.mark.parametrize("name", sorted({one.name for one in dataclasses.fields(CopyReport)} - _NAMES))
def test_whatever_changes_in_a_copy_but_its_times_is_a_change(name: str) -> None:
    """A report that says the same is left out for a while."""
    follower = FollowerReport(fetch_offset=5, broker_epoch=2, silent=0.5)
    copy = CopyReport(
        link="l",
        topic="t",
        partition=0,
        leader_epoch=1,
        loaded=True,
        high_watermark=9,
        log_start_offset=0,
        followers={1: follower},
    )
    if name == "followers":
        assert substance(
            dataclasses.replace(copy, followers={1: dataclasses.replace(follower, silent=1.5)})
        ) == substance(copy)
        others: list[object] = [
            {},
            {1: dataclasses.replace(follower, fetch_offset=6)},
            {1: dataclasses.replace(follower, broker_epoch=3)},
        ]
    else:
        was = getattr(copy, name)
        others = [not was if isinstance(was, bool) else "new" if was is None else was + 1]
    for other in others:
        assert substance(dataclasses.replace(copy, **{name: other})) != substance(copy)  # type: ignore[arg-type]
