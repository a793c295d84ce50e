"""TargetCluster puts the parts of the membership together.

target = TargetCluster(cluster, identity=..., save=..., listeners=[...], ...)
async with TaskGroup() as group:
    running = group.create_task(target.run())
    await target.join(timeout=30)      # found, metadata replayed, registered
    ...                                # the listeners serve now
    await target.serve(timeout=30)     # unfenced
    ...
    await target.leave(timeout=30)     # refused while it leads or hosts anything
    running.cancel()
await target.close()
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from linker.membership.controller_channel import ControllerChannel
from linker.membership.errors import ClusterIdChanged
from linker.membership.identity import AdvertisedListener, Identity, SaveIdentity
from linker.membership.metadata_log import MetadataLog
from linker.membership.operations import TargetOperations
from linker.membership.registration import Registration
from linker.membership.watched_image import WatchedImage
from wire.client.cluster import Cluster
from wire.client.security import ClientSecurity
from wire.errors import LinkerError
from wire.frames.control_requests import ControlRequest
from wire.metadata.image import ClusterImage
from wire.task_group import TaskGroup
from wire.together import first_error

_CORDONING_HEARTBEAT = 2
_CORDONING_LEVEL = 30  # metadata.version 4.3-IV0


class Registered(Protocol):
    """The sidecar among the brokers of a cluster, as others look at it."""

    identity: Identity
    rack: str | None
    #: Whether the controller has fenced us; None: not known yet.
    fenced: bool | None
    #: Monotonic time at which the last accepted sign of life was *sent*.
    last_heartbeat: float

    @property
    def broker_id(self) -> int: ...

    @property
    def broker_epoch(self) -> int: ...

    @property
    def session_valid(self) -> bool: ...

    async def run(self) -> None: ...

    async def leave(self, timeout: float) -> None: ...


class TargetCluster:
    """The sidecar's place in one target cluster."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        controller_security: ClientSecurity,
        identity: Identity,
        save: SaveIdentity,
        listeners: Sequence[AdvertisedListener],
        controller_bootstrap: Iterable[tuple[str, int]] = (),
        rack: str | None = None,
        client_id: str = "kafka-linker",
        heartbeat_interval: float = 2.0,
    ) -> None:
        """`cluster` is the target seen as a client; join() connects it if that was not done before."""
        channel = ControllerChannel(
            cluster,
            security=controller_security,
            bootstrap=controller_bootstrap,
            client_id=client_id,
            own_broker_id=identity.broker_id,
        )
        metadata = self._log = MetadataLog(channel)
        registration = self._registration = Registration(
            channel,
            metadata,
            identity,
            listeners=listeners,
            save=save,
            rack=rack,
            heartbeat_interval=heartbeat_interval,
        )
        operations = TargetOperations(
            channel,
            metadata,
            broker_id=identity.broker_id,
            broker_epoch=lambda: registration.broker_epoch,
        )
        self._assemble(cluster, channel, metadata, registration, operations)

    def _assemble(
        self,
        cluster: Cluster,
        channel: ControllerChannel,
        metadata: WatchedImage,
        registration: Registered,
        operations: TargetOperations,
    ) -> None:
        self.cluster = cluster
        self.channel = channel
        self.metadata = metadata
        self.registration = registration
        self.operations = operations
        #: Takes the requests that a controller from before KRaft sends to brokers; None: the cluster is run by KRaft.
        self.control: Callable[[ControlRequest], None] | None = None
        self._joined = asyncio.Event()

    @property
    def broker_id(self) -> int:
        return self.registration.broker_id

    @property
    def identity(self) -> Identity:
        return self.registration.identity

    @property
    def image(self) -> ClusterImage:
        """The target as its metadata log shows it."""
        return self.metadata.image

    async def run(self) -> None:
        """Follow the metadata log and send heartbeats until cancelled; the first final error ends it."""
        await self._joined.wait()
        try:
            async with TaskGroup() as group:
                group.create_task(self.metadata.run(), name=f"{self.cluster.name} metadata log")
                group.create_task(self.registration.run(), name=f"{self.cluster.name} heartbeats")
        except* LinkerError as errors:
            # One line is what a person needs; the group around it is our own structure.
            raise first_error(errors) from None

    async def join(self, timeout: float) -> None:
        """Find the cluster and its controller, replay the metadata log, register. `run` must be running."""
        deadline = time.monotonic() + timeout
        if self.cluster.cluster_id is None:
            await self.cluster.connect(timeout=timeout)
        cluster_id = self.cluster.cluster_id
        if not cluster_id:
            raise ClusterIdChanged(f"{self.cluster.name} does not tell its cluster id")
        self._registration.check_cluster_id(cluster_id)
        await self.channel.discover(max(0.001, deadline - time.monotonic()))
        self._log.expect_cluster(cluster_id)
        self._joined.set()
        await self._registration.register(max(0.001, deadline - time.monotonic()))

    async def serve(self, timeout: float) -> None:
        """The listeners serve: ask to be unfenced and wait for it."""
        self._registration.ready_to_unfence()
        await self._registration.wait_unfenced(timeout)

    async def places_replicas_on_us(self, timeout: float) -> bool:
        """Whether automatic placement may choose us: no log dir can be cordoned in heartbeats before v2, or before the
        metadata.version of 4.3 is finalized (KIP-1066, `MetadataVersion.isCordonedLogDirsSupported`)."""
        await self.channel.discover(timeout)
        _, connection = await self.channel.connection("heartbeat", timeout=timeout)
        heartbeat = connection.api_range("broker_heartbeat")
        level = connection.finalized_features.get("metadata.version", (0, 0))[1]
        return heartbeat is not None and (heartbeat[1] < _CORDONING_HEARTBEAT or level < _CORDONING_LEVEL)

    async def leave(self, timeout: float) -> None:
        """Unregister; StillHosting while the image has a partition that names us."""
        await self.registration.leave(timeout)

    async def close(self) -> None:
        """Close the connections to the controllers. Those of the client `cluster` stay open: its maker closes them."""
        await self.channel.close()
