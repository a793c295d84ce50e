"""Mirrors as the router and the followers see them: state of the controller, the target's image and the fetcher, joined.

Only lookups live here; nothing is stored and nothing is decided.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from controller.image import ControllerImage
from controller.phases import ENDED, Phase
from controller.state import UNBOUND, MirrorTopic, Record, RemoveLink, RemoveMirror
from controller.state import MirrorPartition as PartitionState
from fetcher.directory import MirrorDirectory as CopyDirectory
from wire.metadata.image import ClusterImage
from wire.types import TopicPartition

# Produces may go to the source in these; in all others the producer is told to try again.
_FORWARDING = frozenset(
    {Phase.ACTIVE, Phase.PAUSED, Phase.CATCHING_UP, Phase.FENCED, Phase.ALIGNED, Phase.VALIDATED}
)


class ServedPartition:
    """One partition of a mirror topic (router.ports.MirroredPartition)."""

    __slots__ = ("_mirrors", "_state", "_tp")

    def __init__(self, mirrors: Mirrors, state: PartitionState) -> None:
        self._mirrors = mirrors
        self._state = state
        self._tp = state.tp

    @property
    def session_epoch(self) -> int:
        return self._state.session_epoch

    @property
    def start_offset(self) -> int:
        return self._state.start_offset or 0

    @property
    def leading(self) -> bool:
        # KRaft and the link state have to agree: of a change of leader either may be heard of first.
        return self._state.leader in (-1, self._mirrors.broker_id) and self._mirrors.leads(self._tp)

    @property
    def serving(self) -> bool:
        return self.leading and self._mirrors.loaded(self._tp)

    @property
    def forwarding(self) -> bool:
        state = self._state
        return (
            state.phase in _FORWARDING and state.failure is None and self._mirrors.link_forwards(state.link)
        )


class ServedMirror:
    """A mirror topic (router.ports.Mirror)."""

    __slots__ = ("_mirrors", "_topic")

    def __init__(self, mirrors: Mirrors, topic: MirrorTopic) -> None:
        self._mirrors = mirrors
        self._topic = topic

    @property
    def link(self) -> str:
        return self._topic.link

    @property
    def topic(self) -> str:
        return self._topic.topic

    @property
    def topic_id(self) -> bytes:
        return self._topic.topic_id

    @property
    def source_topic_id(self) -> bytes | None:
        return self._topic.source_topic_id

    def partition(self, index: int) -> ServedPartition | None:
        return self._mirrors.partition(self._topic.link, TopicPartition(self._topic.topic, index))


class Mirrors:
    """All mirrors of this sidecar by name and topic id (router.ports.MirrorDirectory).

    Follows the controller's commits (`on_records`): lookups are on the path of every produce, changes are rare.
    """

    def __init__(
        self,
        state: Callable[[], ControllerImage],
        image: Callable[[], ClusterImage],
        copies: CopyDirectory,
        link_forwards: Callable[[str], bool],
        broker_id: int,
    ) -> None:
        self._state = state
        self._image = image
        self._copies = copies
        self.link_forwards = link_forwards
        self.broker_id = broker_id
        self._by_name: dict[str, ServedMirror] = {}
        self._by_id: dict[bytes, ServedMirror] = {}
        self._partitions: dict[tuple[str, TopicPartition], ServedPartition] = {}

    def on_records(self, records: Sequence[Record]) -> None:
        """A listener of the controller: take over what was committed; everything, if it does not say what."""
        if not records or any(isinstance(r, MirrorTopic | RemoveMirror | RemoveLink) for r in records):
            self.rebuild()
            return
        for record in records:
            if isinstance(record, PartitionState):
                self._partitions[record.link, record.tp] = ServedPartition(self, record)

    def rebuild(self) -> None:
        """From the controller's image, anew."""
        state = self._state()
        self._by_name = {
            m.topic: ServedMirror(self, m) for m in state.mirrors.values() if m.topic_id != UNBOUND
        }
        self._by_id = {mirror.topic_id: mirror for mirror in self._by_name.values()}
        self._partitions = {key: ServedPartition(self, found) for key, found in state.partitions.items()}

    def by_name(self, name: str) -> ServedMirror | None:
        return self._by_name.get(name)

    def by_id(self, topic_id: bytes) -> ServedMirror | None:
        return self._by_id.get(topic_id)

    def partition(self, link: str, tp: TopicPartition) -> ServedPartition | None:
        return self._partitions.get((link, tp))

    def leads(self, tp: TopicPartition) -> bool:
        """Whether the target's metadata log says that the link broker leads it."""
        topic = self._image().topics_by_name.get(tp.topic)
        partition = None if topic is None else topic.partitions.get(tp.partition)
        return partition is not None and partition.leader == self.broker_id

    def loaded(self, tp: TopicPartition) -> bool:
        copy = self._copies(tp.topic, tp.partition)
        return copy is not None and copy.loaded

    def alive(self) -> list[MirrorTopic]:
        """Mirrors that are not promoted or failed over in every partition."""
        state = self._state()
        return [
            mirror
            for mirror in state.mirrors.values()
            if any(found.phase not in ENDED for found in state.topic_partitions(mirror.link, mirror.topic))
        ]
