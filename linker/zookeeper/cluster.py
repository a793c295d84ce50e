"""ZooKeeperCluster: the sidecar as a broker of a cluster that is run by ZooKeeper, behind the face of TargetCluster."""

from __future__ import annotations

import time
from collections.abc import Sequence

from fleet.stores.zookeeper.client import ZooKeeperClient
from linker.config.source_section import ZooKeeperAccess
from linker.membership.cluster import TargetCluster
from linker.membership.controller_channel import ControllerChannel
from linker.membership.errors import ClusterIdChanged, TargetUnsupported
from linker.membership.identity import AdvertisedListener, Identity, SaveIdentity
from linker.zookeeper import znodes
from linker.zookeeper.broker_node import BrokerNode
from linker.zookeeper.controller import BrokerController
from linker.zookeeper.image import ZooKeeperImage
from linker.zookeeper.operations import ZooKeeperOperations
from wire.client.cluster import Cluster
from wire.client.security import ClientSecurity

_CONNECT = 10.0


class ZooKeeperCluster(TargetCluster):
    """A source before KRaft."""

    def __init__(
        self,
        cluster: Cluster,
        access: ZooKeeperAccess,
        *,
        security: ClientSecurity,
        identity: Identity,
        save: SaveIdentity,
        listeners: Sequence[AdvertisedListener],
        rack: str | None = None,
        client_id: str = "kafka-linker",
    ) -> None:
        self._access = access
        self._client: ZooKeeperClient | None = None
        image = ZooKeeperImage(cluster.name, identity.broker_id)
        self._zookeeper = image
        self._node = BrokerNode(cluster.name, image, identity, listeners=listeners, save=save, rack=rack)
        channel = ControllerChannel(
            cluster, security=security, finder=BrokerController(cluster), client_id=client_id
        )
        self._assemble(
            cluster,
            channel,
            image,
            self._node,
            ZooKeeperOperations(
                channel, image, broker_id=identity.broker_id, broker_epoch=lambda: self._node.broker_epoch
            ),
        )
        self.control = image.told

    async def join(self, timeout: float) -> None:
        """Connect to ZooKeeper and read the cluster; the znode comes when the listeners serve."""
        deadline = time.monotonic() + timeout
        if self.cluster.cluster_id is None:
            await self.cluster.connect(timeout=timeout)
        cluster_id = self.cluster.cluster_id
        client = self._client = await ZooKeeperClient.open(
            self._access.connect,
            session_timeout=self._access.session_timeout,
            connect_timeout=min(timeout, _CONNECT),
            auth=None,
            tls=None,
        )
        stored = await client.read(znodes.CLUSTER_ID)
        found = None if stored is None else znodes.cluster_id(stored.data)
        if found != cluster_id:
            raise ClusterIdChanged(
                f"{self.cluster.name} has cluster id {cluster_id}, and ZooKeeper at {self._access.connect} "
                f"{'is of no Kafka cluster' if found is None else f'is of cluster {found}'}: correct zookeeper.connect "
                "(with the path at its end, as the brokers have it)"
            )
        if await client.read(znodes.MIGRATION) is not None:
            raise TargetUnsupported(
                f"{self.cluster.name} is on its way from ZooKeeper to KRaft: join it when it has arrived, without "
                "zookeeper.connect"
            )
        self._zookeeper.use(client)
        self._node.use(client)
        self._joined.set()
        await self._zookeeper.caught_up(max(0.001, deadline - time.monotonic()))
        self._node.check_free()

    async def serve(self, timeout: float) -> None:
        self._node.ready()
        await self._node.wait_unfenced(timeout)

    async def places_replicas_on_us(self, timeout: float) -> bool:
        return True

    async def close(self) -> None:
        await super().close()
        if self._client is not None:
            await self._client.close()
