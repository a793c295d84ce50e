"""The target cluster as its metadata log describes it. Only `ClusterImage.replay` changes it.

The rules are those of Kafka's own replay (org.apache.kafka.image and PartitionRegistration.merge), because the epochs
counted here must equal the controller's: otherwise AlterPartition is refused.
"""

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

from wire.errors import MalformedFrame
from wire.frames.types import TOPIC_RESOURCE, topic_id_str
from wire.metadata.decode import MetadataRecord

NO_LEADER: Final = -1
NO_LEADER_CHANGE: Final = -2

_NOTHING: Final[frozenset[bytes]] = frozenset()
_TRANSACTION_RECORDS: Final = frozenset(
    ("BeginTransactionRecord", "EndTransactionRecord", "AbortTransactionRecord")
)


@dataclass(frozen=True, slots=True)
class PartitionImage:
    """One partition's registration. partition_epoch counts every change of it, leader_epoch those of the
    leader.
    """

    index: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    leader_recovery_state: int = 0
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    directories: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicImage:
    """One topic; `partitions` changes only through ClusterImage.replay."""

    id: bytes
    name: str
    partitions: dict[int, PartitionImage]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One listener of a broker. security_protocol is Kafka's number: 0 PLAINTEXT, 1 SSL, 2 and 3 SASL over
    those.
    """

    host: str
    port: int
    security_protocol: int


@dataclass(frozen=True, slots=True)
class BrokerImage:
    """One registered broker."""

    id: int
    epoch: int
    incarnation_id: bytes
    rack: str | None
    endpoints: dict[str, Endpoint]
    fenced: bool
    in_controlled_shutdown: bool
    log_dirs: tuple[bytes, ...]
    cordoned_log_dirs: tuple[bytes, ...] | None = None  # None: the broker has not told them yet


class ClusterImage:
    """Everything replayed so far.

    `offset` is the last applied record (-1: none) and `epoch` the leader epoch of its batch, so the next fetch asks for
    offset + 1 with `epoch` as the last fetched one. Records of an open transaction are held back until its end, although
    `offset` passes them: `in_transaction` tells.

    `changes` grows with all that is applied but records without a content: a controller writes one of those every half
    second (`NoOpRecord`, KIP-835), so that `offset` moves in a cluster in which nothing happens.
    """

    def __init__(self) -> None:
        self.topics_by_id: dict[bytes, TopicImage] = {}
        self.topics_by_name: dict[str, TopicImage] = {}
        self.brokers: dict[int, BrokerImage] = {}
        self.features: dict[str, int] = {}
        self.configs: dict[tuple[int, str], dict[str, str]] = {}
        self.next_producer_id = -1  # -1: no block was ever allocated
        self.offset = -1
        self.changes = 0
        self.epoch = -1
        self._transaction: list[MetadataRecord] | None = None

    def adopt(self, other: "ClusterImage") -> None:
        """Take the contents of `other` (outside a transaction). Do not use `other` any more: its dicts are ours now."""
        self.topics_by_id = other.topics_by_id
        self.topics_by_name = other.topics_by_name
        self.brokers = other.brokers
        self.features = other.features
        self.configs = other.configs
        self.next_producer_id = other.next_producer_id
        self.offset = other.offset
        self.epoch = other.epoch
        self.changes += 1 + other.changes
        self._transaction = None

    @property
    def in_transaction(self) -> bool:
        return self._transaction is not None

    def partition(self, topic_id: bytes, index: int) -> PartitionImage | None:
        topic = self.topics_by_id.get(topic_id)
        return topic.partitions.get(index) if topic is not None else None

    def live_brokers(self, but: Container[int]) -> list[BrokerImage]:
        """The brokers that are not fenced, except those with these ids."""
        return [broker for broker in self.brokers.values() if broker.id not in but and not broker.fenced]

    def advance(self, offset: int, epoch: int) -> None:
        """Note that all records up to `offset` are applied; the last of them is in a batch of leader epoch `epoch`."""
        self.offset = offset
        self.epoch = epoch

    def replay(self, record: MetadataRecord) -> frozenset[bytes]:
        """Apply one record. Returns the ids of the topics that it touched.

        A record that contradicts the image (a change of an unknown partition, a stale broker epoch) is a MalformedFrame and
        changes nothing, except that the end of a transaction may be half applied: reload the image after such an error.
        """
        if record.type in _TRANSACTION_RECORDS:
            return self._replay_transaction(record)
        if self._transaction is not None:
            self._transaction.append(record)
            return _NOTHING
        handler = self._handlers.get(record.type)
        if handler is None:
            return _NOTHING
        self.changes += 1
        return handler(self, record.fields)

    def _replay_transaction(self, record: MetadataRecord) -> frozenset[bytes]:
        held = self._transaction
        if record.type == "BeginTransactionRecord":
            if held is not None:
                raise MalformedFrame("metadata transaction begins inside another one")
            self._transaction = []
            return _NOTHING
        if held is None:
            raise MalformedFrame(f"{record.type} without a transaction")
        self._transaction = None
        if record.type == "AbortTransactionRecord":
            return _NOTHING
        return frozenset().union(*map(self.replay, held))

    # -- topics and partitions

    def _topic(self, fields: Mapping[str, Any]) -> TopicImage:
        topic = self.topics_by_id.get(fields["topic_id"])
        if topic is None:
            raise MalformedFrame(
                f"metadata record names the unknown topic id {topic_id_str(fields['topic_id'])}"
            )
        return topic

    def _topic_record(self, fields: Mapping[str, Any]) -> frozenset[bytes]:
        topic = TopicImage(fields["topic_id"], fields["name"], {})
        self.topics_by_id[topic.id] = topic
        self.topics_by_name[topic.name] = topic
        return frozenset((topic.id,))

    def _remove_topic_record(self, fields: Mapping[str, Any]) -> frozenset[bytes]:
        topic = self._topic(fields)
        del self.topics_by_id[topic.id]
        if self.topics_by_name.get(topic.name) is topic:
            del self.topics_by_name[topic.name]
            self.configs.pop((TOPIC_RESOURCE, topic.name), None)
        return frozenset((topic.id,))

    def _partition_record(self, fields: Mapping[str, Any]) -> frozenset[bytes]:
        topic = self._topic(fields)
        index = fields["partition_id"]
        topic.partitions[index] = PartitionImage(
            index=index,
            replicas=tuple(fields["replicas"]),
            isr=tuple(fields["isr"]),
            adding=tuple(fields["adding_replicas"]),
            removing=tuple(fields["removing_replicas"]),
            leader=fields["leader"],
            leader_epoch=fields["leader_epoch"],
            partition_epoch=fields["partition_epoch"],
            leader_recovery_state=fields["leader_recovery_state"],
            elr=tuple(fields["eligible_leader_replicas"] or ()),
            last_known_elr=tuple(fields["last_known_elr"] or ()),
            directories=tuple(fields["directories"]),
        )
        return frozenset((topic.id,))

    def _partition_change_record(self, fields: Mapping[str, Any]) -> frozenset[bytes]:
        topic = self._topic(fields)
        before = topic.partitions.get(fields["partition_id"])
        if before is None:
            raise MalformedFrame(
                f"metadata record changes the unknown partition {topic.name}-{fields['partition_id']}"
            )
        topic.partitions[before.index] = _merge(before, fields)
        return frozenset((topic.id,))

    def _clear_elr_record(self, fields: Mapping[str, Any]) -> frozenset[bytes]:
        name = fields["topic_name"]
        if name and name not in self.topics_by_name:
            raise MalformedFrame(f"metadata record clears the ELR of the unknown topic {name!r}")
        touched = set()
        for topic in [self.topics_by_name[name]] if name else self.topics_by_id.values():
            for partition in topic.partitions.values():
                if partition.elr or partition.last_known_elr:
                    topic.partitions[partition.index] = replace(
                        partition, elr=(), last_known_elr=(), partition_epoch=partition.partition_epoch + 1
                    )
                    touched.add(topic.id)
        return frozenset(touched)

    # -- brokers

    def _broker(self, broker_id: int, epoch: int) -> BrokerImage:
        broker = self.brokers.get(broker_id)
        if broker is None:
            raise MalformedFrame(f"metadata record names the unregistered broker {broker_id}")
        if broker.epoch != epoch:
            raise MalformedFrame(
                f"metadata record has epoch {epoch} of broker {broker_id}, not {broker.epoch}"
            )
        return broker

    def _register_broker_record(self, fields: Mapping[str, Any]) -> frozenset[bytes]:
        cordoned = fields["cordoned_log_dirs"]
        self.brokers[fields["broker_id"]] = BrokerImage(
            id=fields["broker_id"],
            epoch=fields["broker_epoch"],
            incarnation_id=fields["incarnation_id"],
            rack=fields["rack"],
            endpoints={
                endpoint["name"]: Endpoint(endpoint["host"], endpoint["port"], endpoint["security_protocol"])
                for endpoint in fields["end_points"]
            },
            fenced=fields["fenced"],
            in_controlled_shutdown=fields["in_controlled_shutdown"],
            log_dirs=tuple(fields["log_dirs"]),
            cordoned_log_dirs=None if cordoned is None else tuple(cordoned),
        )
        return _NOTHING

    def _unregister_broker_record(self, fields: Mapping[str, Any]) -> frozenset[bytes]:
        self.brokers.pop(fields["broker_id"], None)
        return _NOTHING

    def _fence_broker_record(self, fields: Mapping[str, Any]) -> frozenset[bytes]:
        broker = self._broker(fields["id"], fields["epoch"])
        self.brokers[broker.id] = replace(broker, fenced=True)
        return _NOTHING

    def _unfence_broker_record(self, fields: Mapping[str, Any]) -> frozenset[bytes]:
        broker = self._broker(fields["id"], fields["epoch"])
        self.brokers[broker.id] = replace(broker, fenced=False)
        return _NOTHING

    def _broker_registration_change_record(self, fields: Mapping[str, Any]) -> frozenset[bytes]:
        broker = self._broker(fields["broker_id"], fields["broker_epoch"])
        fenced, shutdown = fields["fenced"], fields["in_controlled_shutdown"]
        if fenced not in (-1, 0, 1) or shutdown not in (0, 1):
            raise MalformedFrame(f"broker {broker.id}: unknown change fenced={fenced}, shutdown={shutdown}")
        cordoned = fields["cordoned_log_dirs"]
        self.brokers[broker.id] = replace(
            broker,
            fenced=broker.fenced if fenced == 0 else fenced == 1,
            in_controlled_shutdown=broker.in_controlled_shutdown or shutdown == 1,
            log_dirs=tuple(fields["log_dirs"]) or broker.log_dirs,  # an empty list means "no change"
            cordoned_log_dirs=broker.cordoned_log_dirs if cordoned is None else tuple(cordoned),
        )
        return _NOTHING

    # -- the rest

    def _feature_level_record(self, fields: Mapping[str, Any]) -> frozenset[bytes]:
        name, level = fields["name"], fields["feature_level"]
        if name == "kraft.version":
            return _NOTHING  # as Kafka does: the quorum's control records hold it
        if level == 0:
            self.features.pop(name, None)
        else:
            self.features[name] = level
        return _NOTHING

    def _config_record(self, fields: Mapping[str, Any]) -> frozenset[bytes]:
        resource = (fields["resource_type"], fields["resource_name"])
        if fields["value"] is not None:
            self.configs.setdefault(resource, {})[fields["name"]] = fields["value"]
        elif resource in self.configs:
            self.configs[resource].pop(fields["name"], None)
            if not self.configs[resource]:
                del self.configs[resource]
        if resource[0] == TOPIC_RESOURCE and resource[1] in self.topics_by_name:
            return frozenset((self.topics_by_name[resource[1]].id,))
        return _NOTHING

    def _producer_ids_record(self, fields: Mapping[str, Any]) -> frozenset[bytes]:
        self.next_producer_id = fields["next_producer_id"]
        return _NOTHING

    # Record types without an entry (ACLs, quotas, SCRAM, delegation tokens, controllers, no-op, migration)
    # do not concern a link broker. A type unknown to the tables never gets here: decoding refuses it.
    _handlers: ClassVar[dict[str, Callable[["ClusterImage", Mapping[str, Any]], frozenset[bytes]]]] = {
        "TopicRecord": _topic_record,
        "RemoveTopicRecord": _remove_topic_record,
        "PartitionRecord": _partition_record,
        "PartitionChangeRecord": _partition_change_record,
        "ClearElrRecord": _clear_elr_record,
        "RegisterBrokerRecord": _register_broker_record,
        "UnregisterBrokerRecord": _unregister_broker_record,
        "FenceBrokerRecord": _fence_broker_record,
        "UnfenceBrokerRecord": _unfence_broker_record,
        "BrokerRegistrationChangeRecord": _broker_registration_change_record,
        "FeatureLevelRecord": _feature_level_record,
        "ConfigRecord": _config_record,
        "ProducerIdsRecord": _producer_ids_record,
    }


def _merge(before: PartitionImage, fields: Mapping[str, Any]) -> PartitionImage:
    """PartitionRegistration.merge: a record that names a leader raises the leader epoch, even if it is the same leader."""

    def changed(name: str, current: tuple[Any, ...]) -> tuple[Any, ...]:
        return current if fields[name] is None else tuple(fields[name])

    keeps_leader = fields["leader"] == NO_LEADER_CHANGE
    recovery = fields["leader_recovery_state"]
    return PartitionImage(
        index=before.index,
        replicas=changed("replicas", before.replicas),
        isr=changed("isr", before.isr),
        adding=changed("adding_replicas", before.adding),
        removing=changed("removing_replicas", before.removing),
        leader=before.leader if keeps_leader else fields["leader"],
        leader_epoch=before.leader_epoch if keeps_leader else before.leader_epoch + 1,
        partition_epoch=before.partition_epoch + 1,
        leader_recovery_state=before.leader_recovery_state if recovery == -1 else recovery,
        elr=changed("eligible_leader_replicas", before.elr),
        last_known_elr=changed("last_known_elr", before.last_known_elr),
        directories=changed("directories", before.directories),
    )
