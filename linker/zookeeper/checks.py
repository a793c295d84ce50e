"""Whether the sidecar may become a broker of a source that is run by ZooKeeper: asked before it joins."""

from __future__ import annotations

from linker.checks.preflight import PreflightFinding
from linker.checks.source_membership import TIMEOUT, cluster_rights, fatal
from wire.client.cluster import Cluster
from wire.errors import LinkerError, UnsupportedApi


async def zookeeper_findings(source: Cluster, connect: str) -> list[PreflightFinding]:
    """Of the brokers of a source: not KRaft, new enough, and the rights on Cluster."""
    try:
        await source.refresh((), timeout=TIMEOUT)
        connection = await source.connection(source.controller_id)
        offered = connection.api_range("alter_partition")
        if connection.api_range("describe_quorum") is not None and offered is None:
            return [
                fatal(
                    f"the source is run by KRaft, and its section has zookeeper.connect={connect}",
                    "remove zookeeper.connect from the link's section below sources",
                )
            ]
        if offered is None:
            return [
                fatal(
                    "the source's brokers are too old: a link broker needs AlterPartition of Kafka 2.7 or later (KIP-497), "
                    f"the controller at {connection.peer} lacks it",
                    "upgrade the source, or use the link without",
                )
            ]
        answer = await source.call(
            "describe_cluster", {"include_cluster_authorized_operations": True}, timeout=TIMEOUT
        )
    except UnsupportedApi as error:
        return [fatal(f"the source's brokers are too old: {error}", "use the link without")]
    except LinkerError as error:
        return [fatal(f"the source's brokers are not reached: {error}", None)]
    return cluster_rights(answer.cluster_authorized_operations)
