"""Whether a topic exists is told to whom a broker would tell it: the same answer for a mirror, another topic, and none."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from router.authorize import Authorizer
from tests.fakes.batches import build_batch
from tests.router.rig import LINK_BROKER, Rig
from wire.client.connection import Connection
from wire.frames.fetch import FetchPartition, FetchRequest, encode_fetch_request, parse_fetch_response
from wire.frames.produce import encode_produce_request, parse_produce_response
from wire.metadata.image import TopicImage
from wire.schema import codec

APIS = ["fetch", "produce", "list_offsets", "offset_for_leader_epoch"]
NAMES = ["orders", "others", "nobodys"]  # a mirror, a topic of a real broker, none


async def code_of(client: Connection, api: str, topic: str) -> int:
    if api == "list_offsets":
        asked = {"partition_index": 0, "timestamp": -1}
        body: dict[str, Any] = {"replica_id": -1, "topics": [{"name": topic, "partitions": [asked]}]}
        answer = await client.call(api, body, timeout=5)
        return int(answer.topics[0].partitions[0].error_code)
    if api == "offset_for_leader_epoch":
        body = {
            "replica_id": -1,
            "topics": [{"topic": topic, "partitions": [{"partition": 0, "leader_epoch": 1}]}],
        }
        answer = await client.call(api, body, timeout=5)
        return int(answer.topics[0].partitions[0].error_code)
    number = client.next_correlation_id()
    if api == "fetch":
        part = FetchPartition(0, -1, 0, -1, -1, 1 << 20)
        request = FetchRequest(version=12, max_wait_ms=10, max_bytes=1 << 20, topics=[(topic, [part])])
        frames = [encode_fetch_request(12, number, "app", request)]
    else:
        batch = memoryview(build_batch(1))
        frames = list(encode_produce_request(9, number, "app", None, -1, 5000, [(topic, [(0, batch)])]))
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    client.channel.send(number, frames, done.set_result)
    reply = await asyncio.wait_for(done, 25)
    if api == "fetch":
        return parse_fetch_response(reply, 12).partitions[0].error
    return parse_produce_response(reply, 9).topics[0][1][0].error


def other_topic(rig: Rig) -> None:
    """At the target, led by a real broker."""
    at_target = rig.target.add_topic("others", 1)
    image = TopicImage(at_target.topic_id, "others", {0: rig.partition_image(0, 1, 1)})
    rig.image.topics_by_id[image.id] = rig.image.topics_by_name["others"] = image
    assert image.partitions[0].leader != LINK_BROKER


def as_a_broker_tells(allowed: bool, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Metadata of the fake broker, as an authorizer would have them. Returns what was asked."""
    asked: list[list[str]] = []

    def ask(authorizer: Authorizer, topics: list[str], answered: Any) -> None:
        asked.append(topics)
        told = [
            {
                "error_code": 29 if not allowed else 3 if topic == "nobodys" else 0,
                "name": topic,
                "topic_authorized_operations": -(2**31) if not allowed or topic == "nobodys" else 0xFFFF,
                "partitions": [],
            }
            for topic in topics
        ]
        frame = codec.encode_response("metadata", 9, 1, {"topics": told, "brokers": []})
        asyncio.get_running_loop().call_soon(answered, memoryview(frame))

    monkeypatch.setattr(Authorizer, "_ask_metadata", ask)
    return asked


@pytest.mark.parametrize("api", APIS)
async def test_who_may_not_is_told_the_same_of_all(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Rig() as rig:
        other_topic(rig)
        as_a_broker_tells(False, monkeypatch)
        client = await rig.client()
        assert [await code_of(client, api, name) for name in NAMES] == [29, 29, 29]


@pytest.mark.parametrize("api", APIS)
async def test_who_may_is_told_which(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Rig() as rig:
        other_topic(rig)
        as_a_broker_tells(True, monkeypatch)
        client = await rig.client()
        assert [await code_of(client, api, name) for name in NAMES[1:]] == [6, 3]
        assert await code_of(client, api, "orders") in (0, 6)


async def test_nobody_guesses_names_by_the_thousand(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred are asked for; of all others nothing is said, in words that every client takes for "ask again"."""
    async with Rig() as rig:
        asked = as_a_broker_tells(False, monkeypatch)
        client = await rig.client()
        part = {"partition_index": 0, "timestamp": -1}
        topics = [{"name": f"guess-{number}", "partitions": [part]} for number in range(3000)]
        answer = await client.call("list_offsets", {"replica_id": -1, "topics": topics}, timeout=10)
        codes = [int(topic.partitions[0].error_code) for topic in answer.topics]
        assert set(codes) == {29, 6}
        assert [len(one) for one in asked] == [100]


async def test_it_is_asked_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Rig() as rig:
        asked = as_a_broker_tells(True, monkeypatch)
        client = await rig.client()
        for _ in range(5):
            assert await code_of(client, "list_offsets", "nobodys") == 3
        assert len(asked) == 1
