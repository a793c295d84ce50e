"""Which clients the matrix knows, what each of them can do, and which of it runs by default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """A client library in one version, and the program that stands for it."""

    name: str
    kind: str  # java, streams, python, go, node
    program: str  # main class, module, or directory
    version: str = ""  # of the jars; the others say theirs themselves
    # At any change of leaders, as `--plain --parts leaders` shows on stock brokers:
    own_error: str = ""  # an error of the library's own
    rereads: bool = False  # its members begin anew, and read again what they had not committed yet

    def owns(self, error: str) -> bool:
        """Whether the library gets this error from stock brokers, too."""
        return bool(self.own_error) and self.own_error in error


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerCase:
    """One row of the producers' matrix."""

    library: Library
    transactional: bool
    quick: bool  # part of the short run
    label: str = ""
    arguments: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        label = f"-{self.label}" if self.label else ""
        return f"{self.library.name}{label}{'-transactions' if self.transactional else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCase:
    """One row of the groups' matrix."""

    library: Library
    label: str
    quick: bool = False
    static: bool = False
    arguments: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.library.name}-{self.label}"

    @property
    def streams(self) -> bool:
        return self.library.kind == "streams"


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchCase:
    """One row of the switches' matrix: a group and the writer of what it reads. Both stay at the source."""

    writer: ProducerCase
    group: GroupCase
    quick: bool = False

    @property
    def name(self) -> str:
        return self.group.name if self.group.streams else self.writer.name

    @property
    def libraries(self) -> tuple[Library, Library]:
        return self.writer.library, self.group.library


JAVA_28, JAVA_39, JAVA_43 = (
    Library(name=f"java-{version}", kind="java", program="Client", version=version)
    for version in ("2.8.2", "3.9.1", "4.3.1")
)
STREAMS = Library(name="streams-4.3.1", kind="streams", program="StreamsClient", version="4.3.1")
LIBRDKAFKA = Library(name="librdkafka", kind="python", program="librdkafka_client")
AIOKAFKA = Library(name="aiokafka", kind="python", program="aiokafka_client")
KAFKA_PYTHON = Library(name="kafka-python", kind="python", program="kafka_python_client")
FRANZ_GO = Library(name="franz-go", kind="go", program="go")
SARAMA = Library(name="sarama", kind="go", program="sarama")
KAFKA_GO = Library(name="kafka-go", kind="go", program="kafka_go")
# A fetch that is answered NOT_LEADER_OR_FOLLOWER makes it join again (its ConsumerGroup.recoverFromFetch).
KAFKAJS = Library(name="kafkajs", kind="node", program="kafkajs", rereads=True)
# It takes the number of tagged fields for their length, so it cannot read an answer that says who leads now (KIP-951); its
# 2.x, for Node.js 22, counts them. Its idempotent producer tries for ever without asking who leads, and so has no row.
PLATFORMATIC = Library(
    name="platformatic-kafka",
    kind="node",
    program="platformatic",
    own_error="Out of bounds.",
    rereads=True,
)
NODE_RDKAFKA = Library(name="node-rdkafka", kind="node", program="node_rdkafka")

PRODUCERS = tuple(
    ProducerCase(library=library, transactional=transactional, quick=quick)
    for library, transactional, quick in (
        (JAVA_28, False, False),
        (JAVA_39, False, False),
        (JAVA_43, False, True),
        (LIBRDKAFKA, False, True),
        (AIOKAFKA, False, True),
        (KAFKA_PYTHON, False, True),
        (FRANZ_GO, False, True),
        (KAFKA_GO, False, True),
        (JAVA_28, True, False),
        (JAVA_39, True, False),
        (JAVA_43, True, True),
        (LIBRDKAFKA, True, False),
        (AIOKAFKA, True, False),
        (KAFKA_PYTHON, True, False),
        (FRANZ_GO, True, False),
        (NODE_RDKAFKA, False, False),
        (KAFKAJS, True, False),
    )
) + tuple(
    ProducerCase(library=library, transactional=False, quick=quick, label=mode, arguments={"mode": mode})
    for library, mode, quick in (
        (SARAMA, "sync", False),
        (SARAMA, "idempotent", True),
        (KAFKAJS, "plain", True),
        (KAFKAJS, "idempotent", False),
        (PLATFORMATIC, "plain", False),
    )
)

RANGE = {"assignor": "range"}
COOPERATIVE = {"assignor": "cooperative-sticky"}
NEW_PROTOCOL = {"protocol": "consumer"}
UNCOMMITTED = {"isolation": "read_uncommitted"}
COMMITTED = {"isolation": "read_committed"}
AT_LEAST_ONCE = {"guarantee": "at_least_once"}
EXACTLY_ONCE = {"guarantee": "exactly_once_v2"}

GROUPS = (
    GroupCase(library=JAVA_43, label="range", arguments=RANGE, quick=True),
    GroupCase(library=JAVA_43, label="cooperative", arguments=COOPERATIVE),
    GroupCase(library=JAVA_43, label="static", arguments=RANGE, static=True),
    GroupCase(library=JAVA_43, label="consumer-protocol", arguments=NEW_PROTOCOL),
    GroupCase(library=JAVA_39, label="range", arguments=RANGE),
    GroupCase(library=JAVA_39, label="cooperative", arguments=COOPERATIVE),
    GroupCase(library=JAVA_28, label="range", arguments=RANGE),
    GroupCase(library=JAVA_28, label="cooperative", arguments=COOPERATIVE),
    GroupCase(library=STREAMS, label="at-least-once", arguments=AT_LEAST_ONCE),
    GroupCase(library=STREAMS, label="exactly-once", arguments=EXACTLY_ONCE),
    GroupCase(library=LIBRDKAFKA, label="range-committed", arguments=RANGE | COMMITTED),
    GroupCase(library=LIBRDKAFKA, label="range-uncommitted", arguments=RANGE | UNCOMMITTED),
    GroupCase(library=LIBRDKAFKA, label="cooperative", arguments=COOPERATIVE | COMMITTED),
    GroupCase(library=LIBRDKAFKA, label="consumer-protocol", arguments=NEW_PROTOCOL | COMMITTED, quick=True),
    GroupCase(
        library=LIBRDKAFKA, label="consumer-protocol-uncommitted", arguments=NEW_PROTOCOL | UNCOMMITTED
    ),
    GroupCase(library=AIOKAFKA, label="range", arguments=RANGE, quick=True),
    GroupCase(library=AIOKAFKA, label="sticky", arguments={"assignor": "sticky"}),
    GroupCase(library=KAFKA_PYTHON, label="range", arguments=RANGE),
    GroupCase(library=KAFKA_PYTHON, label="cooperative", arguments=COOPERATIVE),
    GroupCase(library=FRANZ_GO, label="range", arguments=RANGE),
    GroupCase(library=FRANZ_GO, label="cooperative", arguments=COOPERATIVE),
    GroupCase(library=FRANZ_GO, label="consumer-protocol", arguments=NEW_PROTOCOL),
    GroupCase(library=KAFKA_GO, label="range", arguments=RANGE, quick=True),
    GroupCase(library=SARAMA, label="range", arguments=RANGE),
    GroupCase(library=SARAMA, label="sticky", arguments={"assignor": "sticky"}),
    GroupCase(library=KAFKAJS, label="roundrobin", quick=True),
    GroupCase(library=PLATFORMATIC, label="roundrobin"),
    GroupCase(library=PLATFORMATIC, label="consumer-protocol", arguments=NEW_PROTOCOL),
    GroupCase(library=NODE_RDKAFKA, label="range", arguments=RANGE),
    GroupCase(library=NODE_RDKAFKA, label="cooperative", arguments=COOPERATIVE),
)

#: Each library once, idempotent where it can be. kafka-go and platformatic-kafka are not: they wait for acks=all.
#: Streams has a writer of librdkafka, and the topic that it writes to is switched as well.
SWITCHES = tuple(
    SwitchCase(
        writer=next(case for case in PRODUCERS if case.name == writer),
        group=next(case for case in GROUPS if case.name == group),
        quick=quick,
    )
    for writer, group, quick in (
        ("java-2.8.2", "java-2.8.2-cooperative", False),
        ("java-3.9.1", "java-3.9.1-range", False),
        ("java-4.3.1", "java-4.3.1-consumer-protocol", True),
        ("librdkafka", "streams-4.3.1-at-least-once", False),
        ("librdkafka", "librdkafka-range-committed", True),
        ("aiokafka", "aiokafka-range", True),
        ("kafka-python", "kafka-python-cooperative", False),
        ("franz-go", "franz-go-cooperative", False),
        ("kafka-go", "kafka-go-range", False),
        ("sarama-idempotent", "sarama-range", False),
        ("kafkajs-idempotent", "kafkajs-roundrobin", False),
        ("platformatic-kafka-plain", "platformatic-kafka-roundrobin", False),
        ("node-rdkafka", "node-rdkafka-range", False),
    )
)
