"""The added latency of a forwarded write: librdkafka at a steady rate through the sidecar, beside straight to the source.

Idempotent, acks=all, linger 0, so librdkafka itself decides what travels together, as it would anywhere. Both producers
live through all rounds and take turns on one topic; each latency is from produce() to the delivery report.
Afterwards the log is read: every acknowledged message lies at its offset, and each producer's messages are in order.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import confluent_kafka

from lab.bench.cluster import BenchError
from lab.bench.correctness import compare, source_records
from lab.bench.results import CaseResult, Goal, median_of, percentile, strip
from lab.bench.settings import Settings
from lab.bench.stage import Source, Stage, stage
from wire.frames.types import TopicPartition

TOPIC = "latency"
PARTITIONS = 4
RATES = (1000, 5000)  # messages per second
VALUE_BYTES = 200
TICK: Final = 0.001
END_TIMEOUT = 30.0
CLIENT_LOG = logging.getLogger("bench.clients")


class Sender:
    """One librdkafka producer with a thread that takes its reports as they come."""

    def __init__(self, side: str, bootstrap: str, topic: str = TOPIC) -> None:
        self.side = side
        self.topic = topic
        self.acked: list[tuple[int, int, int]] = []  # (partition, offset, number)
        self.errors: list[str] = []
        self._latencies: list[float] = []
        self._number = 0
        self._stopping = False
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "client.id": f"bench-{side}",
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 0,
                "socket.nagle.disable": True,
            },
            logger=CLIENT_LOG,
        )
        self._poller = threading.Thread(target=self._poll, name=f"poll {side}", daemon=True)
        self._poller.start()

    def _poll(self) -> None:
        while not self._stopping:
            self._producer.poll(0.1)

    def _delivered(self, number: int, error: Any, message: Any) -> None:
        if error is not None:
            self.errors.append(str(error))
            return
        self._latencies.append(1000 * message.latency())
        self.acked.append((message.partition(), message.offset(), number))

    def window(self, rate: int, seconds: float) -> list[float]:
        """Send at that rate for that long; the latencies in ms, when all reports are in. Blocks."""
        self._latencies = []
        began, sent, wanted = time.monotonic(), 0, int(rate * seconds)
        while sent < wanted:
            due = min(wanted, int((time.monotonic() - began) * rate) + 1)
            for _ in range(due - sent):
                number = self._number
                self._number += 1
                value = f"{self.side} {number} ".encode().ljust(VALUE_BYTES, b".")
                self._producer.produce(
                    self.topic,
                    value,
                    partition=number % PARTITIONS,
                    on_delivery=partial(self._delivered, number),
                )
            sent = due
            time.sleep(TICK)
        deadline = time.monotonic() + END_TIMEOUT
        while len(self._latencies) + len(self.errors) < wanted and time.monotonic() < deadline:
            time.sleep(TICK)
        if self.errors or len(self._latencies) != wanted:
            raise BenchError(
                f"{self.side}: {len(self._latencies)} of {wanted} messages were acknowledged, errors {self.errors[:3]}"
            )
        return self._latencies

    def close(self) -> None:
        self._stopping = True
        self._poller.join(5)


async def run(source: Source, settings: Settings, say: Callable[[str], None]) -> CaseResult:
    result = CaseResult(
        "latency",
        f"librdkafka, {VALUE_BYTES} B messages at {' and '.join(f'{rate:,}/s' for rate in RATES)}, idempotent, acks=all, "
        f"linger 0, {PARTITIONS} partitions, {settings.warm_seconds:g} s warm; produce() to delivery report",
    )
    await source.cluster.create_topic(TOPIC, [[1]] * PARTITIONS)
    async with stage(source, "latency", 1) as on:
        await on.create_mirror(TOPIC, 1)
        await on.wait_active(TOPIC)
        senders = {
            "direct": Sender("direct", on.source.bootstrap),
            "link": Sender("link", on.target.bootstrap),
        }
        try:
            for rate in RATES:
                await _at(rate, senders, on, settings, result, say)
        finally:
            for sender in senders.values():
                sender.close()
        await on.wait_active(TOPIC)
        result.checked, result.problems = await compare(on, TOPIC, PARTITIONS, [1])
        result.problems += await asyncio.to_thread(_check, on, list(senders.values()))
    return result


async def _at(
    rate: int,
    senders: dict[str, Sender],
    on: Stage,
    settings: Settings,
    result: CaseResult,
    say: Callable[[str], None],
) -> None:
    for sender in senders.values():
        await asyncio.to_thread(sender.window, rate, settings.warm_seconds / len(senders))
    rounds: dict[str, list[dict[str, Any]]] = {side: [] for side in senders}
    for number in range(settings.rounds):
        for side, sender in senders.items():
            cpu = on.sidecar.cpu_seconds()
            latencies = await asyncio.to_thread(sender.window, rate, settings.window_seconds)
            one = {
                "p50_ms": percentile(latencies, 0.5),
                "p99_ms": percentile(latencies, 0.99),
                "max_ms": max(latencies),
                "sidecar_cpu_us_per_message": 1e6 * (on.sidecar.cpu_seconds() - cpu) / len(latencies),
            }
            say(f"{rate}/s round {number + 1} {side}: p50 {one['p50_ms']:.2f} ms, p99 {one['p99_ms']:.2f} ms")
            rounds[side].append(one)
    figures = result.figures
    for side, of in rounds.items():
        result.rounds[f"{side}_{rate}"] = list(of)
        for key in of[0]:
            figures[f"{side}_{rate}_{key}"] = median_of(of, key)
    for key, bound in (("p50_ms", 0.7), ("p99_ms", 3.0)):
        direct, link = figures[f"direct_{rate}_{key}"], figures[f"link_{rate}_{key}"]
        figures[f"added_{rate}_{key}"] = link - direct
        name = key.removesuffix("_ms")
        result.goals.append(
            Goal(f"added {name}, {rate:,} messages/s", link - direct, bound, at_least=False, unit="ms")
        )
        result.ratios[f"direct / forwarded, {name} at {rate}/s"] = direct / link
        result.plots.append(strip(f"{name} at {rate:,} messages/s", "ms", rounds, key))


def _check(on: Stage, senders: list[Sender]) -> list[str]:
    """Every acknowledged message at its offset; each sender's numbers rising in each partition, none twice."""
    problems = []
    held: dict[tuple[int, int], bytes] = {}
    last: dict[tuple[int, str], int] = {}
    for partition in range(PARTITIONS):
        for record in source_records(on.source, TopicPartition(TOPIC, partition)):
            value = bytes(record.value or b"")
            held[partition, record.offset] = value
            words = value.decode().split(" ")
            side, number = words[0], int(words[1])
            before = last.get((partition, side), -1)
            if number <= before:
                problems.append(f"{TOPIC}-{partition}: {side} {number} after {before}")
            last[partition, side] = number
    for sender in senders:
        for partition, offset, number in sender.acked:
            if not held.get((partition, offset), b"").startswith(f"{sender.side} {number} ".encode()):
                problems.append(
                    f"{TOPIC}-{partition} offset {offset} is not {sender.side} {number}, as acknowledged"
                )
    return problems[:20]
