"""Rights of readers are asked for in all topics at once: one after the other a consumer of many would wait for each."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from router.authorize import Authorizer
from tests.router.rig import Rig, eventually
from tests.router.test_consumer_fetch import fetch
from wire.frames.fetch import FetchPartition, FetchRequest, encode_fetch_request, parse_fetch_response

TOPICS = [f"t{number}" for number in range(20)]


@pytest.mark.parametrize("api", ["fetch", "list_offsets", "offset_for_leader_epoch"])
async def test_of_all_topics_at_once(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    held: list[Any] = []
    real = Authorizer._send

    def send(authorizer: Authorizer, topic: str) -> None:
        sent.append(topic)
        held.append(lambda: real(authorizer, topic))

    async with Rig() as rig:
        mirrors = [rig.mirror(topic, 1) for topic in TOPICS]
        await rig.cluster.refresh(TOPICS, timeout=5)
        client = await rig.client()
        monkeypatch.setattr(Authorizer, "_send", send)
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if api == "fetch":
            part = FetchPartition(0, -1, 0, -1, -1, 1 << 20)
            request = FetchRequest(
                version=17,
                max_wait_ms=100,
                min_bytes=1,
                max_bytes=1 << 20,
                topics=[(mirror.topic_id, [part]) for mirror in mirrors],
            )
            number = client.next_correlation_id()
            frame = encode_fetch_request(17, number, "app", request)
            client.channel.send(number, [frame], done.set_result)
        else:
            asked: dict[str, Any] = {"partition_index": 0, "timestamp": -1}
            key = "name"
            if api == "offset_for_leader_epoch":
                asked, key = {"partition": 0, "leader_epoch": 1}, "topic"
            body = {"replica_id": -1, "topics": [{key: topic, "partitions": [asked]} for topic in TOPICS]}
            done = asyncio.ensure_future(client.call(api, body, timeout=5))
        await eventually(lambda: sorted(sent) == sorted(TOPICS))
        for go_on in held:
            go_on()
        answer = await asyncio.wait_for(done, 25)
        if api == "fetch":
            answer = parse_fetch_response(answer, 17)
            assert [part.error for part in answer.partitions] == [0] * len(TOPICS)
        else:
            assert [int(topic.partitions[0].error_code) for topic in answer.topics] == [0] * len(TOPICS)


async def test_a_topic_that_is_named_twice_is_asked_for_once() -> None:
    async with Rig() as rig:
        client = await rig.client()
        body = {
            "replica_id": -1,
            "topics": [
                {"name": "orders", "partitions": [{"partition_index": index, "timestamp": -1}]}
                for index in (0, 1)
            ],
        }
        answer = await client.call("list_offsets", body, timeout=5)
        assert [int(topic.partitions[0].error_code) for topic in answer.topics] == [0, 0]
        assert rig.target.counts["metadata"] == 1
        await fetch(client, rig, {0: 0}, max_wait_ms=10)
        assert rig.target.counts["metadata"] == 1
