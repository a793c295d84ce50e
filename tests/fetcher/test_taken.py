"""Partitions that the brokers of a cluster led before, and follow now: they are told where their logs stop being ours."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fetcher.follower_answers import FollowerAnswers
from fetcher.follower_offsets import FollowerOffsets
from fetcher.follower_sessions import FollowerFetchSession, SessionPartition
from fetcher.partition_copy import PartitionCopy
from tests.fakes.batches import build_batch
from tests.fakes.cluster import FakeCluster
from tests.fakes.follower import FollowerLog
from tests.fetcher.pure import pure_mirror
from tests.fetcher.rig import SESSION_EPOCH, Rig, eventually, fill, with_epoch
from tests.wire.test_leader_epochs import EpochCache
from wire.frames.fetch import FetchPartition
from wire.frames.leader_epochs import LeaderEpochs
from wire.frames.offset_requests import AskedPartition


@dataclass
class Replica:
    """A stock follower's log: the epoch of each record, and its cache of epochs (AbstractFetcherThread)."""

    log: list[int]
    empty_epoch: int | None = None  # led under it, and nothing was written
    cache: EpochCache = field(default_factory=EpochCache)
    truncations: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        for offset, epoch in enumerate(self.log):
            self.cache.assign(epoch, offset)
        if self.empty_epoch is not None:
            self.cache.assign(self.empty_epoch, len(self.log))

    @property
    def last_epoch(self) -> int:
        return max(self.cache.entries, default=-1)

    def told(self, epoch: int, end: int) -> bool:
        """getOffsetTruncationState; whether the truncation is completed."""
        own_epoch, own_end = self.cache.end_offset_for(epoch, len(self.log))
        if end < 0:
            return self.truncate(len(self.log), True)
        if own_end < 0 or epoch < 0:
            return self.truncate(min(end, len(self.log)), True)
        if own_epoch != epoch:
            return self.truncate(min(own_end, len(self.log)), False)
        return self.truncate(min(own_end, end, len(self.log)), True)

    def truncate(self, end: int, done: bool) -> bool:
        self.truncations.append(end)
        del self.log[end:]
        self.cache.truncate(end)
        return done


def take(leader: list[int], own: int, *, end: int | None = None, **spec: Any) -> PartitionCopy:
    """A copy of a log whose records have had these epochs until it was taken over."""
    history = EpochCache()
    for offset, epoch in enumerate(leader):
        history.assign(epoch, offset)
    known = LeaderEpochs.of(own, len(leader), history.entries.items())
    mirror, _, _ = pure_mirror(session_epoch=own, taken=known, **spec)
    high_watermark = len(leader) if end is None else end
    mirror.load(high_watermark, high_watermark, 0, 0.0)
    return mirror


def diverging(
    mirror: PartitionCopy, offset: int, last_epoch: int, log_start: int = 0
) -> tuple[int, int] | None:
    session = FollowerFetchSession(1, 1, True, 0.0)
    asked = FetchPartition(0, mirror.spec.session_epoch, offset, last_epoch, log_start, 1 << 20)
    return FollowerAnswers._diverging(SessionPartition(session, b"i" * 16, asked), mirror)


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[int], list[int], int | None, int]:
    """A leader's log, a follower's, an epoch that the follower led under in vain, and the epoch of the take-over. Two
    records with the same offset and epoch are the same, as are all before them."""
    own = 12
    leader = sorted(draw(st.lists(st.integers(0, own - 2), max_size=15)))
    common = draw(st.integers(0, len(leader)))
    before = leader[common - 1] if common else -1
    following = leader[common] if common < len(leader) else own
    # Its own records are of an epoch that ended before the leader's next one began, or that the leader's log never had.
    may = [e for e in range(max(before, 0), own) if (e == before and following != before) or e not in leader]
    may = [e for e in may if e >= before]
    tail = sorted(draw(st.lists(st.sampled_from(may), max_size=8))) if may else []
    last = tail[-1] if tail else before
    unused = [e for e in range(last + 1, own) if e not in leader]
    empty = draw(st.sampled_from([None, *unused])) if common + len(tail) else None
    return leader, [*leader[:common], *tail], empty, own


def common_prefix(one: list[int], other: list[int]) -> int:
    return next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


@given(logs(), st.integers(0, 5))
def test_a_follower_cuts_what_is_not_ours_and_nothing_else(
    found: tuple[list[int], list[int], int | None, int], further: int
) -> None:
    leader, own_log, empty, own = found
    mirror = take(leader, own, end=len(leader) + further)
    replica = Replica(list(own_log), empty)
    shared = common_prefix(leader, own_log)
    for _ in range(20):
        told = diverging(mirror, len(replica.log), replica.last_epoch)
        if told is None:
            break
        replica.told(*told)
    else:
        raise AssertionError(f"it never ends: {replica.truncations}")
    assert replica.log == leader[:shared]
    # What comes next has the epochs of the leader's log, and then our own.
    taken = mirror.spec.taken
    assert taken is not None
    assert [taken.at(offset) for offset in range(len(leader) + 2)] == [*leader, own, own]


@given(logs(), st.integers(0, 5))
def test_an_older_follower_asks_where_its_epochs_end(
    found: tuple[list[int], list[int], int | None, int], further: int
) -> None:
    """Before Fetch v12: OffsetForLeaderEpoch until its truncation is completed."""
    leader, own_log, empty, own = found
    mirror = take(leader, own, end=len(leader) + further)
    replica = Replica(list(own_log), empty)
    shared = common_prefix(leader, own_log)
    offsets = FollowerOffsets(SimpleNamespace(mirror_for=lambda *_: mirror))  # type: ignore[arg-type]
    for _ in range(20):
        answer = offsets._epoch_end("t", AskedPartition(0, own, replica.last_epoch), 1)
        assert answer.error == 0
        if replica.last_epoch < 0 or replica.told(answer.leader_epoch, answer.offset):
            break
    else:
        raise AssertionError(f"it never ends: {replica.truncations}")
    assert replica.log == leader[:shared]


def test_a_follower_without_epochs_is_cut_where_we_began_to_lead() -> None:
    mirror = take([3, 3, 5, 5], 9, end=10)
    assert diverging(mirror, 6, -1) == (5, 4)
    assert diverging(mirror, 4, -1) is None  # it has nothing behind
    assert diverging(mirror, 6, -1, log_start=6) is None  # it has nothing at all
    assert diverging(take([], 9), 3, -1) == (9, 0)


def test_records_of_a_later_epoch_are_nobodys() -> None:
    assert diverging(take([3, 3], 9, end=10), 12, 11) == (9, 10)
    assert diverging(take([3, 3], 9, end=10), 7, 9) is None


# --- a whole fetcher with followers --------------------------------------------------------------------------------------

HISTORY = LeaderEpochs.of(SESSION_EPOCH, 20, [(2, 0), (4, 8)])


def own_bytes(source: FakeCluster, until: int | None = None) -> bytes:
    """The source's bytes with the epochs that the partition has in the cluster that was taken over."""
    return b"".join(
        with_epoch(batch.data, HISTORY.at(batch.info.base_offset))
        for batch in source.partition("t", 0).log.batches
        if until is None or batch.info.last_offset < until
    )


async def test_followers_wait_while_it_is_switched_and_then_follow_the_other_cluster() -> None:
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        fill(source, 10)
        rig = Rig(source, replicas=(1, 2, 3))
        async with rig.running():
            (mirror,) = rig.mirror("t", taken=HISTORY, held=True, start_offset=2)
            for replica, until, alone in ((1, 20, 0), (2, 4, 0), (3, 20, 2)):
                follower = rig.follow(replica, start=False)
                (log,) = follower.logs.values()
                log.append(own_bytes(source, until))
                for _ in range(alone):
                    log.append(build_batch(2, base_offset=log.end, leader_epoch=5))
                log.high_watermark = min(log.end, 20)
                rig.start(follower)
            logs = {replica: next(iter(one.logs.values())) for replica, one in rig.followers.items()}
            fill(source, 10)  # as if somebody else wrote there already
            asked = len(source.requests)
            await eventually(lambda: logs[3].end == 20 and mirror.followers.keys() == {1, 2, 3})
            await asyncio.sleep(0.3)
            assert [log.end for log in logs.values()] == [20, 4, 20]
            assert [log.log_start for log in logs.values()] == [0, 0, 0]  # it may be given back
            assert [log.truncations for log in logs.values()] == [[], [], [20]]
            assert mirror.high_watermark == 20 and mirror.end_known
            assert mirror.read(20, 1000) is None  # a client waits
            assert not [r for r in list(source.requests)[asked:] if r.api in ("fetch", "list_offsets")]
            rig.manager.release([mirror.tp])
            await eventually(lambda: all(rig.copied(f) for f in rig.followers.values()), state=rig.state)
            for replica, log in logs.items():
                assert not log.failed and log.errors == [], (replica, log.failed, log.errors)
                assert log.data() == own_bytes(source)[len(own_bytes(source, 2)) :], replica
                assert log.truncations == ([20] if replica == 3 else [])


async def test_a_follower_before_the_mirrors_start_keeps_its_log_while_it_is_switched() -> None:
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        fill(source, 10)
        rig = Rig(source, replicas=(1,))
        async with rig.running():
            (mirror,) = rig.mirror("t", taken=HISTORY, held=True, start_offset=10)
            follower = rig.follow(1, start=False)
            (log,) = follower.logs.values()
            log.append(own_bytes(source, 6))
            rig.start(follower)
            await eventually(lambda: 1 in mirror.followers)
            await asyncio.sleep(0.3)
            assert (log.log_start, log.end, log.errors, log.failed) == (0, 6, [], None)
            assert mirror.failed is None
            rig.manager.release([mirror.tp])
            await eventually(lambda: rig.copied(follower), state=rig.state)
            assert log.log_start == 10 and log.failed is None


async def test_a_source_that_lost_what_was_taken_over_fails_the_mirror_and_no_log() -> None:
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        source.partition("t", 0).leader_epoch = 1
        fill(source, 12)
        rig = Rig(source, replicas=(1,))
        async with rig.running():
            (mirror,) = rig.mirror("t", taken=HISTORY)
            follower = rig.follow(1)
            await eventually(lambda: rig.copied(follower), state=rig.state)
            (log,) = follower.logs.values()
            mirror.truncate(20)
            assert mirror.failed is None
            mirror.truncate(18)
            assert mirror.failed is not None and "from offset 18 on, below 20" in mirror.failed
            await asyncio.sleep(0.2)
            assert log.end >= 20 and log.failed is None


async def test_a_source_with_other_batches_fails_the_mirror() -> None:
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        source.add("t", 0, records=21)
        rig = Rig(source, replicas=(1,))
        async with rig.running():
            (mirror,) = rig.mirror("t", taken=HISTORY)
            rig.follow(1)
            await eventually(lambda: mirror.failed is not None, state=rig.state)
            assert "a batch has offsets 0 to 20, and the partition was taken over at 20" in str(mirror.failed)


async def test_a_follower_hears_no_error_of_a_partition_that_is_about_to_be_ours() -> None:
    """It would pause for a second; and what else it follows goes on."""
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        source.add_topic("u", 1)
        rig = Rig(source, replicas=(1,))
        rig.server._answers._switching = lambda key, _index: key == rig.image.topics_by_name["u"].id
        async with rig.running():
            rig.mirror("t")
            u_id = rig.add_image("u", 1)
            follower = rig.follow(1)
            log_t = next(iter(follower.logs.values()))
            fill(source, 5)
            await eventually(lambda: log_t.end == 10)
            log_u = FollowerLog("u", u_id, 0, SESSION_EPOCH)
            follower.logs[log_u.key] = log_u
            await asyncio.sleep(0.3)
            fill(source, 5)
            await eventually(lambda: log_t.end == 20)  # in the same session
            follower.restart()  # a full fetch has to name all of them
            await asyncio.sleep(1.5)  # longer than the follower's own wait and than the usual patience
            assert log_u.errors == []
            source.add("u", 0, records=2)
            rig.mirror("u")
            await eventually(lambda: log_u.end == 2)
            assert log_u.errors == [] and log_u.failed is None
