"""An image of a ZooKeeper cluster, read from its znodes.

ZooKeeper is the truth. A control request of the controller says where to look, no more: partitions are read anew that it
names, brokers with each, and everything at the beginning, after a lost connection, and now and then.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterable
from typing import Final, ParamSpec, TypeVar

from controller import keys
from controller.errors import InvalidName
from fleet.stores.zookeeper.client import Stored, ZooKeeperClient
from linker.membership.watched_image import WatchedImage
from linker.zookeeper import znodes
from wire.backoff import Backoff
from wire.errors import LinkerError, MalformedFrame, RequestTimedOut
from wire.frames.control_requests import ControlRequest
from wire.frames.types import TOPIC_RESOURCE
from wire.metadata.image import BrokerImage, ClusterImage, PartitionImage, TopicImage

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")

_WHOLE: Final = 30.0  # seconds between looks at everything
_CONNECTION: Final = 1.0  # seconds between looks at the connection
_WAITING: Final = 0.1  # seconds between looks at what names us while somebody waits
_BACKOFF: Final = (0.1, 2.0)


class ZooKeeperImage(WatchedImage):
    """Of one cluster. `client` is connected before `run`."""

    def __init__(self, name: str, broker_id: int) -> None:
        super().__init__(name)
        self._broker_id = broker_id
        self._client: ZooKeeperClient | None = None
        self._named: set[str] = set()  # topics to be read anew
        self._everything = True
        self._wanted = asyncio.Event()
        self._session: int | None = None
        self._last_whole = float("-inf")
        self._begun = self._done = 0  # looks

    @property
    def offset(self) -> int:
        return self.image.offset

    def use(self, client: ZooKeeperClient) -> None:
        self._client = client

    def told(self, request: ControlRequest) -> None:
        """A control request of the controller, or of somebody who says he is it: a name that no topic has is no path."""
        self.look_at(name for name in request.topics if _is_topic(name))

    def look_at(self, topics: Iterable[str]) -> None:
        """Read these, and the brokers, as soon as may be."""
        self._named.update(topics)
        self._wanted.set()

    def _ours(self) -> list[str]:
        """Topics that name us."""
        return [
            topic.name
            for topic in self.image.topics_by_id.values()
            if any(self._broker_id in one.replicas for one in topic.partitions.values())
        ]

    async def caught_up(self, timeout: float) -> None:
        """Topics that name us, or were asked for, are as they were when this was called, or newer."""
        deadline = time.monotonic() + timeout
        self.look_at(self._ours())
        wanted = self._begun + 1
        while self._done < wanted:
            await self._next_change(deadline, "the present")

    async def wait_for(self, predicate: Callable[[ClusterImage], T | None], timeout: float) -> T:
        """As of every image; configs are looked at meanwhile, of which no controller tells a broker."""
        deadline = time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            try:
                return await super().wait_for(predicate, min(left, _WAITING))
            except RequestTimedOut:
                if left <= _WAITING:
                    raise
                self.look_at(self._ours())

    def _timed_out(self, what: str) -> RequestTimedOut:
        return RequestTimedOut(
            f"{self._name}: ZooKeeper did not show {what} in time", sent=False, api="zookeeper"
        )

    # --- following

    async def run(self) -> None:
        backoff = Backoff(*_BACKOFF)
        try:
            while True:
                try:
                    await self._look()
                except LinkerError as error:
                    log.warning("%s: %s", self._name, error)
                    self._everything = True
                    await asyncio.sleep(backoff.next())
                    continue
                backoff.reset()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wanted.wait(), _CONNECTION)
        except BaseException as error:
            self._failure = error
            self._wake()
            raise

    async def _look(self) -> None:
        client = self._client
        if client is None:
            raise LinkerError("ZooKeeper is not connected yet")
        whole = (
            self._everything
            or client.session != self._session
            or time.monotonic() - self._last_whole >= _WHOLE
        )
        if not whole and not self._wanted.is_set():
            return
        self._wanted.clear()
        named, self._named = self._named, set()
        self._begun += 1
        begun, session, started = self._begun, client.session, time.monotonic()
        try:
            await client.sync()
            await self._read_brokers(client)
            if whole:
                (names,) = await client.children([znodes.TOPICS])
                named = {*(names or ()), *self.image.topics_by_name}
            touched = await self._read_topics(client, sorted(named))
        except BaseException:
            self._named |= named
            self._wanted.set()
            raise
        if whole:
            self._everything, self._session, self._last_whole = False, session, started
        self._done = begun
        self.image.advance(self.image.offset + 1, 0)
        self.image.changes += 1
        self._publish(touched)
        self._wake()

    async def _read_brokers(self, client: ZooKeeperClient) -> None:
        (names,) = await client.children([znodes.BROKERS])
        ids = sorted(int(name) for name in names or () if name.isdecimal())
        found = await client.read_many([znodes.broker_path(one) for one in ids])
        brokers: dict[int, BrokerImage] = {}
        for one, stored in zip(ids, found, strict=True):
            if stored is not None:
                read = self._read(znodes.broker, one, stored.data, stored.created) or self.image.brokers.get(
                    one
                )
                brokers |= {} if read is None else {one: read}
        self.image.brokers.clear()
        self.image.brokers.update(brokers)

    async def _read_topics(self, client: ZooKeeperClient, names: Collection[str]) -> frozenset[bytes]:
        """The ids of those that have changed."""
        nodes = await client.read_many([znodes.topic_path(name) for name in names])
        configs = await client.read_many([znodes.config_path(name) for name in names])
        topics: dict[str, znodes.TopicNode] = {}
        garbled: set[str] = set()
        for name, stored in zip(names, nodes, strict=True):
            if stored is not None:
                topic = self._read(znodes.topic, name, stored.data, stored.created)
                topics |= {} if topic is None else {name: topic}
                garbled |= {name} if topic is None else set()
        wanted = [(name, index) for name, one in topics.items() for index in sorted(one.replicas)]
        states = await client.read_many([znodes.state_path(name, index) for name, index in wanted])
        partitions: dict[str, dict[int, PartitionImage]] = {name: {} for name in topics}
        for (name, index), state in zip(wanted, states, strict=True):
            if state is None:  # the controller has not chosen a leader yet
                continue
            found = self._read(znodes.partition, name, index, topics[name], state.data, state.version)
            if found is not None:
                partitions[name][index] = found
        touched: set[bytes] = set()
        for name, config in zip(names, configs, strict=True):
            if name not in garbled:
                self._take_configs(name, config)
                touched |= self._take(name, topics.get(name), partitions.get(name, {}))
        return frozenset(touched)

    def _read(self, parse: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R | None:
        """None for a znode that is garbled: it is nobody's, and all others are read."""
        try:
            return parse(*args, **kwargs)
        except MalformedFrame as error:
            log.warning("%s: %s", self._name, error)
            return None

    def _take_configs(self, name: str, stored: Stored | None) -> None:
        found = {} if stored is None else self._read(znodes.configs, name, stored.data)
        if found is None:
            return
        if found:
            self.image.configs[(TOPIC_RESOURCE, name)] = found
        else:
            self.image.configs.pop((TOPIC_RESOURCE, name), None)

    def _take(
        self, name: str, node: znodes.TopicNode | None, partitions: dict[int, PartitionImage]
    ) -> set[bytes]:
        image, before = self.image, self.image.topics_by_name.get(name)
        touched: set[bytes] = set()
        if before is not None and (node is None or node.id != before.id):
            del image.topics_by_name[name], image.topics_by_id[before.id]
            touched.add(before.id)
            before = None
        if node is None:
            return touched
        if before is None:
            before = image.topics_by_name[name] = image.topics_by_id[node.id] = TopicImage(node.id, name, {})
            touched.add(node.id)
        if before.partitions != partitions:
            before.partitions.clear()
            before.partitions.update(partitions)
            touched.add(node.id)
        return touched


def _is_topic(name: str) -> bool:
    try:
        keys.check_topic_name(name)
    except InvalidName:
        return False
    return True
