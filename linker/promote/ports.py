"""The Protocols that the promote driver needs, and its settings.

Every call takes its deadline in seconds. A port may raise any LinkerError or TimeoutError; the driver decides what that
means. Calls are idempotent: after a restart the driver makes them again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Protocol

from controller.alter_partition import AlterPartitionItem
from controller.cluster_view import ImageView
from controller.judge.alignment import ReplicaPosition, SourceEnd
from controller.judge.late_starts import Late
from controller.phases import Phase
from controller.proof import ValidationPolicy
from wire.frames.types import TopicPartition

Tps = Collection[TopicPartition]


class Fencer(Protocol):
    """The routers (one now, several later: then `fence` returns when every one of them has acknowledged)."""

    def absent(self) -> str | None:
        """A sidecar that could not acknowledge a fence now, although it may still acknowledge writes; None if
        nobody. Known beforehand, so that no producer is held for it."""
        ...

    async def prepare(self, tps: Tps, *, timeout: float) -> None:
        """Do before a fence all that can be done, so that no producer is held for it: connect to all that the steps
        behind it ask. A failure is left to the step that needs the connection."""
        ...

    async def fence(self, tps: Tps, *, timeout: float) -> None:
        """Hold new produces; return when none is in flight to the source. Raises if that takes longer: what
        is fenced then stays fenced until unfence.
        """
        ...

    async def unfence(self, tps: Tps, *, timeout: float) -> None:
        """Forward what is held, in order. Not fenced: no change."""
        ...

    async def handed_over(self, tps: Tps, *, timeout: float) -> None:
        """Answer what is held with NOT_LEADER_OR_FOLLOWER and the new leader."""
        ...

    async def answered(self, tps: Tps, *, timeout: float) -> None:
        """After handed_over: return when nobody waits for an answer to what was held, or the time is over."""
        ...


class ReplicaProgress(Protocol):
    """The fetcher's view of the target replicas."""

    def lag(self, tps: Tps) -> Mapping[TopicPartition, int | None]:
        """Offsets between the source's end as last seen and the slowest target replica; None: not
        known yet.
        """
        ...

    def positions(self, tps: Tps) -> Mapping[TopicPartition, Mapping[int, ReplicaPosition]]:
        """Per real broker the fetch offset it sent last."""
        ...

    async def wait_until(self, tps: Tps, predicate: Callable[[], bool], *, timeout: float) -> bool:
        """Evaluate the predicate now and whenever lag, position or state of one of the partitions moved;
        False when the time is over."""
        ...


class SourceEnds(Protocol):
    async def ends(self, tps: Tps, *, timeout: float) -> Mapping[TopicPartition, SourceEnd]:
        """Asked at the source's leaders now. Log end by ListOffsets with replica id -2 (debugging
        consumer), high watermark with replica id -1, last stable offset with isolation level 1; all
        partitions, or raise.
        """
        ...


class Grow(Protocol):
    def __call__(self, topics: Collection[str], *, timeout: float) -> Awaitable[None]:
        """Look for partitions that the source has added to these topics now, and have their mirrors take them."""
        ...


class SourceTopics(Protocol):
    async def partitions(self, topics: Collection[str], *, timeout: float) -> Mapping[str, int]:
        """How many each of them has at the source now; a topic that is not there is left out. Numbers that came with
        the last reading of the ends are as good as asking again."""
        ...


@dataclass(frozen=True, slots=True)
class FenceProof:
    """A replica as it was compared behind a fence: by the validator below `through` (None: nothing), from there to `end`
    batch by batch (`rest`), or by its last batch alone."""

    through: int | None
    end: int
    rest: bool
    equal: bool


class TailCheck(Protocol):
    async def check(
        self, ends: Mapping[TopicPartition, int], *, timeout: float
    ) -> Mapping[TopicPartition, str]:
        """Compare the last batches of each replica with the source's; a reason per partition that differs."""
        ...


class ReplicaStartsPort(Protocol):
    async def late(self, tps: Tps, *, timeout: float, every: bool = True) -> Late:
        """Replicas whose logs start later than the source's and the mirror's, as they tell it now. With `every` it raises
        LinkerError if one of them does not tell: it may be the one. Without, one that does not tell at once is left out."""
        ...


@dataclass(frozen=True, slots=True)
class Unproved:
    """Why a partition is not proved near enough to its end. `failing`: the validator was tried and could not;
    `hopeless`: no waiting will change it."""

    reason: str
    failing: bool = False
    hopeless: bool = False


class Validation(Protocol):
    """The validator, which proves replicas equal to the source from their start on."""

    def run(self, tps: Tps) -> AbstractAsyncContextManager[None]:
        """Inside, it works on these partitions, again and again; on leaving it, its run is ended: nothing is to
        compete with what happens behind the fence."""
        ...

    def unproved(self, tps: Tps) -> Mapping[TopicPartition, Unproved]:
        """Those that are not proved to within the configured distance of the source's end as last seen."""
        ...

    async def wait(self, *, timeout: float) -> None:
        """Until it has got further, or not, or the time is over."""
        ...


class HandOver(Protocol):
    """The target's controller and its metadata log."""

    def link_brokers(self) -> Collection[int]:
        """Broker ids of all sidecars, those that are gone but may still be listed included."""
        ...

    def image(self) -> ImageView:
        """The metadata image as replayed so far."""
        ...

    async def caught_up(self, *, timeout: float) -> None:
        """Return when the image holds everything that was committed when this was called."""
        ...

    async def wait_until(self, predicate: Callable[[ImageView], bool], *, timeout: float) -> bool:
        """Evaluate the predicate now and after each replayed record batch; False when the time is over."""
        ...

    async def alter_partition(
        self, items: Sequence[AlterPartitionItem], *, timeout: float
    ) -> Mapping[TopicPartition, int]:
        """One request per leader, never silently resent; the code per partition, none where the outcome of
        one request of several is unknown. A top-level code raises BrokerError, or is that of each of its
        partitions if there were other requests. ConnectionLost(sent=False) only if not one byte can have
        reached the controller."""
        ...

    async def open(self, targets: Mapping[TopicPartition, Sequence[int]], *, timeout: float) -> None:
        """Take the steps that make the partitions open for these targets (`controller.plan.replicas.open_step`), as far as
        there are any; the copies stay. Whether it worked is read from the image.
        """
        ...

    async def revoke(self, tps: Tps, *, timeout: float) -> None:
        """Raise the partition epochs without changing the replicas (`hand_over.revoke_assignments`), so that
        no AlterPartition sent before can succeed any more. Whether it worked is read from the image.
        """
        ...


class Configs(Protocol):
    async def restore(self, topic: str, configs: Mapping[str, str | None], *, timeout: float) -> None:
        """Put topic configs back: a value sets, None deletes the override."""
        ...


class SourceProducers(Protocol):
    """Producers as the source's leaders know them; texts for people."""

    async def writers(self, tps: Tps, *, timeout: float) -> Mapping[TopicPartition, str]:
        """The producers that wrote to these partitions lately without the routers, the newest first."""
        ...

    async def open_transactions(self, tps: Tps, *, timeout: float) -> Mapping[TopicPartition, str]: ...

    async def abort_open(self, tps: Tps, *, timeout: float) -> Mapping[TopicPartition, str]:
        """Abort the transaction that is open for the longest in each of them; what was aborted."""
        ...


class SourceFence(Protocol):
    """Makes the source refuse all writes to a topic."""

    def not_yet(self) -> str | None:
        """Why it should not be closed now; known before a producer is held."""
        ...

    async def closed(self, topics: Collection[str], *, timeout: float) -> Collection[str]:
        """Those of them that it refuses already, by the same means and not by ours."""
        ...

    async def prepare(self, topics: Collection[str], *, timeout: float) -> None:
        """Do before `close` all that no client notices. `open` undoes it, too."""
        ...

    async def close(self, topics: Collection[str], *, timeout: float) -> None:
        """Returns when every leader of them refuses."""
        ...

    async def open(self, topics: Collection[str], *, timeout: float) -> None:
        """Undo it; returns when no leader of them refuses. Not closed: no change."""
        ...


class SwitchFence(SourceFence, Protocol):
    """The same where link brokers take the source over."""

    async def handed_over(self, tps: Tps) -> None:
        """The target's metadata log says that its own brokers lead these: writes that wait at the source go on to them."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotePorts:
    fencer: Fencer
    progress: ReplicaProgress
    source_ends: SourceEnds
    tail_check: TailCheck
    hand_over: HandOver
    configs: Configs
    validation: Validation | None = None  # None: there is none, and none is asked for
    producers: SourceProducers | None = None  # None: nobody is named, and nothing aborted
    growth: Grow | None = None  # None: mirrors do not take partitions that the source adds
    source_topics: SourceTopics | None = None  # None: the source is not asked for partitions that were added
    replica_starts: ReplicaStartsPort | None = None  # None: there is no source to start earlier
    source_fence: SourceFence | None = None  # None: the source cannot be made to refuse writes
    switch: SwitchFence | None = None  # the same for a job that is a switch; None: there is none


@dataclass(frozen=True, slots=True, kw_only=True)
class PromoteSettings:
    """Deadlines in seconds. The fenced part is bounded by fence_deadline as long as nothing may have
    been sent.
    """

    max_lag: int = 1000  # offsets per partition below which the fence may be taken
    catch_up_timeout: float = 600.0
    transaction_timeout: float = (
        600.0  # one that has been open for so long abandons the promote, or is aborted
    )
    abort_open_transactions: bool = False
    fence_source: bool = False  # the source refuses writes from the fence on
    fence_drain_timeout: float = 5.0
    fence_deadline: float = 10.0
    failover_deadline: float = 120.0  # the same for a failover, whose producers have nowhere else to go
    call_timeout: float = 5.0  # one exchange
    settle_timeout: float = 5.0  # waiting for the metadata log after one AlterPartition
    insist_timeout: float = 60.0  # steps that may not be skipped are tried that long, then again by resume()
    poll: float = 0.005  # between readings of what gives no event, inside the fence
    idle_poll: float = 0.25  # the same before the fence
    backoff: float = 0.05  # after an error, doubling
    max_backoff: float = 1.0
    batch_partitions: int = 32  # whose producers wait together; what it costs them grows with it
    first_partitions: int = 4  # of the first of several batches; each may have twice as many as the last
    whole_partitions: int = 256  # instead, where nobody is served by small batches (`at_a_time`)
    switch_partitions: int = 100  # of a switch, which takes whole topics: a larger one is a batch of its own
    answered_timeout: float = 1.0  # for the answers to what was held, before the next batch is
    breather: float = 0.3  # for producers between two batches, at the least
    validation: ValidationPolicy = ValidationPolicy.SKIP

    def at_a_time(self, partitions: int, *, whole: bool) -> tuple[int, int]:
        """Of so many partitions, how many go through a promote together: at most, and in the first batch. All of them if
        they are few. More of them, from the first on, where small batches would be of no use: a failover, whose producers
        have nowhere else to write in between (`whole`), and a source that is to refuse writes by an ACL, which it can do for
        whole topics only."""
        if whole or self.fence_source:
            return self.whole_partitions, self.whole_partitions
        most = self.batch_partitions
        return most, most if partitions <= most else min(self.first_partitions, most)

    def in_batches(self, most: int | None) -> PromoteSettings:
        """With so many partitions at a time, where the operator has said so."""
        return self if most is None else replace(self, batch_partitions=most, switch_partitions=most)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromoteProgress:
    """Reported at every step, and while waiting."""

    job_id: int
    phase: Phase
    partitions: Mapping[TopicPartition, Phase]
    lag: Mapping[TopicPartition, int | None] = field(default_factory=dict)
    phases_ms: Mapping[str, float] = field(default_factory=dict)
    waiting_for: str | None = None


Report = Callable[[PromoteProgress], None]
