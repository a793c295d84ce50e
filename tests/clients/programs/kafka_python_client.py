"""kafka-python."""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

import kafka
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.errors import KafkaError

from tests.clients.programs.lines import TICK, Arguments, Lines, Pace, Stop

CLOSE_TIMEOUT = 60.0
ASSIGNORS = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
}


def main(arguments: Arguments) -> None:
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    role = arguments.text("role")
    {"producer": produce, "transactions": transactions, "consumer": consume}[role](arguments, Lines(), Stop())


def typed(settings: dict[str, str]) -> dict[str, Any]:
    return {key: int(value) if value.lstrip("-").isdigit() else value for key, value in settings.items()}


def producer(arguments: Arguments, lines: Lines, **more: Any) -> Any:
    config = {
        "bootstrap_servers": arguments.text("bootstrap"),
        "client_id": arguments.text("name"),
        "acks": "all",
        "enable_idempotence": True,
        "linger_ms": 5,
        "max_block_ms": 60_000,
        **more,
        **typed(arguments.settings),
    }
    made = kafka.KafkaProducer(**config)
    lines.say("ready", version=kafka.__version__)
    return made


def produce(arguments: Arguments, lines: Lines, stop: Stop) -> None:
    made = producer(arguments, lines)
    pace = Pace(arguments)
    while not stop:
        for number, partition, value in pace.due():
            future = made.send(pace.topic, value=value, partition=partition)
            future.add_callback(lambda metadata, number=number: lines.acked(number, metadata.offset))
            future.add_errback(lambda error, number=number: lines.failed([number], error))
        time.sleep(TICK)
        lines.flush()
    made.flush(timeout=CLOSE_TIMEOUT)
    made.close(timeout=CLOSE_TIMEOUT)
    lines.flush()
    lines.say("closed", next=pace.next)


def transactions(arguments: Arguments, lines: Lines, stop: Stop) -> None:
    made = producer(arguments, lines, transactional_id=arguments.text("transactional_id"))
    commit_seconds = arguments.number("commit_ms", 200) / 1000
    made.init_transactions()
    pace = Pace(arguments)
    while not stop:
        sent: dict[int, Any] = {}
        made.begin_transaction()
        for _ in range(max(1, int(commit_seconds / TICK))):
            for number, partition, value in pace.due():
                sent[number] = made.send(pace.topic, value=value, partition=partition)
            time.sleep(TICK)
        try:
            made.commit_transaction()
        except KafkaError as error:
            lines.say("error", error=f"commit: {error!r}")
            try:
                made.abort_transaction()
            except KafkaError as fatal:
                lines.failed(sent, fatal)
                break
            lines.failed(sent, error, written=False)
            continue
        for number, future in sent.items():
            lines.acked(number, future.get(timeout=0).offset)
        lines.flush()
    made.close(timeout=CLOSE_TIMEOUT)
    lines.say("closed", next=pace.next)


def consume(arguments: Arguments, lines: Lines, stop: Stop) -> None:
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
    made = kafka.KafkaConsumer(**config)

    class Listener(kafka.ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_assigned(self, assigned: Any) -> None:
            lines.say("assigned", p=[[p.topic, p.partition] for p in assigned])

        def on_partitions_revoked(self, revoked: Any) -> None:
            lines.say("revoked", p=[[p.topic, p.partition] for p in revoked])

    lines.say("ready", version=kafka.__version__)
    made.subscribe([arguments.text("topic")], listener=Listener())
    while not stop:
        try:
            polled = made.poll(timeout_ms=100, max_records=500)
            for partition, records in polled.items():
                lines.records(partition.topic, partition.partition, [(r.offset, r.value) for r in records])
            if polled:
                made.commit()
        except KafkaError as error:
            lines.say("error", error=repr(error))
            time.sleep(0.1)
    made.close()
    lines.say("closed")


if __name__ == "__main__":
    main(Arguments(sys.argv[1:]))
