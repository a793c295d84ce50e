"""The state in memory. Only `replay` changes it; reading is free.

The store's version of each entity stands beside it, for the conditional write of its next change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from controller import codec, keys
from controller.access.acls import Resource
from controller.mirror_group import MirrorGroup
from controller.operations import Delete, Operation, Put, Versioned
from controller.phases import ENDED
from controller.proof import PartitionValidation
from controller.state import (
    UNBOUND,
    CarriedAcls,
    Entity,
    JobStatus,
    Link,
    MirrorPartition,
    MirrorTopic,
    ProducerIdFloor,
    PromoteJob,
    Record,
    Removal,
    RemoveCarriedAcls,
    RemoveGroup,
    RemoveLink,
    RemoveMirror,
    RemovePromoteJob,
    RemoveSidecar,
    SidecarIdentity,
)
from wire.frames.types import TopicPartition


class Stamp(NamedTuple):
    """The origin of an image: the controller epoch that loaded it, and the commits since then."""

    controller_epoch: int
    commits: int


class ControllerImage:
    """Everything durable, as of the last commit."""

    def __init__(self) -> None:
        self.stamp = Stamp(0, 0)
        self.links: dict[str, Link] = {}
        self.mirrors: dict[tuple[str, str], MirrorTopic] = {}
        self.partitions: dict[tuple[str, TopicPartition], MirrorPartition] = {}
        self.validations: dict[tuple[str, TopicPartition], PartitionValidation] = {}
        self.floors: dict[str, ProducerIdFloor] = {}
        self.jobs: dict[tuple[str, int], PromoteJob] = {}
        self.identities: dict[int, SidecarIdentity] = {}
        self.groups: dict[tuple[str, str], MirrorGroup] = {}
        self.acls: dict[tuple[str, Resource], CarriedAcls] = {}
        self.versions: dict[str, int] = {}  # path -> version in the store
        # Indexes: a link may have thousands of mirrors, and each change asks for one of them.
        self._of_topic: dict[tuple[str, str], dict[int, MirrorPartition]] = {}  # by link and topic
        self._by_topic: dict[tuple[str, str], tuple[str, str]] = {}  # by cluster (`Link.at`) and topic
        self._by_topic_id: dict[bytes, tuple[str, str]] = {}

    @classmethod
    def load(cls, nodes: Mapping[str, Versioned], controller_epoch: int = 0) -> ControllerImage:
        """The image of a store's nodes; CorruptState names a node that cannot be read."""
        image = cls()
        image.stamp = Stamp(controller_epoch, 0)
        for path in sorted(nodes):
            node = nodes[path]
            entity = codec.decode(path, node.value)
            if entity is not None:
                image._place(entity)
                image.versions[path] = node.version
        return image

    # Reading.

    def topic_partitions(self, link: str, topic: str) -> list[MirrorPartition]:
        mirror = self.mirrors.get((link, topic))
        if mirror is None:
            return []
        found = self._of_topic.get((link, topic), {})
        return [found[index] for index in range(mirror.partitions) if index in found]

    def link_partitions(self, link: str) -> list[MirrorPartition]:
        return [state for (name, _), state in sorted(self.partitions.items()) if name == link]

    def link_mirrors(self, link: str) -> list[MirrorTopic]:
        return [mirror for (name, _), mirror in sorted(self.mirrors.items()) if name == link]

    def open_mirrors(self, link: str) -> list[MirrorTopic]:
        """Those with a partition that is not over."""
        return [
            mirror
            for mirror in self.link_mirrors(link)
            if any(state.phase not in ENDED for state in self.topic_partitions(link, mirror.topic))
        ]

    def running_jobs(self, link: str) -> list[PromoteJob]:
        return [
            job
            for (name, _), job in sorted(self.jobs.items())
            if name == link and job.status is JobStatus.RUNNING
        ]

    def at(self, link: str) -> str:
        """The cluster that a link's mirrors lie in (`Link.at`); the target, for a link that is gone."""
        found = self.links.get(link)
        return "" if found is None else found.at

    def broker_at(self, at: str, sidecar: int) -> int | None:
        """The broker id of a sidecar in a cluster (`Link.at`); None: it is no broker there, as far as it has told."""
        known = self.identities.get(sidecar)
        return sidecar if not at else None if known is None else dict(known.sources).get(at)

    def sidecar_at(self, at: str, broker: int) -> int:
        """The sidecar that is this broker of a cluster; -1: none is."""
        if not at:
            return broker
        return next((one for one in self.identities if self.broker_at(at, one) == broker), -1)

    def mirror_of_topic(self, topic: str, at: str = "") -> MirrorTopic | None:
        """The mirror that a topic of a cluster (`Link.at`) is, of any link: a topic belongs to one link at most."""
        key = self._by_topic.get((at, topic))
        return None if key is None else self.mirrors.get(key)

    def mirror_of_topic_id(self, topic_id: bytes) -> MirrorTopic | None:
        """The mirror that is bound to a topic id, of whatever cluster: no two have the same."""
        key = self._by_topic_id.get(topic_id)
        return None if key is None else self.mirrors.get(key)

    def link_groups(self, link: str) -> list[MirrorGroup]:
        return [group for (name, _), group in sorted(self.groups.items()) if name == link]

    # Changing.

    def operations(self, records: Iterable[Record]) -> list[Operation]:
        """The operations to commit so that the store matches the image after `replay` of the records."""
        operations: list[Operation] = []
        # Several records for one path become one write: the last one.
        latest: dict[str, Entity] = {}
        for record in records:
            if isinstance(record, Removal):
                operations += [Delete(path, self.versions[path]) for path in self._removed(record)]
            else:
                latest[codec.path_of(record)] = record
        operations += [
            Put(path, codec.encode(entity), self.versions.get(path)) for path, entity in latest.items()
        ]
        return operations

    def replay(self, records: Iterable[Record]) -> None:
        """Apply the records of one commit."""
        touched: dict[str, None] = {}
        for record in records:
            if isinstance(record, Removal):
                self._remove(record)
            else:
                self._place(record)
                touched[codec.path_of(record)] = None
        for path in touched:
            self.versions[path] = self.versions.get(path, -1) + 1
        self.stamp = Stamp(self.stamp.controller_epoch, self.stamp.commits + 1)

    def nodes(self) -> dict[str, Versioned]:
        """The nodes from which `load` would make this image."""
        entities: list[Entity] = [
            *self.links.values(),
            *self.mirrors.values(),
            *self.partitions.values(),
            *self.validations.values(),
            *self.floors.values(),
            *self.jobs.values(),
            *self.identities.values(),
            *self.groups.values(),
            *self.acls.values(),
        ]
        return {
            path: Versioned(codec.encode(entity), self.versions[path])
            for entity in entities
            if (path := codec.path_of(entity)) in self.versions
        }

    def take_over(self, path: str, node: Versioned) -> Entity | None:
        """Apply one node that another process committed: `replay` for a copy of the image."""
        entity = codec.decode(path, node.value)
        if entity is not None:
            self._place(entity)
            self.versions[path] = node.version
        return entity

    def _place(self, entity: Entity) -> None:
        match entity:
            case Link():
                self.links[entity.name] = entity
            case MirrorTopic():
                self._forget_topic(entity.link, entity.topic)
                self.mirrors[entity.link, entity.topic] = entity
                self._by_topic[self.at(entity.link), entity.topic] = (entity.link, entity.topic)
                if entity.topic_id != UNBOUND:
                    self._by_topic_id[entity.topic_id] = (entity.link, entity.topic)
            case MirrorPartition():
                self.partitions[entity.link, entity.tp] = entity
                self._of_topic.setdefault((entity.link, entity.topic), {})[entity.partition] = entity
            case PartitionValidation():
                self.validations[entity.link, entity.tp] = entity
            case ProducerIdFloor():
                self.floors[entity.link] = entity
            case PromoteJob():
                self.jobs[entity.link, entity.id] = entity
            case SidecarIdentity():
                self.identities[entity.broker_id] = entity
            case MirrorGroup():
                self.groups[entity.link, entity.group] = entity
            case CarriedAcls():
                self.acls[entity.link, entity.resource] = entity

    def _removed(self, record: Removal) -> list[str]:
        """The paths that are deleted, deepest first."""
        match record:
            case RemovePromoteJob():
                return [keys.promote_job(record.link, record.id)]
            case RemoveSidecar():
                return [keys.sidecar_identity(record.broker_id)]
            case RemoveGroup():
                return [keys.group(record.link, record.group)]
            case RemoveCarriedAcls():
                return [keys.carried_acls(record.link, record.resource)]
            case RemoveMirror():
                top = keys.mirror(record.link, record.topic)
            case RemoveLink():
                top = keys.link(record.link)
        gone = [path for path in self.versions if path == top or path.startswith(f"{top}/")]
        return sorted(gone, key=lambda path: (-path.count("/"), path))

    def _remove(self, record: Removal) -> None:
        for path in self._removed(record):
            del self.versions[path]
        match record:
            case RemovePromoteJob():
                self.jobs.pop((record.link, record.id), None)
            case RemoveSidecar():
                self.identities.pop(record.broker_id, None)
            case RemoveGroup():
                self.groups.pop((record.link, record.group), None)
            case RemoveCarriedAcls():
                self.acls.pop((record.link, record.resource), None)
            case RemoveMirror():
                self._forget_topic(record.link, record.topic)
                self._of_topic.pop((record.link, record.topic), None)
                for table in (self.partitions, self.validations):
                    for key in [k for k in table if k[0] == record.link and k[1].topic == record.topic]:
                        del table[key]
            case RemoveLink():
                self.floors.pop(record.link, None)
                for mirror_key in [k for k in self.mirrors if k[0] == record.link]:
                    self._forget_topic(*mirror_key)
                self.links.pop(record.link, None)
                for of_topic in [k for k in self._of_topic if k[0] == record.link]:
                    del self._of_topic[of_topic]
                for table in (self.partitions, self.validations):
                    for key in [k for k in table if k[0] == record.link]:
                        del table[key]
                for job_key in [k for k in self.jobs if k[0] == record.link]:
                    del self.jobs[job_key]
                for group_key in [k for k in self.groups if k[0] == record.link]:
                    del self.groups[group_key]
                for acl_key in [k for k in self.acls if k[0] == record.link]:
                    del self.acls[acl_key]

    def _forget_topic(self, link: str, topic: str) -> None:
        """The mirror and its index entries. Another link may have the topic's name by now."""
        before = self.mirrors.pop((link, topic), None)
        if before is None:
            return
        place = (self.at(link), topic)
        if self._by_topic.get(place) == (link, topic):
            del self._by_topic[place]
        if self._by_topic_id.get(before.topic_id) == (link, topic):
            del self._by_topic_id[before.topic_id]
