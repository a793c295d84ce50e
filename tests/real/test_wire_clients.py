"""wire's connections and cluster view against a stock broker: versions, TLS with SASL, offsets, a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.clusters.kafka_cluster import KafkaCluster, KafkaClusterSpec
from tests.fakes.certs import Authority
from wire.client.cluster import Cluster
from wire.client.connection import Connection
from wire.client.security import ClientSecurity
from wire.errors import AuthenticationFailed
from wire.frames.list_offsets import EARLIEST, LATEST
from wire.frames.types import TopicPartition

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"


async def test_every_way_to_connect(tmp_path: Path) -> None:
    authority = Authority()
    issued = authority.issue("127.0.0.1")
    spec = KafkaClusterSpec(
        name="wire",
        listeners={"PLAINTEXT": "PLAINTEXT", "SECURE": "SASL_SSL"},
        format_arguments=("--add-scram", "SCRAM-SHA-512=[name=scram,password=geheim]"),
        properties={
            "listener.name.secure.ssl.keystore.type": "PEM",
            "listener.name.secure.ssl.keystore.key": issued.key,
            "listener.name.secure.ssl.keystore.certificate.chain": issued.certificate,
            "listener.name.secure.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
            "listener.name.secure.plain.sasl.jaas.config": f'{PLAIN} user_plain="secret";',
            "listener.name.secure.scram-sha-512.sasl.jaas.config": f"{SCRAM};",
            "listener.name.secure.connections.max.reauth.ms": "3600000",
        },
    )
    async with KafkaCluster(spec, tmp_path / "cluster") as kafka:
        (node,) = kafka.brokers
        cluster = Cluster("wire", [("127.0.0.1", node.port("PLAINTEXT"))], ClientSecurity.plaintext(), "test")
        try:
            await cluster.connect(timeout=30)
            assert cluster.cluster_id
            assert list(cluster.nodes) == [node.node_id]
            connection = await cluster.connection(node.node_id)
            assert connection.api_range("fetch") is not None
            assert "metadata.version" in connection.finalized_features
            assert connection.supported_features["kraft.version"][0] == 0
            topic = {"name": "t", "num_partitions": 2, "replication_factor": 1}
            created = await cluster.call(
                "create_topics", {"topics": [topic], "timeout_ms": 10_000}, timeout=20
            )
            assert int(created.topics[0].error_code) == 0
            tps = [TopicPartition("t", i) for i in range(2)]
            found = await cluster.list_offsets({tps[0]: LATEST, tps[1]: EARLIEST}, timeout=20)
            assert [(found[tp].offset, found[tp].error) for tp in tps] == [(0, 0), (0, 0)]
            assert cluster.topics["t"].topic_id == created.topics[0].topic_id.bytes
            for mechanism, username, password in (
                ("PLAIN", "plain", "secret"),
                ("SCRAM-SHA-512", "scram", "geheim"),
            ):
                props = {
                    "security.protocol": "SASL_SSL",
                    "sasl.mechanism": mechanism,
                    "sasl.username": username,
                    "sasl.password": password,
                    "ssl.truststore.certificates": authority.pem,
                }
                port = node.port("SECURE")
                security = ClientSecurity.from_properties(props)
                secure = await Connection.open("127.0.0.1", port, security, client_id="test", timeout=30)
                assert secure.expires_at is not None
                answer = await secure.call("metadata", {"topics": []}, timeout=20)
                assert answer.cluster_id == cluster.cluster_id
                secure.close()
                wrong = ClientSecurity.from_properties({**props, "sasl.password": "wrong"})
                with pytest.raises(AuthenticationFailed, match="refused"):
                    await Connection.open("127.0.0.1", port, wrong, client_id="test", timeout=30)
            await node.restart()
            again = await cluster.call("describe_cluster", {}, node_id=node.node_id, timeout=60)
            assert again.cluster_id == cluster.cluster_id
        finally:
            await cluster.close()
