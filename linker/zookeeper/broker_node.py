"""The sidecar's own znode among the brokers of a ZooKeeper cluster: its registration there.

Rules (kafka.zk.KafkaZkClient.registerBroker, kafka.controller.KafkaController):
- The znode is ephemeral, and the transaction that made it is the broker epoch. As soon as it is there the controller
  connects to its endpoints, so the listeners serve before.
- An endpoint without the name that the controller uses stops the controller's handling of *all* brokers' deaths for as long
  as the znode is there. So the names have to be those of a real broker, which is looked at right before.
- Where other brokers have racks and one has none, or the reverse, no topic can be created without an assignment.
- A znode that an earlier process of ours has left is taken away: its session may go on for seconds.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Sequence
from typing import Final

from fleet.stores.zookeeper.client import Rejected, Stored, ZooKeeperClient
from fleet.stores.zookeeper.plan import Create, Remove
from linker.membership.errors import BrokerIdTaken, RegistrationRefused, StillHosting
from linker.membership.hosting import hosted_partitions
from linker.membership.identity import AdvertisedListener, Identity, SaveIdentity, largest_rack
from linker.zookeeper import znodes
from linker.zookeeper.image import ZooKeeperImage
from wire.errors import LinkerError, RequestTimedOut
from wire.metadata.image import ClusterImage

log = logging.getLogger(__name__)

_INTERVAL: Final = 1.0
_PATIENCE: Final = 0.2


class BrokerNode:
    """As linker.membership.Registration, as far as others look at one."""

    def __init__(
        self,
        name: str,
        image: ZooKeeperImage,
        identity: Identity,
        *,
        listeners: Sequence[AdvertisedListener],
        save: SaveIdentity,
        rack: str | None = None,
    ) -> None:
        self._name = name
        self._image = image
        self.identity = identity
        self._listeners = list(listeners)
        self._save = save
        self._configured_rack = rack
        self.rack: str | None = rack
        self._client: ZooKeeperClient | None = None
        self._wanted = False
        self._left = False
        self.fenced: bool | None = None
        self.last_heartbeat = float("-inf")
        self._changed = asyncio.Event()

    def use(self, client: ZooKeeperClient) -> None:
        self._client = client

    @property
    def broker_id(self) -> int:
        return self.identity.broker_id

    @property
    def broker_epoch(self) -> int:
        return self.identity.broker_epoch

    @property
    def session_valid(self) -> bool:
        """Whether the controller can still count on us, by our own clock."""
        client = self._client
        return client is not None and time.monotonic() - self.last_heartbeat < client.granted

    def check_free(self) -> None:
        """BrokerIdTaken while a broker that is not this sidecar has our id."""
        found = self._image.image.brokers.get(self.broker_id)
        if found is not None and self.identity.log_dir_id not in found.log_dirs:
            where = ", ".join(f"{name}://{one.host}:{one.port}" for name, one in found.endpoints.items())
            raise BrokerIdTaken(
                f"broker id {self.broker_id} is taken in {self._name} by a broker at {where}; choose another broker.id"
            )

    def ready(self) -> None:
        """The listeners serve: `run` makes the znode, and keeps it."""
        self._wanted = True
        self._changed.set()

    async def wait_unfenced(self, timeout: float) -> None:
        """Return when the znode of this session is there, and the image shows it."""

        def there(image: ClusterImage) -> bool | None:
            found = image.brokers.get(self.broker_id)
            return (
                True
                if self.fenced is False and found is not None and found.epoch == self.broker_epoch
                else None
            )

        await self._image.wait_for(there, timeout)

    # --- the znode

    async def run(self) -> None:
        """Keep it there until cancelled, or until `leave` has succeeded."""
        while not self._left:
            if self._wanted:
                try:
                    await self._keep()
                except (BrokerIdTaken, RegistrationRefused):
                    raise
                except LinkerError as error:
                    log.warning("%s: the broker's znode: %s", self._name, error)
                    self._fence(True)
            try:
                async with asyncio.timeout(_INTERVAL):
                    await self._changed.wait()
                    self._changed.clear()
            except TimeoutError:
                continue

    async def _keep(self) -> None:
        client, path = self._connected(), znodes.broker_path(self.broker_id)
        asked = time.monotonic()
        found = await client.read(path)
        if found is not None and found.owner == client.session:
            self.last_heartbeat = asked
            if found.created != self.broker_epoch:
                await self._registered(found)
            self._fence(False)  # also after a connection that was lost for less than a session
            return
        self._fence(True)
        if found is not None:
            await self._take_away(client, path, found)
        await self._image.caught_up(_INTERVAL)
        self._check_like_the_others()
        data = znodes.own_broker(self._listeners, self.rack, self.identity.log_dir_id)
        try:
            await client.transact(
                f"registering broker {self.broker_id}", [Create(path, data, ephemeral=True)]
            )
        except Rejected:
            log.info("%s: another znode %s has come up meanwhile", self._name, path)
        found = await client.read(path)
        if found is not None and found.owner == client.session:
            self.last_heartbeat = asked
            await self._registered(found)

    def _connected(self) -> ZooKeeperClient:
        client = self._client
        if client is None or not client.connected:
            raise LinkerError("ZooKeeper is not connected")
        return client

    async def _take_away(self, client: ZooKeeperClient, path: str, found: Stored) -> None:
        """Remove the znode of an earlier session of ours; BrokerIdTaken if it is not ours."""
        if self.identity.log_dir_id not in znodes.broker(self.broker_id, found.data, found.created).log_dirs:
            raise BrokerIdTaken(
                f"broker id {self.broker_id} is taken in {self._name}: choose another broker.id"
            )
        log.info("%s: taking away znode %s of an earlier session", self._name, path)
        try:
            await client.transact(f"taking {path} away", [Remove(path, found.version)])
        except Rejected:
            return  # it has gone by itself

    def _check_like_the_others(self) -> None:
        """RegistrationRefused unless the names of the listeners, and whether there is a rack, are as of real brokers."""
        others = [
            one
            for one in self._image.image.brokers.values()
            if one.id != self.broker_id and self.identity.log_dir_id[:8] not in {d[:8] for d in one.log_dirs}
        ]
        names = {one.name for one in self._listeners}
        for one in others:
            if missing := one.endpoints.keys() - names:
                raise RegistrationRefused(
                    f"broker {one.id} of {self._name} has listeners {', '.join(sorted(one.endpoints))}, and this sidecar "
                    f"lacks {', '.join(sorted(missing))}: its controller would not notice the death of any broker; name "
                    "all of them in the link's section below sources"
                )
        self.rack = self._configured_rack or largest_rack(self._image.image, self.broker_id)
        without = [one.id for one in others if one.rack is None]
        if (self.rack is None and len(without) < len(others)) or (self.rack is not None and without):
            raise RegistrationRefused(
                f"brokers of {self._name} "
                + (
                    "have racks, and this sidecar has none"
                    if self.rack is None
                    else "have no rack, and this sidecar has one"
                )
                + ": no topic could be created there; set rack in the link's section below sources as they have it"
            )

    async def _registered(self, found: Stored) -> None:
        self.identity = dataclasses.replace(self.identity, broker_epoch=found.created)
        await self._save(self.identity)
        log.info(
            "%s: registered as broker %d, epoch %d, rack %s",
            self._name,
            self.broker_id,
            self.broker_epoch,
            self.rack,
        )
        self._fence(False)
        self._image.look_at(())

    def _fence(self, fenced: bool) -> None:
        if fenced != self.fenced:
            self.fenced = fenced
            log.info("%s: broker %d is %s", self._name, self.broker_id, "away" if fenced else "there")

    # --- leaving

    async def leave(self, timeout: float) -> None:
        """Take the znode away; StillHosting while the image has a partition that names us."""
        deadline = time.monotonic() + timeout
        await self._image.caught_up(timeout)
        leads, hosts = hosted_partitions(self._image.image, self.broker_id)
        if leads or hosts:
            raise StillHosting(self.broker_id, leads, hosts)
        self._wanted = False
        client, path = self._connected(), znodes.broker_path(self.broker_id)
        found = await client.read(path)
        if found is not None:
            await self._take_away(client, path, found)
        while self.broker_id in self._image.image.brokers:
            if time.monotonic() >= deadline:
                self._wanted = True
                raise RequestTimedOut(
                    f"znode {path} is still there", sent=True, api="zookeeper", peer=self._name
                )
            await self._image.caught_up(max(0.001, deadline - time.monotonic()))
            await asyncio.sleep(_PATIENCE)
        self._left = True
        self._changed.set()
        log.info("broker %d has left %s", self.broker_id, self._name)
