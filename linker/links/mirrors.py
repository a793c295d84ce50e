"""Mirrors as the router and the followers see them.

Each is a join of the controller's state, the target's image and the fetcher. Only lookups live here; nothing is stored
or decided.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from controller.image import ControllerImage
from controller.phases import SWITCHING, Phase
from controller.state import (
    UNBOUND,
    JsonValue,
    MirrorPartition,
    MirrorTopic,
    Record,
    RemoveLink,
    RemoveMirror,
)
from fetcher.directory import MirrorDirectory
from linker.links.copy_specs import taken_history
from wire.frames.types import TopicPartition
from wire.metadata.image import ClusterImage

# Produces may go to the source in these; in all others the producer is told to try again.
_FORWARDING = frozenset(
    {Phase.ACTIVE, Phase.PAUSED, Phase.CATCHING_UP, Phase.FENCED, Phase.ALIGNED, Phase.VALIDATED}
)


def read_only_by(options: Mapping[str, JsonValue]) -> str | None:
    """The option that keeps a link from forwarding writes at all; None if it forwards. Under a prefix a topic is a copy
    beside others: a client that writes to it does not mean the source's."""
    if prefix := options.get("prefix", ""):
        return f"prefix={prefix}"
    return "forwarding=off" if options.get("forwarding", "on") == "off" else None


class ServedPartition:
    """One partition of a mirror topic (router.ports.MirroredPartition); replaced by a new object after every change of
    its state."""

    __slots__ = ("_mirrors", "_ours", "_state", "_takes_writes", "_tp", "epochs", "switching")

    def __init__(self, mirrors: Mirrors, state: MirrorPartition) -> None:
        self._mirrors = mirrors
        self._state = state
        self._tp = state.tp
        # While it is being taken over, the state names who led before: KRaft alone says whom clients are sent to, and a
        # write that is refused here costs a client a back-off, where it could wait.
        self._ours = state.leader in (-1, mirrors.broker_id) or state.phase is Phase.TAKING
        self._takes_writes = state.phase in _FORWARDING and state.failure is None
        self.switching = state.phase in SWITCHING
        self.epochs = taken_history(state)

    @property
    def session_epoch(self) -> int:
        return self._state.session_epoch

    @property
    def start_offset(self) -> int:
        return self._state.start_offset or 0

    @property
    def leading(self) -> bool:
        # KRaft and the link state have to agree: of a change of leader either may be heard of first.
        if not self._ours:
            return False
        mirrors, state = self._mirrors, self._state
        topic = mirrors.image.topics_by_name.get(state.topic)
        if topic is None:
            return False
        partition = topic.partitions.get(state.partition)
        return partition is not None and partition.leader == mirrors.broker_id

    @property
    def serving(self) -> bool:
        return self.leading and self._mirrors.loaded(self._tp)

    @property
    def taking(self) -> bool:
        return self._state.phase is Phase.TAKING and not self._mirrors.given_back(self._state)

    @property
    def forwarding(self) -> bool:
        return self._takes_writes and self._mirrors.link_forwards(self._state.link)

    @property
    def refusing(self) -> str | None:
        state = self._state
        if state.failure is not None or state.phase is Phase.FAILED:
            why = state.failure or state.reason or "see linker mirror describe"
            return f"the mirror of {self._tp} has failed and takes no writes until it is copied anew: {why}"
        return self.read_only or self._mirrors.link_refuses(state.link)

    @property
    def read_only(self) -> str | None:
        return self._mirrors.read_only(self._state.link)


class ServedMirror:
    """A mirror topic (router.ports.Mirror). Plain attributes, and a dict's own look-up: each is asked for several times
    for every forwarded produce."""

    __slots__ = ("link", "partition", "source_topic", "source_topic_id", "topic", "topic_id")

    def __init__(self, topic: MirrorTopic, partitions: dict[int, ServedPartition]) -> None:
        self.link = topic.link
        self.topic = topic.topic
        self.topic_id = topic.topic_id
        self.source_topic = topic.source_topic
        self.source_topic_id = topic.source_topic_id
        self.partition: Callable[[int], ServedPartition | None] = partitions.get


class Mirrors:
    """All mirrors of this sidecar by name and topic id (router.ports.MirrorLookup).

    Follows the controller's commits (`on_records`): lookups are on the path of every produce, changes are rare.
    """

    def __init__(
        self,
        state: Callable[[], ControllerImage],
        image: ClusterImage,
        copies: MirrorDirectory,
        link_forwards: Callable[[str], bool],
        broker_id: int,
        link_refuses: Callable[[str], str | None] = lambda _link: None,
        *,
        at: str = "",
    ) -> None:
        """image: of the cluster that the mirrors lie in (`at`, as `Link.at`), which goes on changing. link_forwards,
        link_refuses: of a link's name."""
        self._state = state
        self._at = at
        self.image = image
        self._copies = copies
        self.link_forwards = link_forwards
        self.link_refuses = link_refuses
        self.broker_id = broker_id
        self._partitions: defaultdict[tuple[str, str], dict[int, ServedPartition]] = defaultdict(dict)
        self._by_name: dict[str, ServedMirror] = {}
        self._by_id: dict[bytes, ServedMirror] = {}
        self.by_name: Callable[[str], ServedMirror | None]
        self.by_id: Callable[[bytes], ServedMirror | None]
        self._publish([])

    def on_records(self, records: Sequence[Record]) -> None:
        """A listener of the controller: take over what was committed; everything, if it does not say what.

        Mirrors come by the thousand, and each commit has a few: what it does not name stays as it is."""
        if not records or any(isinstance(record, RemoveLink) for record in records):
            self.rebuild()
            return
        for record in records:
            match record:
                case MirrorPartition() | MirrorTopic() if self._state().at(record.link) != self._at:
                    continue
                case MirrorPartition():
                    self._partitions[record.link, record.topic][record.partition] = ServedPartition(
                        self, record
                    )
                case MirrorTopic():
                    self._forget(record.link, record.topic)
                    if record.topic_id != UNBOUND:
                        self._serve(record)
                case RemoveMirror():
                    self._forget(record.link, record.topic)
                    partitions = self._partitions.pop((record.link, record.topic), None)
                    if partitions is not None:
                        partitions.clear()  # whoever still holds the mirror sees that it is gone

    def _serve(self, mirror: MirrorTopic) -> None:
        served = ServedMirror(mirror, self._partitions[mirror.link, mirror.topic])
        self._by_name[mirror.topic] = self._by_id[mirror.topic_id] = served

    def _forget(self, link: str, topic: str) -> None:
        served = self._by_name.get(topic)
        if served is not None and served.link == link:
            del self._by_name[topic]
            del self._by_id[served.topic_id]

    def rebuild(self) -> None:
        """From the controller's image, anew."""
        state = self._state()
        for partitions in self._partitions.values():
            partitions.clear()  # the dicts stay: whoever still holds a mirror of before sees what is true now
        for (link, tp), found in state.partitions.items():
            if state.at(link) == self._at:
                self._partitions[link, tp.topic][tp.partition] = ServedPartition(self, found)
        for name in [name for name, partitions in self._partitions.items() if not partitions]:
            del self._partitions[name]
        self._publish(
            [
                mirror
                for mirror in state.mirrors.values()
                if mirror.topic_id != UNBOUND and state.at(mirror.link) == self._at
            ]
        )

    def _publish(self, mirrors: Sequence[MirrorTopic]) -> None:
        self._by_name, self._by_id = {}, {}
        for mirror in mirrors:
            self._serve(mirror)
        self.by_name, self.by_id = self._by_name.get, self._by_id.get

    def given_back(self, state: MirrorPartition) -> bool:
        """Whether the real brokers are to lead it again."""
        mirror = self._state().mirrors.get((state.link, state.topic))
        return mirror is not None and mirror.given_back

    def read_only(self, link: str) -> str | None:
        """Why mirrors of the link take no writes, for good; None if they do. As the state says: the source may be dead."""
        found = self._state().links.get(link)
        option = None if found is None else read_only_by(found.options)
        if option is None:
            return None
        until = "until their promote or failover: write to the source cluster"
        return f"mirrors of link {link} are read-only ({option}) {until}"

    def switching(self, topic: str | bytes, index: int) -> bool:
        """Whether a switch has a partition of ours, by the topic's name or id."""
        mirror = self.by_name(topic) if isinstance(topic, str) else self.by_id(topic)
        partition = None if mirror is None else mirror.partition(index)
        return partition is not None and partition.switching

    def loaded(self, tp: TopicPartition) -> bool:
        copy = self._copies(tp.topic, tp.partition)
        return copy is not None and copy.loaded
