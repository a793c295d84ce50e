"""A source that ends logins every few seconds (connections.max.reauth.ms). Producers that send nothing again by themselves
write through the link, and consumers read from the source's path, across many of these ends: nobody is told of one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as KafkaPartition

from lab.clusters.kafka_cluster import KafkaCluster, KafkaClusterSpec
from lab.clusters.sidecar_process import SidecarProcess
from tests.real.harness_promote import LINK
from tests.real.harness_trouble import create_topic

LIFETIME = 8  # seconds
SECONDS = 33  # four ends of logins
LOGIN = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="link" password="secret" user_link="secret" user_admin="admin";'
)


class Plain:
    """Writes a hundred records a second, each once: what is not acknowledged is not sent again."""

    def __init__(self, bootstrap: str, topic: str, acks: int) -> None:
        self.errors: list[str] = []
        self.acks = acks
        self.told = 0
        self.sent = 0
        self._topic = topic
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": acks,
                "retries": 0,
                "enable.idempotence": "false",
                "max.in.flight.requests.per.connection": "5",
                "linger.ms": "0",
                "error_cb": lambda error: self.errors.append(str(error)),
            }
        )

    def run(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._producer.produce(self._topic, str(self.sent).encode(), partition=0, callback=self._answered)
            self.sent += 1
            self._producer.poll(0.01)
        self._producer.flush(30)

    def _answered(self, error: object, _message: object) -> None:
        if error is not None:
            self.errors.append(str(error))
        else:
            self.told += 1


def read(bootstrap: str, topic: str, until: Callable[[], bool], group: str) -> list[bytes]:
    """By read_committed, which is always the source's to answer."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "isolation.level": "read_committed"}
    )
    consumer.assign([KafkaPartition(topic, 0, 0)])
    values: list[bytes] = []
    quiet = time.monotonic()
    try:
        while not until() or time.monotonic() - quiet < 5:
            message = consumer.poll(0.5)
            if message is not None:
                assert message.error() is None, message.error()
                values.append(message.value())
                quiet = time.monotonic()
    finally:
        consumer.close()
    return values


@pytest.mark.timeout(300)
async def test_nothing_is_lost_or_refused_across_the_ends_of_logins(
    tmp_path: Path,
    target_cluster: KafkaCluster,
    start_sidecar: Callable[..., Awaitable[SidecarProcess]],
    unique_topic: Callable[[str], str],
) -> None:
    source = KafkaCluster(
        KafkaClusterSpec(
            name="renewing",
            listeners={"PLAINTEXT": "PLAINTEXT", "LINK": "SASL_PLAINTEXT"},
            properties={
                "sasl.enabled.mechanisms": "PLAIN",
                "listener.name.link.sasl.enabled.mechanisms": "PLAIN",
                "listener.name.link.plain.sasl.jaas.config": LOGIN,
                "connections.max.reauth.ms": str(LIFETIME * 1000),
            },
        ),
        tmp_path,
    )
    async with source:
        topics = [unique_topic("a"), unique_topic("b")]
        for topic in topics:
            await asyncio.to_thread(create_topic, source.bootstrap, topic)
        sidecar = await start_sidecar(target_cluster.bootstrap)
        files = sidecar.directory / "links"
        files.mkdir(parents=True, exist_ok=True)
        (files / "link.password").write_text("secret")
        login = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "link",
            "sasl.password": f"${{file:{files / 'link.password'}}}",
        }
        await sidecar.linker(
            *("link", "create", LINK, "--bootstrap-servers", source.bootstrap_for("LINK")),
            *(part for name, value in login.items() for part in ("--config", f"{name}={value}")),
        )
        await sidecar.linker("mirror", "create", *topics, "--link", LINK, "--replication-factor", "2")
        deadline = time.monotonic() + 60
        while True:
            shown = (await sidecar.linker("mirror", "list", "--link", LINK, "-o", "json")).json()
            if all(one["state"] == "ACTIVE" for one in shown):
                break
            assert time.monotonic() < deadline, shown
            await asyncio.sleep(0.2)
        writers = [
            Plain(target_cluster.bootstrap, topics[0], 1),
            Plain(target_cluster.bootstrap, topics[1], 0),
        ]
        over = time.monotonic() + SECONDS
        found = await asyncio.gather(
            *(asyncio.to_thread(writer.run, SECONDS) for writer in writers),
            *(
                asyncio.to_thread(
                    read, target_cluster.bootstrap, topic, lambda: time.monotonic() > over, f"g-{topic}"
                )
                for topic in topics
            ),
        )
        for writer, values in zip(writers, found[2:], strict=True):
            assert not writer.errors, (writer.acks, writer.errors[:5])
            assert writer.told == writer.sent
            assert values == [str(number).encode() for number in range(writer.sent)]
