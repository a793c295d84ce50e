"""The rights of a client, asked of a real broker over the client's own authenticated connection. No ACL
engine here.

Answers are kept per client connection for a while; a stale one is used while it is being refreshed, so the hot path
waits only for a topic's first answer. Not for ever: the question queues behind whatever the broker owes the client, and
how long a JoinGroup waits is the client's choice. When the broker's time for it is over, the old answer is none, and
requests wait for the new one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final

from router.passthrough import Upstream
from wire.errors import RequestTimedOut
from wire.frames.error_codes import TOPIC_AUTHORIZATION_FAILED
from wire.frames.types import AclRight
from wire.schema import codec

_NOT_ASKED: Final = -(2**31)
_ASK_AGAIN: Final = 0.2
#: So many topics of a request that are no mirrors are asked for. A client with old metadata names a few; one that
#: guesses names, many.
_MOST_STRANGE: Final = 100
_CLUSTER: Final = ""  # no topic has an empty name
_CLIENT_ID: Final = "kafka-linker-authorizer"
#: The version of Metadata that Kafka 2.4 to 4.3 have: the client's broker may be of a source.
_METADATA: Final = 9


class Authorizer:
    """The rights of one client connection."""

    def __init__(self, upstream: Upstream, ttl: float, patience: float) -> None:
        """patience: seconds for one answer of a broker that has nothing else to do for this client."""
        self._upstream = upstream
        self._ttl = ttl
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._bits: dict[str, tuple[int, float]] = {}  # topic -> (operations, when asked)
        self._asking: dict[str, list[Callable[[], None]]] = {}
        self._strange: dict[str, tuple[int, float]] = {}  # of topics that are no mirrors
        self._asking_strange: list[Callable[[], None]] | None = None
        self._closed = False

    def allowed(self, topic: str, operation: AclRight) -> bool | None:
        """None: not known yet; ask()."""
        known = self._bits.get(topic)
        if known is None:
            return None
        bits, asked_at = known
        age = self._loop.time() - asked_at
        if age > self._ttl and topic not in self._asking:  # what is being asked, _late() sees to
            if age > self._ttl + self._patience:
                del self._bits[topic]
                return None
            self.ask(topic)
        return bool(bits >> operation & 1)

    @property
    def behind_the_client(self) -> bool:
        """Whether answers that the broker owes the client come before those to us."""
        return bool(self._upstream.owed)

    def cluster_action(self) -> bool | None:
        return self.on_cluster(AclRight.CLUSTER_ACTION)

    def on_cluster(self, operation: AclRight) -> bool | None:
        """None: not known yet; ask_cluster(). Only who may Describe the cluster is told: true of what implies Describe."""
        return self.allowed(_CLUSTER, operation)

    def ask_cluster(self, callback: Callable[[], None]) -> None:
        self.ask(_CLUSTER, callback)

    def all_known(self, topics: Iterable[str], operation: AclRight, callback: Callable[[], None]) -> bool:
        """Whether it is known of each of them. If not, those that are missing are asked for at once, and the callback comes
        with the last answer (never, if the connection ends first).
        """
        missing = [topic for topic in dict.fromkeys(topics) if self.allowed(topic, operation) is None]
        left = len(missing)

        def answered() -> None:
            nonlocal left
            left -= 1
            if not left:
                callback()

        for topic in missing:
            self.ask(topic, answered)
        return not missing

    def may_hear_of(self, topic: str, operation: AclRight) -> bool | None:
        """Of a topic that is no mirror: whether the client is told if there is one of that name. None: not known."""
        known = self._strange.get(topic)
        return None if known is None else bool(known[0] >> operation & 1)

    def strange_known(self, topics: Iterable[str], callback: Callable[[], None]) -> bool:
        """Whether `may_hear_of` knows of the first hundred of these. If not, they are asked for,
        and the callback comes with the answer (never, if the connection ends first).
        """
        now = self._loop.time()
        missing = [
            topic
            for topic in islice(dict.fromkeys(topics), _MOST_STRANGE)
            if (known := self._strange.get(topic)) is None or now - known[1] > self._ttl
        ]
        if not missing:
            return True
        if self._asking_strange is not None:
            self._asking_strange.append(callback)
            return False
        if len(self._strange) > 10 * _MOST_STRANGE:
            self._strange.clear()
        self._asking_strange = [callback]
        self._ask_metadata(missing, self._strange_answered)
        self._loop.call_later(self._patience, self._strange_late, self._asking_strange)
        return False

    def _strange_answered(self, reply: memoryview) -> None:
        now = self._loop.time()
        for item in codec.decode_response("metadata", _METADATA, reply).topics:
            bits = item.topic_authorized_operations
            if int(item.error_code) == TOPIC_AUTHORIZATION_FAILED:
                bits = 0
            elif bits == _NOT_ASKED:
                bits = -1  # there is none, and the broker has told the client so
            self._strange[item.name or ""] = (bits, now)
        callbacks, self._asking_strange = self._asking_strange or [], None
        for callback in callbacks:
            callback()

    def _strange_late(self, asking: list[Callable[[], None]]) -> None:
        if self._closed or self._asking_strange is not asking:
            return
        if self._upstream.owed:
            self._loop.call_later(self._patience, self._strange_late, asking)
            return
        self._upstream.give_up(
            RequestTimedOut(
                f"the real broker did not say within {self._patience:g} s which topics there are for the client",
                sent=True,
            )
        )

    def ask(self, topic: str, callback: Callable[[], None] | None = None) -> None:
        """Ask the broker; the callback comes with the answer (never, if the connection ends first)."""
        waiting = self._asking.get(topic)
        if waiting is None:
            waiting = self._asking[topic] = []
            self._send(topic)
            self._loop.call_later(self._patience, self._late, topic, waiting)
        if callback is not None and callback not in waiting:
            waiting.append(callback)

    def close(self) -> None:
        self._closed = True
        self._asking.clear()
        self._asking_strange = None

    def _late(self, topic: str, waiting: list[Callable[[], None]]) -> None:
        """Everything that the client sends queues behind an answer that does not come, and an old one would be used on."""
        if self._closed or self._asking.get(topic) is not waiting:
            return
        self._bits.pop(topic, None)
        if self._upstream.owed:
            self._loop.call_later(self._patience, self._late, topic, waiting)
            return
        what = "the cluster" if topic == _CLUSTER else f"topic {topic}"
        self._upstream.give_up(
            RequestTimedOut(
                f"the real broker did not say within {self._patience:g} s what the client may do with {what}",
                sent=True,
            )
        )

    def _send(self, topic: str) -> None:
        if self._closed:
            return
        if topic == _CLUSTER:
            frame = codec.encode_request(
                "describe_cluster",
                0,
                {"include_cluster_authorized_operations": True},
                correlation_id=self._upstream.next_correlation_id(),
                client_id=_CLIENT_ID,
            )
            self._upstream.send(memoryview(frame), self._cluster_answered)
            return
        self._ask_metadata([topic], lambda reply: self._topic_answered(topic, reply))

    def _ask_metadata(self, topics: list[str], answered: Callable[[memoryview], None]) -> None:
        frame = codec.encode_request(
            "metadata",
            _METADATA,
            {
                "topics": [{"name": topic} for topic in topics],
                "allow_auto_topic_creation": False,
                "include_topic_authorized_operations": True,
            },
            correlation_id=self._upstream.next_correlation_id(),
            client_id=_CLIENT_ID,
        )
        self._upstream.send(memoryview(frame), answered)

    def _topic_answered(self, topic: str, reply: memoryview) -> None:
        answer = codec.decode_response("metadata", _METADATA, reply)
        bits = _NOT_ASKED
        for item in answer.topics:
            if item.name == topic:
                # TOPIC_AUTHORIZATION_FAILED: not even DESCRIBE
                bits = (
                    0
                    if int(item.error_code) == TOPIC_AUTHORIZATION_FAILED
                    else item.topic_authorized_operations
                )
        self._known(topic, bits)

    def _cluster_answered(self, reply: memoryview) -> None:
        answer = codec.decode_response("describe_cluster", 0, reply)
        self._known(_CLUSTER, 0 if int(answer.error_code) else answer.cluster_authorized_operations)

    def _known(self, topic: str, bits: int) -> None:
        if bits == _NOT_ASKED:
            # The broker does not know the topic yet (it was created a moment ago): look again.
            self._loop.call_later(_ASK_AGAIN, self._send, topic)
            return
        self._bits[topic] = (bits, self._loop.time())
        for callback in self._asking.pop(topic, ()):
            callback()
