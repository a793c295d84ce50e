"""librdkafka, by confluent-kafka."""

from __future__ import annotations

import logging
import sys
from typing import Any

import confluent_kafka

from tests.clients.programs.lines import TICK, Arguments, Lines, Pace, Stop

CLOSE_TIMEOUT = 60.0
log = logging.getLogger("librdkafka")


def main(arguments: Arguments) -> None:
    role = arguments.text("role")
    {"producer": produce, "transactions": transactions, "consumer": consume}[role](arguments, Lines(), Stop())


def common(arguments: Arguments, lines: Lines) -> dict[str, Any]:
    def told(error: Any) -> None:
        # librdkafka calls this informational unless it is fatal: it goes on by itself
        lines.say("error" if error.fatal() else "notice", error=str(error))

    return {
        "bootstrap.servers": arguments.text("bootstrap"),
        "client.id": arguments.text("name"),
        "error_cb": told,
    }


def producer(arguments: Arguments, lines: Lines) -> Any:
    config = common(arguments, lines) | {
        "enable.idempotence": "true",
        "linger.ms": "5",
        "compression.type": "gzip",  # the one that every library reads without another one beside it
    }
    made = confluent_kafka.Producer(config | arguments.settings, logger=log)
    lines.say("ready", version=confluent_kafka.libversion()[0])
    return made


def send(made: Any, topic: str, partition: int, value: bytes, delivered: Any) -> None:
    while True:
        try:
            made.produce(topic, value=value, partition=partition, on_delivery=delivered)
        except BufferError:  # its queue is full; not one byte was taken
            made.poll(0.05)
        else:
            return


def produce(arguments: Arguments, lines: Lines, stop: Stop) -> None:
    made = producer(arguments, lines)
    pace = Pace(arguments)

    def handler(number: int) -> Any:
        def delivered(error: Any, message: Any) -> None:
            if error is None:
                lines.acked(number, message.offset())
            else:
                lines.failed([number], error)

        return delivered

    while not stop:
        for number, partition, value in pace.due():
            send(made, pace.topic, partition, value, handler(number))
        made.poll(TICK)
        lines.flush()
    left = made.flush(CLOSE_TIMEOUT)
    lines.flush()
    if left:
        lines.say("error", error=f"{left} records without an outcome after {CLOSE_TIMEOUT:.0f} s")
    lines.say("closed", next=pace.next)


def transactions(arguments: Arguments, lines: Lines, stop: Stop) -> None:
    arguments.settings.setdefault("transactional.id", arguments.text("transactional_id"))
    made = producer(arguments, lines)
    commit_seconds = arguments.number("commit_ms", 200) / 1000
    made.init_transactions(CLOSE_TIMEOUT)
    pace = Pace(arguments)
    while not stop:
        offsets: dict[int, int] = {}
        sent: list[int] = []

        def handler(number: int, offsets: dict[int, int] = offsets) -> Any:
            def delivered(error: Any, message: Any) -> None:
                if error is None:
                    offsets[number] = message.offset()
                else:
                    lines.say("notice", error=f"record {number}: {error}")  # the commit tells what it means

            return delivered

        made.begin_transaction()
        for _ in range(max(1, int(commit_seconds / TICK))):
            for number, partition, value in pace.due():
                send(made, pace.topic, partition, value, handler(number))
                sent.append(number)
            made.poll(TICK)
        if not commit(made, lines, sent):
            break
        for number in sent:
            lines.acked(number, offsets.get(number))
        lines.flush()
    lines.say("closed", next=pace.next)


def commit(made: Any, lines: Lines, sent: list[int]) -> bool:
    """Commit, again as long as the library says so; False if it cannot go on."""
    while True:
        try:
            made.commit_transaction(CLOSE_TIMEOUT)
            return True
        except confluent_kafka.KafkaException as raised:
            error = raised.args[0]
            if error.retriable():
                lines.say("notice", error=f"commit: {error}")
            elif error.txn_requires_abort():
                made.abort_transaction(CLOSE_TIMEOUT)
                lines.failed(sent, error, written=False)
                return True
            else:
                lines.failed(sent, error)
                return False


def consume(arguments: Arguments, lines: Lines, stop: Stop) -> None:
    config = common(arguments, lines) | {
        "group.id": arguments.text("group"),
        "auto.offset.reset": "earliest",
        "enable.auto.commit": "false",
        "fetch.wait.max.ms": "100",
        "group.protocol": arguments.text("protocol", "classic"),
    }
    if config["group.protocol"] == "classic":
        config |= {
            "partition.assignment.strategy": arguments.text("assignor", "range"),
            "session.timeout.ms": "10000",
        }
    if arguments.text("instance", ""):
        config["group.instance.id"] = arguments.text("instance")
    if arguments.text("isolation", ""):
        config["isolation.level"] = arguments.text("isolation")
    made = confluent_kafka.Consumer(config | arguments.settings, logger=log)

    def say(event: str) -> Any:
        return lambda _consumer, some: lines.say(event, p=[[p.topic, p.partition] for p in some])

    lines.say("ready", version=confluent_kafka.libversion()[0])
    made.subscribe(
        [arguments.text("topic")], on_assign=say("assigned"), on_revoke=say("revoked"), on_lost=say("lost")
    )
    while not stop:
        got: dict[tuple[str, int], list[tuple[int, bytes]]] = {}
        for message in made.consume(500, 0.1):
            if message.error() is not None:
                lines.say("error", error=str(message.error()))
            else:
                got.setdefault((message.topic(), message.partition()), []).append(
                    (message.offset(), message.value())
                )
        for (topic, partition), records in got.items():
            lines.records(topic, partition, records)
        if got:
            try:
                made.commit(
                    offsets=[confluent_kafka.TopicPartition(t, p, r[-1][0] + 1) for (t, p), r in got.items()],
                    asynchronous=False,
                )
            except confluent_kafka.KafkaException as raised:
                lines.say("error", error=f"commit: {raised.args[0]}")
    made.close()
    lines.say("closed")


if __name__ == "__main__":
    main(Arguments(sys.argv[1:]))
