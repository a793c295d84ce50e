"""aiokafka."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any

import aiokafka
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.errors import KafkaError

from tests.clients.programs.lines import TICK, Arguments, Lines, Pace, Stop

ASSIGNORS = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
}


async def main(arguments: Arguments) -> None:
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    role = arguments.text("role")
    await {"producer": produce, "transactions": transactions, "consumer": consume}[role](
        arguments, Lines(), Stop()
    )


def typed(settings: dict[str, str]) -> dict[str, Any]:
    return {key: int(value) if value.lstrip("-").isdigit() else value for key, value in settings.items()}


async def producer(arguments: Arguments, lines: Lines, **more: Any) -> Any:
    config = {
        "bootstrap_servers": arguments.text("bootstrap"),
        "client_id": arguments.text("name"),
        "acks": "all",
        "enable_idempotence": True,
        "linger_ms": 5,
        "request_timeout_ms": 60_000,
        **more,
        **typed(arguments.settings),
    }
    made = aiokafka.AIOKafkaProducer(**config)
    await made.start()
    lines.say("ready", version=aiokafka.__version__)
    return made


async def produce(arguments: Arguments, lines: Lines, stop: Stop) -> None:
    made = await producer(arguments, lines)
    pace = Pace(arguments)

    def handler(number: int) -> Any:
        def done(future: Any) -> None:
            if future.cancelled():
                lines.failed([number], "cancelled")
            elif future.exception() is not None:
                lines.failed([number], repr(future.exception()))
            else:
                lines.acked(number, future.result().offset)

        return done

    while not stop:
        for number, partition, value in pace.due():
            try:
                future = await made.send(pace.topic, value, partition=partition)
            except KafkaError as error:
                lines.failed([number], repr(error))
            else:
                future.add_done_callback(handler(number))
        await asyncio.sleep(TICK)
        lines.flush()
    await made.flush()
    await made.stop()
    lines.flush()
    lines.say("closed", next=pace.next)


async def transactions(arguments: Arguments, lines: Lines, stop: Stop) -> None:
    made = await producer(arguments, lines, transactional_id=arguments.text("transactional_id"))
    commit_seconds = arguments.number("commit_ms", 200) / 1000
    pace = Pace(arguments)
    while not stop:
        sent: dict[int, Any] = {}
        await made.begin_transaction()
        try:
            for _ in range(max(1, int(commit_seconds / TICK))):
                for number, partition, value in pace.due():
                    sent[number] = await made.send(pace.topic, value, partition=partition)
                await asyncio.sleep(TICK)
            await made.commit_transaction()
        except KafkaError as error:
            lines.say("error", error=f"commit: {error!r}")
            try:
                await made.abort_transaction()
            except KafkaError as fatal:
                lines.failed(sent, repr(fatal))
                break
            lines.failed(sent, repr(error), written=False)
            continue
        for number, future in sent.items():
            lines.acked(number, (await future).offset)
        lines.flush()
    await made.stop()
    lines.say("closed", next=pace.next)


async def consume(arguments: Arguments, lines: Lines, stop: Stop) -> None:
    config = {
        "bootstrap_servers": arguments.text("bootstrap"),
        "client_id": arguments.text("name"),
        "group_id": arguments.text("group"),
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "session_timeout_ms": 10_000,
        "fetch_max_wait_ms": 100,
        "partition_assignment_strategy": [ASSIGNORS[arguments.text("assignor", "range")]],
        "isolation_level": arguments.text("isolation", "read_uncommitted"),
        **({"group_instance_id": arguments.text("instance")} if arguments.text("instance", "") else {}),
        **typed(arguments.settings),
    }
    made = aiokafka.AIOKafkaConsumer(**config)

    class Listener(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]
        async def on_partitions_assigned(self, assigned: Any) -> None:
            lines.say("assigned", p=[[p.topic, p.partition] for p in assigned])

        async def on_partitions_revoked(self, revoked: Any) -> None:
            lines.say("revoked", p=[[p.topic, p.partition] for p in revoked])

    lines.say("ready", version=aiokafka.__version__)
    made.subscribe([arguments.text("topic")], listener=Listener())
    # start() waits for the first assignment, which a gate holds back: SIGTERM has to end that too
    starting = asyncio.create_task(made.start())
    while not starting.done() and not stop:
        await asyncio.wait([starting], timeout=0.1)
    if not starting.done():
        starting.cancel()
        await asyncio.wait([starting])
    while not stop:
        try:
            polled = await made.getmany(timeout_ms=100, max_records=500)
            for partition, records in polled.items():
                lines.records(partition.topic, partition.partition, [(r.offset, r.value) for r in records])
            if polled:
                await made.commit({p: r[-1].offset + 1 for p, r in polled.items()})
        except KafkaError as error:
            lines.say("error", error=repr(error))
            await asyncio.sleep(0.1)
    await made.stop()
    lines.say("closed")


if __name__ == "__main__":
    asyncio.run(main(Arguments(sys.argv[1:])))
