"""One ZooKeeper session as asyncio sees it, through kazoo.

Kazoo has threads: one for the connection, one that delivers results, one that delivers watches. Everything
is handed over to the event loop by `call_soon_threadsafe`, and state lives on the loop only. Asking kazoo for
something can block (its queue is woken by a byte through a socket pair of bounded size), so that is done in a
thread of ours, in order. ZooKeeper then keeps that order: what is asked later sees what was asked earlier.

Kazoo repeats no request: what was under way when the connection ended, ends with `Disconnected`, and its
outcome is unknown. It reconnects by itself, also with a new session; where it gives up (a server that talks
nonsense, an error of its own), a new client is made.

TLS and the way a connection is opened are ours (`_connect`): kazoo would wait a whole session timeout for one
server that does not answer, and accept the system's authorities beside the configured one. A server that has just
started may even take a connection and never say a word on it (two of forty restarts of one, on a busy machine).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    InvalidACLError,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
)
from kazoo.hosts import collect_hosts
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from controller import keys
from controller.errors import InvalidName
from fleet.stores.base import StoreError
from fleet.stores.zookeeper.kazoo_client import new_client, stop

logger = logging.getLogger(__name__)

#: Errors that say how the node is: answers. All others leave the outcome open, or need a person.
NODE_ERRORS = (NoNodeError, BadVersionError, NodeExistsError, NotEmptyError)
_ATTEMPTS = 3  # at least, in the time that a session lasts without a connection
_REVIVE_DELAY = 1.0  # doubled each time until there is an answer
_MAX_REVIVE_DELAY = 16.0


class Disconnected(StoreError):
    """No answer: whether what was asked has happened is unknown. It may be asked again when connected."""


class Signal:
    """Wakes every waiter that took a turn before it was sent: take the turn first, then look at the state."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def turn(self) -> asyncio.Event:
        return self._event

    def send(self) -> None:
        event, self._event = self._event, asyncio.Event()
        event.set()


Issue = Callable[[Any], Any]  # asks a KazooClient for something: its IAsyncResult
_Answer = tuple[Any, Exception | None]


class ZooKeeperSession:
    """Make one with `open`. Paths are the store's; the ensemble's path in front of them is added here."""

    def __init__(
        self,
        connect: str,
        session_timeout: float,
        connect_timeout: float,
        auth: tuple[str, str] | None,
        tls: ssl.SSLContext | None,
    ) -> None:
        self.servers, _, root = connect.partition("/")
        try:
            hosts, _ = collect_hosts(self.servers)
            self.root = f"/{root.rstrip('/')}" if root.rstrip("/") else ""
            if self.root:
                keys.split(self.root)
        except (ValueError, InvalidName) as error:
            raise StoreError(
                f"{connect!r} is not host:port,host:port/path of a ZooKeeper ensemble: {error}"
            ) from error
        self.session_timeout = session_timeout
        #: Seconds that the ensemble granted: from min- to maxSessionTimeout, 2 and 20 ticks unless it is told otherwise.
        self.granted = session_timeout
        self.deadline = max(session_timeout, 5.0)  # of one call
        #: Sent after each change of what follows, and when a watch has fired.
        self.changed = Signal()
        self.connected = False
        self.disconnected_since = time.monotonic()
        self.session: int | None = None
        #: Sessions of this object before: over, or over when their time is out.
        self.former: set[int] = set()
        self._attempts = max(len(hosts), _ATTEMPTS)
        # Before the first session there is no more time than for opening; after that, see _granted.
        self._attempt_timeout = min(session_timeout, connect_timeout) / self._attempts
        self._opened: socket.socket | None = None  # the newest one
        self._auth = auth
        self._acl = OPEN_ACL_UNSAFE if auth is None else CREATOR_ALL_ACL
        self._acl_bytes = 4 + sum(12 + len(acl.id.scheme) + len(acl.id.id) for acl in self._acl)
        self._tls = tls
        self._refused: dict[str, str] = {}  # address -> why no connection, the last time
        self._loop = asyncio.get_running_loop()
        self._issuer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="zookeeper")
        self._closing = False
        self._reviving: asyncio.Task[None] | None = None
        self._revivals = 0
        self._given_up: Any = None  # the client that a new one takes the place of
        self._client: Any = self._new_client()

    @classmethod
    async def open(
        cls,
        connect: str,
        *,
        session_timeout: float,
        connect_timeout: float,
        auth: tuple[str, str] | None,
        tls: ssl.SSLContext | None,
    ) -> Self:
        client = cls(connect, session_timeout, connect_timeout, auth, tls)
        try:
            client._issuer.submit(client._start, client._client)
            async with asyncio.timeout(connect_timeout):
                await client.until_connected()
        except TimeoutError:
            await asyncio.shield(client.close())
            raise StoreError(
                f"ZooKeeper at {client.servers} cannot be reached within {connect_timeout:g} s"
                f"{client._why()}: start it, or correct the store's connect string"
            ) from None
        except BaseException:
            await asyncio.shield(client.close())
            raise
        return client

    async def close(self) -> None:
        """End the session; its ephemeral nodes go with it at once, if the server can be reached."""
        if self._closing:
            return
        self._closing = True
        self.connected = False
        if self._reviving is not None:
            self._reviving.cancel()
        stopping = self._issuer.submit(stop, self._client)  # after what was asked before
        self._issuer.shutdown(wait=False)
        self.changed.send()
        await asyncio.shield(asyncio.wrap_future(stopping))

    @property
    def closed(self) -> bool:
        return self._closing

    async def until_connected(self) -> None:
        """Has no deadline of its own. StoreError once closed."""
        while True:
            turn = self.changed.turn()
            if self._closing:
                raise StoreError(f"the state store at {self.servers} is closed")
            if self.connected:
                return
            await turn.wait()

    def full(self, path: str) -> str:
        """The znode's path at the server."""
        return (self.root if path == "/" else f"{self.root}{path}") or "/"

    def where(self, path: str) -> str:
        """The znode, for a message."""
        return f"{self.servers}{self.full(path)}"

    # The bridge.

    async def ask(self, what: str, issues: Sequence[Issue]) -> list[Any]:
        """The answer to each: a result, or the error of a node that is not as asked for."""
        future: asyncio.Future[list[_Answer]] = self._loop.create_future()
        self._issuer.submit(self._issue, self._client, issues, future)
        results: list[Any] = []
        for value, error in await future:
            if error is None:
                results.append(value)
            elif isinstance(error, NODE_ERRORS):
                results.append(error)
            else:
                raise self._translated(what, error) from error
        self._revivals = 0
        return results

    def _issue(self, kazoo: Any, issues: Sequence[Issue], future: asyncio.Future[list[_Answer]]) -> None:
        """In the issuing thread; answers are collected where kazoo brings them, and the loop is woken once."""
        answers: dict[int, _Answer] = {}
        lock = threading.Lock()

        def settle(index: int, value: Any, error: Exception | None) -> None:
            with lock:
                if index in answers:  # kazoo may say twice that a connection was lost
                    return
                answers[index] = (value, error)
                complete = len(answers) == len(issues)
            if complete:
                self._post(_settle, future, [answers[at] for at in range(len(issues))])

        def linked(index: int) -> Callable[[Any], None]:
            return lambda result: settle(index, result.value, result.exception)

        for index, issue in enumerate(issues):
            try:
                issue(kazoo).rawlink(linked(index))
            except Exception as error:
                settle(index, None, error)

    def _post(self, call: Callable[..., None], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:  # the event loop is closed: no waiter is left
            logger.debug("ZooKeeper at %s answered after the end", self.servers)

    def _translated(self, what: str, error: Exception) -> StoreError:
        reason = f"{type(error).__name__} {error}".strip()
        if isinstance(error, (NoAuthError, AuthFailedError, InvalidACLError)):
            return StoreError(
                f"ZooKeeper at {self.servers}{self.root} does not let us in ({what}: {reason}): "
                "check the store's user and password, and the ACL of that path"
            )
        return Disconnected(f"ZooKeeper at {self.servers}: {what}: {reason}")

    def _silent(self, what: str) -> str:
        if self.connected:
            return f"ZooKeeper at {self.servers}: {what}: no answer within {self.deadline:g} s"
        since = time.monotonic() - self.disconnected_since
        return f"ZooKeeper at {self.servers}: {what}: not connected for {since:.1f} s{self._why()}"

    def _why(self) -> str:
        reasons = ", ".join(f"{address}: {reason}" for address, reason in sorted(self._refused.items()))
        return f" ({reasons})" if reasons else ""

    # Kazoo's client, and the events from its threads.

    def _new_client(self) -> Any:
        """Not started. Its events come in its own threads."""
        client = new_client(
            self.servers,
            self.session_timeout,
            None if self._auth is None else [("digest", ":".join(self._auth))],
            connect=self._connect,
            granted=lambda seconds: self._post(self._granted, client, seconds),
            ended=lambda: self._post(self._give_up, client),
        )

        def listen(state: str) -> None:
            identity = client.client_id
            session = None if identity is None else identity[0]
            self._post(self._on_state, client, state, client.client_state, session)

        client.add_listener(listen)
        return client

    def _granted(self, client: Any, session_timeout: float) -> None:
        """The next attempts to reconnect have to fit into that time."""
        if client is self._client:
            self.granted = session_timeout
            self._attempt_timeout = min(session_timeout, self.session_timeout) / self._attempts

    def _connect(
        self, address: tuple[str, int], hostname: str | None = None, **_others: Any
    ) -> socket.socket:
        """In the connection's thread: a socket to one server."""
        name = f"{hostname or address[0]}:{address[1]}"
        try:
            plain = socket.create_connection(address, self._attempt_timeout)
            try:
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._tls is not None:
                    plain = self._tls.wrap_socket(plain, server_hostname=hostname or address[0])
            except BaseException:
                plain.close()
                raise
        except OSError as error:
            self._refused[name] = str(error)
            raise
        self._refused.pop(name, None)
        self._post(self._await_session, name, plain)
        return plain

    def _await_session(self, name: str, opened: socket.socket) -> None:
        self._opened = opened
        self._loop.call_later(self._attempt_timeout, self._hang_up, name, opened)

    def _hang_up(self, name: str, opened: socket.socket) -> None:
        """Unless it became a session: kazoo sees the connection end, and opens another."""
        if opened is not self._opened or self.connected:
            return
        self._refused[name] = f"no session within {self._attempt_timeout:g} s"
        with contextlib.suppress(OSError):  # it has ended by itself
            opened.shutdown(socket.SHUT_RDWR)

    def _on_watch(self, event: Any) -> None:
        del event  # which node it was is read again anyway
        self._post(self.changed.send)

    def _on_state(self, client: Any, state: str, detail: str, session: int | None) -> None:
        if client is not self._client or self._closing:
            return
        if state == KazooState.CONNECTED:
            if self.session is not None and self.session != session:
                self.former.add(self.session)
            if not self.connected:
                logger.info("connected to ZooKeeper at %s", self.servers)
            self.session, self.connected = session, True
        else:
            if self.connected:
                self.disconnected_since = time.monotonic()
                logger.warning("lost the connection to ZooKeeper at %s", self.servers)
            self.connected = False
            if state == KazooState.LOST:
                if self.session is not None:
                    logger.warning("the session with ZooKeeper at %s is over", self.servers)
                    self.former.add(self.session)
                self.session = None
                if detail in (KeeperState.CLOSED, KeeperState.AUTH_FAILED):
                    self._give_up(client)
        self.changed.send()

    def _give_up(self, client: Any) -> None:
        """This one does not connect again by itself. A client that never had a session, or has just lost it, tells its
        listeners nothing of its end (KazooClient._make_state_change), so it is its thread's end that counts."""
        if client is not self._client or self._closing or client is self._given_up:
            return
        self._given_up = client
        if self.connected:
            self.disconnected_since = time.monotonic()
        if self.session is not None:
            self.former.add(self.session)
        self.connected, self.session = False, None
        self._reviving = self._loop.create_task(self._revive(client))
        self.changed.send()

    async def _revive(self, broken: Any) -> None:
        delay = min(_REVIVE_DELAY * 2**self._revivals, _MAX_REVIVE_DELAY)
        self._revivals += 1
        logger.error(
            "the ZooKeeper client has given up on %s%s: a new one in %g s", self.servers, self._why(), delay
        )
        await asyncio.sleep(delay)
        self._client = self._new_client()
        self._issuer.submit(stop, broken)
        self._issuer.submit(self._start, self._client)

    def _start(self, client: Any) -> None:
        """In the issuing thread."""
        try:
            client.start_async()
        except Exception:  # as for want of threads or descriptors
            logger.exception("a ZooKeeper client cannot be started")
            self._post(self._give_up, client)


def _settle(future: asyncio.Future[list[_Answer]], answers: list[_Answer]) -> None:
    if not future.done():  # else no caller waits any more
        future.set_result(answers)
