"""Kafka's admin client for tests whose clusters lose brokers all the time.

What a KRaft cluster names as its controller is any of its brokers that are alive, a link broker too; one that was killed
counts as alive until its session is over. librdkafka sends what is the controller's there, and goes on trying to connect
until the call times out instead of asking again.
"""

from __future__ import annotations

import socket
import time

from confluent_kafka.admin import AdminClient

SESSION = 15.0  # seconds; more than any broker's session here


def kafka_admin(bootstrap: str) -> AdminClient:
    """An admin client whose calls reach a broker that is there. Blocks; AssertionError after `SESSION` without one."""
    deadline = time.monotonic() + SESSION
    while True:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        found = admin.list_topics(timeout=10)
        controller = found.brokers.get(found.controller_id)
        try:
            if controller is not None:
                socket.create_connection((controller.host, controller.port), timeout=1).close()
                return admin
        except OSError:
            pass
        assert time.monotonic() < deadline, (
            f"{bootstrap} names {controller} as its controller, and nobody is there"
        )
        time.sleep(0.2)
