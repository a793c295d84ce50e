"""Kafka's admin client for tests whose clusters lose brokers all the time.

A KRaft cluster names any of its brokers that are alive as its controller, a link broker too; one that was killed counts as
alive until its session is over, and one that was stopped until each broker has read so. librdkafka sends what is the
controller's there, and goes on trying to connect until the call times out instead of asking again.
"""

from __future__ import annotations

import socket
import time

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

SESSION = 15.0  # seconds; more than any broker's session here


def kafka_admin(bootstrap: str) -> AdminClient:
    """An admin client whose calls reach a broker that is there. Blocks; AssertionError after `SESSION` without one."""
    deadline = time.monotonic() + SESSION
    while gone := _named_but_gone(bootstrap):
        assert time.monotonic() < deadline, f"{bootstrap} names {', '.join(gone)}, and nobody is there"
        time.sleep(0.2)
    return AdminClient({"bootstrap.servers": bootstrap})


def _named_but_gone(bootstrap: str) -> list[str]:
    """Addresses of brokers that the cluster counts as alive and that take no connection. Each broker is asked: the client
    may be told the controller by any of them, and they learn one after the other that one has gone."""
    named = _named_by(bootstrap)
    listening = {address for address in named if _listens(address)}
    for address in tuple(listening):
        try:
            named |= _named_by(address)
        except KafkaException:
            continue  # it stands still, and tells the client nothing either
    return sorted(address for address in named - listening if not _listens(address))


def _named_by(bootstrap: str) -> set[str]:
    brokers = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=5).brokers.values()
    return {f"{broker.host}:{broker.port}" for broker in brokers}


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True
