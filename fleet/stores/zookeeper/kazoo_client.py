"""A kazoo client that reports every event of its connection; `session` acts on them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.retry import KazooRetry

logger = logging.getLogger(__name__)
# Kazoo would log a warning for each attempt to connect, and credentials when debugging. We log the rest.
_kazoo_logger = logging.getLogger(f"{__name__}.kazoo")
_kazoo_logger.setLevel(logging.ERROR)


def new_client(
    servers: str,
    session_timeout: float,
    auth: Sequence[tuple[str, str]] | None,
    *,
    connect: Callable[..., Any],
    granted: Callable[[float], None],
    ended: Callable[[], None],
) -> Any:
    """Not started. In the connection's thread: `connect` opens a socket to one server, `granted` is told the session's
    timeout in seconds, and `ended` that the thread ends, after which this client connects no more.
    """
    handler = SequentialThreadingHandler()
    handler.create_connection = connect
    handler.spawn = _spawn
    client = KazooClient(
        hosts=servers,
        timeout=session_timeout,
        handler=handler,
        auth_data=None if auth is None else set(auth),
        connection_retry=KazooRetry(
            max_tries=-1, delay=0.1, backoff=1.5, max_delay=1.0, sleep_func=handler.sleep_func
        ),
        logger=_kazoo_logger,
    )
    connection: Any = client._connection  # noqa: SLF001 - kazoo has no other way for either
    handshake, loop = connection._connect, connection.zk_loop  # noqa: SLF001 - as above

    def connected(*where: Any) -> Any:
        # Only here does kazoo tell the session timeout that the ensemble granted.
        read_timeout, of_one_host = handshake(*where)  # milliseconds
        granted(of_one_host * len(client.hosts) / 1000)
        return read_timeout, of_one_host

    def until_it_ends() -> None:
        # Listeners are told of its end only if it was connected until then (KazooClient._make_state_change).
        try:
            loop()
        finally:
            ended()

    connection._connect = connected  # noqa: SLF001 - as above
    connection.zk_loop = until_it_ends
    return client


def stop(client: Any) -> None:
    """End its session and its threads; may take seconds."""
    try:
        client.stop()
        client.close()
    except Exception:
        logger.exception("a ZooKeeper client has not ended in good order")


def _spawn(work: Callable[..., None], *arguments: Any, **options: Any) -> threading.Thread:
    """A thread of kazoo's. It logs the error that ends the connection's thread, and raises it again."""

    def run() -> None:
        try:
            work(*arguments, **options)
        except Exception as error:
            logger.info("a thread of the ZooKeeper client has ended: %r", error)

    thread = threading.Thread(target=run, name="zookeeper", daemon=True)
    thread.start()
    return thread
