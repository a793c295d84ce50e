"""Client libraries as they are, bootstrapped at the target: no error may reach the application.

The fakes stand for both clusters; what is real here is how librdkafka, aiokafka and kafka-python treat
our answers.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.fakes.batches import values_of
from tests.router.rig import E0, LINK_BROKER, Rig
from wire.frames.types import TopicPartition

TP0 = TopicPartition("orders", 0)
Application = Callable[[str, threading.Event, dict[str, Any]], None]


def lead_by_link_broker(rig: Rig) -> None:
    """Metadata of the target names the link broker, until the image says otherwise."""
    real = rig.target.handlers["metadata"]

    async def metadata(broker: Any, request: Any) -> Mapping[str, object]:
        answer: dict[str, Any] = dict(await real(broker, request))
        answer["brokers"] = [
            *answer["brokers"],
            {"node_id": LINK_BROKER, "host": "127.0.0.1", "port": rig.listener.port, "rack": None},
        ]
        topics = []
        for topic in answer["topics"]:
            partitions = []
            for part in topic.get("partitions", ()):
                known = rig.image.topics_by_name[topic["name"]].partitions[part["partition_index"]]
                partitions.append(
                    {**part, "leader_id": known.leader, "leader_epoch": known.leader_epoch, "error_code": 0}
                )
            topics.append({**topic, "partitions": partitions})
        answer["topics"] = topics
        return answer

    rig.target.handlers["metadata"] = metadata


class Story:
    """What happens to the clusters while an application produces."""

    def __init__(self, rig: Rig, *, carried: bool) -> None:
        """carried: until clients are told of the hand-over, produces go on to the new leader."""
        self.rig = rig
        self.carried = carried

    async def run(self) -> None:
        """Leader changes at the source, a cut connection, an abandoned promote, then the hand-over."""
        rig = self.rig
        await asyncio.sleep(0.3)
        rig.source.move_leader("orders", 0, 2, publish=False)
        await asyncio.sleep(0.2)
        rig.source.publish("orders", 0)
        await asyncio.sleep(0.3)
        rig.source.inject("produce", close_after=0)
        await asyncio.sleep(0.3)
        await rig.router.fence([TP0], timeout=25)
        await asyncio.sleep(0.3)
        rig.router.unfence([TP0])
        await asyncio.sleep(0.3)
        rig.source.move_leader("orders", 0, 1)
        await asyncio.sleep(0.3)
        await rig.router.fence([TP0], timeout=25)
        self.hand_over()
        if self.carried:
            rig.router.carry([TP0])
            await asyncio.sleep(0.3)
            rig.target.inject("produce", close_after=0)
            await asyncio.sleep(0.3)
            rig.router.carried_enough([TP0])
        else:
            rig.router.handed_over([TP0])
        await asyncio.sleep(0.5)

    def hand_over(self) -> None:
        """The target's replica has everything, producer state included, and leads from now on."""
        rig = self.rig
        at_target = rig.target.partition("orders", 0)
        at_target.log = rig.source.partition("orders", 0).log
        rig.source.topics.pop("orders")
        at_target.leader, at_target.leader_epoch = 1, E0 + 1
        rig.elect("orders", 0, 1, E0 + 1)


async def check(produce: Application, *, carried: bool) -> None:
    async with Rig(partitions=1) as rig:
        lead_by_link_broker(rig)
        stop = threading.Event()
        seen: dict[str, Any] = {"acked": {}, "errors": [], "sent": 0}
        application = asyncio.create_task(
            asyncio.to_thread(produce, rig.target.bootstrap_servers, stop, seen)
        )
        try:
            await Story(rig, carried=carried).run()
        finally:
            stop.set()
            await asyncio.wait_for(application, 25)
        assert seen["errors"] == []
        assert len(seen["acked"]) == seen["sent"] > 50
        assert (rig.router.stats.links["east"].carried > 0) == carried
        log = rig.target.partition("orders", 0).log
        values = dict(values_of(log.bytes()))
        assert {offset: value for value, offset in seen["acked"].items()} == values  # none lost, none doubled
        assert [values[offset] for offset in sorted(values)] == [b"%d" % n for n in range(seen["sent"])]


def librdkafka(bootstrap: str, stop: threading.Event, seen: dict[str, Any]) -> None:
    from confluent_kafka import Producer

    def delivered(error: Any, message: Any) -> None:
        if error is not None:
            seen["errors"].append(str(error))
        else:
            seen["acked"][message.value()] = message.offset()

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 1,
            "error_cb": lambda error: seen["errors"].append(str(error)) if error.fatal() else None,
        }
    )
    while not stop.is_set():
        producer.produce("orders", b"%d" % seen["sent"], on_delivery=delivered)
        seen["sent"] += 1
        producer.poll(0)
        time.sleep(0.002)
    assert producer.flush(20) == 0


def aiokafka(bootstrap: str, stop: threading.Event, seen: dict[str, Any]) -> None:
    asyncio.run(_aiokafka(bootstrap, stop, seen))


async def _aiokafka(bootstrap: str, stop: threading.Event, seen: dict[str, Any]) -> None:
    from aiokafka import AIOKafkaProducer

    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True, linger_ms=1)
    await producer.start()
    waiting = []
    try:
        while not stop.is_set():
            waiting.append((await producer.send("orders", b"%d" % seen["sent"]), b"%d" % seen["sent"]))
            seen["sent"] += 1
            await asyncio.sleep(0.002)
        for future, value in waiting:
            try:
                seen["acked"][value] = (await asyncio.wait_for(future, 25)).offset
            except Exception as error:
                seen["errors"].append(repr(error))
    finally:
        await producer.stop()


def kafka_python(bootstrap: str, stop: threading.Event, seen: dict[str, Any]) -> None:
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True, acks="all", linger_ms=1)
    waiting = []
    while not stop.is_set():
        waiting.append((producer.send("orders", b"%d" % seen["sent"]), b"%d" % seen["sent"]))
        seen["sent"] += 1
        time.sleep(0.002)
    for future, value in waiting:
        try:
            seen["acked"][value] = future.get(20).offset
        except Exception as error:
            seen["errors"].append(repr(error))
    producer.close(5)


# kafka-python 2 reads its schemas with a deprecated function of importlib.resources.
@pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning")
@pytest.mark.parametrize("carried", [False, True])
@pytest.mark.parametrize("library", [librdkafka, aiokafka, kafka_python])
async def test_no_error_reaches_the_application(library: Application, carried: bool) -> None:
    await check(library, carried=carried)
