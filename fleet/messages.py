"""Messages between members and the link controller, checked field by field on arrival.

Unknown fields are ignored and unknown types refused by name: an older sidecar meets a newer one during every rolling
upgrade. Rules that both must know to be safe are guarded by PROTOCOL: the two ends use the highest number that both
know, and part if there is none.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from fleet.channel import Message
from wire.errors import LinkerError

T = TypeVar("T")

#: The versions of this conversation that this program speaks.
PROTOCOL = (1, 1)


class BadMessage(LinkerError):
    """The other side sent something that is none of the messages below."""


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


Name = Annotated[str, Field(max_length=512)]
Index = Annotated[int, Field(ge=0, le=2**31 - 1)]
# JSON has no tuples: lists are taken for them, and only for them; numbers and strings stay strict.
_AsList = Field(strict=False)
Partitions = list[Annotated[tuple[Name, Index], _AsList]]  # topic, partition
Pair = Annotated[tuple[int, int], _AsList]
Nodes = list[Annotated[tuple[str, Any, int], _AsList]]  # path, value, version


# Member to link controller.


class Hello(_Message):
    """The first message. `replaces`: sessions of this sidecar that are certainly over (it holds the lock of their
    state directory)."""

    type: Literal["hello"] = "hello"
    protocol: Pair = PROTOCOL
    broker_id: Index
    session: Name
    replaces: list[Name] = []
    version: Name = ""  # of the program, for people
    rack: Name | None = None
    control: Name = ""
    admin: Name = ""
    cluster_id: Name = ""
    # The values that the next start must reuse, kept in the store too: failover needs them when the sidecar is dead.
    incarnation_id: Name = ""
    log_dir_id: Name = ""
    broker_epoch: int = -1
    highest_epoch: int = 0  # the highest controller epoch it has heard of
    sources: list[Annotated[tuple[Name, Index], _AsList]] = []  # its broker id at the source of a link


class Renew(_Message):
    """Ask for the lease to be prolonged; the answer proves it from this message's *send* time on."""

    type: Literal["renew"] = "renew"
    n: int


class Done(_Message):
    """A command was carried out, or could not be."""

    type: Literal["done"] = "done"
    command: int
    error: str | None = None
    data: list[dict[str, Any]] | None = None  # of `progress`
    ends: list[Annotated[tuple[Name, Index, int], _AsList]] | None = None  # of `stop_following`


What = Literal["fail_partition", "source_epochs", "untruncated"]


class Ask(_Message):
    """A change that only the link controller can write, for a partition the member leads."""

    type: Literal["ask"] = "ask"
    n: int
    what: What
    link: Name
    topic: Name
    partition: Index
    reason: str | None = None
    pairs: list[Pair] = []


class LinkTraffic(_Message):
    """The traffic of one process for a link since it began."""

    link: Name
    fetched_bytes: int = 0
    served_bytes: int = 0
    forwarded_produces: int = 0
    forwarded_bytes: int = 0
    forward_errors: int = 0


class SourceMember(_Message):
    """A sidecar as a broker of a link's source."""

    link: Name
    broker_id: int | None = None  # None: its configuration has none for this source
    state: Name = ""  # JOINING, JOINED, FENCED, LEAVING
    reason: str | None = None  # of a state that is not JOINED
    cordoned: bool = False


class SidecarReport(_Message):
    """A sidecar's report about itself, for people: no decision rests on it."""

    not_ready: str | None = None
    heartbeat_age: float | None = None  # seconds since the target's controller took one
    links: list[LinkTraffic] = []
    joined: list[SourceMember] = []


class Report(_Message):
    """The member's knowledge of the copies that it leads (`progress.CopyReport` as JSON), and of itself."""

    type: Literal["report"] = "report"
    copies: list[dict[str, Any]]
    sidecar: SidecarReport | None = None


class Bye(_Message):
    """The member stops: it acknowledges nothing any more and gives its lease back."""

    type: Literal["bye"] = "bye"


# Link controller to member.


class Welcome(_Message):
    """The member is taken. `image` is [path, value, version] of everything in the store; null where the two share a
    process and its memory."""

    type: Literal["welcome"] = "welcome"
    protocol: int
    controller_epoch: int
    broker_id: int
    lease: float | None  # seconds; null: never ends
    image: Nodes | None


class Refusal(_Message):
    """The member is not taken. `fatal`: a retry is useless before an operator has changed something."""

    type: Literal["refusal"] = "refusal"
    reason: str
    fatal: bool = False


class Renewed(_Message):
    type: Literal["renewed"] = "renewed"
    n: int
    controller_epoch: int


class Delta(_Message):
    """LeaderAndIsr: what was committed, in order. `put`: [path, value, version]. `gone`: removals by kind and names.
    `seq` grows by one with each delta of a channel. `reset`: `put` is everything there is."""

    type: Literal["delta"] = "delta"
    controller_epoch: int
    seq: int
    reset: bool = False
    put: Nodes = []
    gone: list[list[str | int]] = []


class Command(_Message):
    """StopReplica and its kin. Carried out again when it is sent again; acknowledged by Done.

    fence        hold new produces; done when no forwarded one is in flight
    unfence      forward what is held
    handed_over  somebody else leads: answer what is held
    answered     done when nothing that was held waits for its answer; nothing is changed
    hold         as fence, around a planned change of leader
    release      undo hold, unless a promote has fenced the partition meanwhile
    progress     tell where the followers of these partitions are
    stop_following  ask the source for nothing more; done, with the end of each, when the mirror's replicas have it
    follow_again    undo stop_following
    """

    type: Literal["command"] = "command"
    id: int
    controller_epoch: int
    what: Literal[
        "fence",
        "unfence",
        "handed_over",
        "answered",
        "hold",
        "release",
        "progress",
        "stop_following",
        "follow_again",
    ]
    link: Name
    partitions: Partitions
    timeout: float


class Answer(_Message):
    """To an Ask. `error`: class name and text."""

    type: Literal["answer"] = "answer"
    n: int
    error: Annotated[tuple[str, str], _AsList] | None = None


FromMember = Hello | Renew | Done | Ask | Report | Bye
FromController = Welcome | Refusal | Renewed | Delta | Command | Answer

_from_member: TypeAdapter[FromMember] = TypeAdapter(Annotated[FromMember, Field(discriminator="type")])
_from_controller: TypeAdapter[FromController] = TypeAdapter(
    Annotated[FromController, Field(discriminator="type")]
)


def encode(message: FromMember | FromController) -> Message:
    """As a channel carries it."""
    return message.model_dump(mode="json")


def from_member(message: Message) -> FromMember:
    """BadMessage if it is none."""
    return _checked(_from_member, message)


def from_controller(message: Message) -> FromController:
    """BadMessage if it is none."""
    return _checked(_from_controller, message)


def _checked(adapter: TypeAdapter[T], message: Message) -> T:
    try:
        return adapter.validate_python(message)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise BadMessage(f"not a message of this conversation: {where}: {first['msg']}") from None
