"""The gate of streams groups: a member with the application's own topology, which keeps every task until the promote."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from controller.codec import decode_gate, encode_gate
from controller.group_phases import GroupPhase
from controller.groups import GateKind
from groups import topology_reader
from groups.gates.topology import from_record, parsed
from groups.topology_reader import OFFSETS_TOPIC, java_hash
from linker.service import group_status
from tests.fakes.groups.streams import FakeStreams, StreamsGroup, record, topology, write_topology
from tests.links.group_rig import LINK, Rig
from tests.links.test_groups import begin_demote, begin_promote
from wire.errors import LinkerError, MalformedFrame

TASKS = {("0", 0), ("0", 1)}


class Scene:
    """One application with two tasks at the source; nobody on the target yet."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.source, self.target = FakeStreams(rig.at_source), FakeStreams(rig.at_target)
        self.topology = topology(["orders"], ["log"])
        self.begin(self.topology)

    def begin(self, brought: object) -> None:
        """The group is made at the source, or made again."""
        self.source.groups.pop("g", None)
        assert self.source.join("g", "app", brought) == 0
        write_topology(self.rig.source, "g", brought)
        self.rig.commit("g", 40)

    async def held(self) -> StreamsGroup:
        self.rig.run()
        await self.rig.phase("g", GroupPhase.GATED)
        return self.there

    @property
    def there(self) -> StreamsGroup:
        return self.target.joinable("g")

    def early(self, brought: object = None) -> None:
        """The application is started on the target."""
        assert self.target.join("g", "early", brought or self.topology) == 0

    def tasks(self, times: int = 3) -> set[tuple[str, int]]:
        """Those of the member on the target, after some heartbeats."""
        for _ in range(times):
            found = self.target.beat("g", "early")
        return found

    async def renew(self) -> None:
        """The gate's next heartbeat is due."""
        await self.rig.until("it has a gate", self.closed)
        self.rig.run_of("g").gate.hold._due = 0.0  # type: ignore[union-attr]

    def closed(self) -> bool:
        """Whether this process has the gate."""
        run = self.rig.manager.runs.get("g")
        return run is not None and run.gate is not None

    def committed(self) -> int | None:
        """On the target, of the first partition."""
        found = self.rig.committed("g").get(0)
        return None if found is None else found.offset

    async def again(self) -> None:
        self.rig.run_of("g").retry_at = 0
        await self.rig.manager.look()


@asynccontextmanager
async def scene(*, mirrored: bool = True) -> AsyncIterator[Scene]:
    async with Rig() as rig:
        for cluster in (rig.source, rig.target):
            cluster.add_topic("log", partitions=2)
            for partition in range(2):
                for _ in range(100):  # as far as the rig's copies are
                    cluster.add("log", partition)
        if mirrored:
            await rig.mirror("log", 2)
        yield Scene(rig)


async def test_a_member_on_the_target_gets_no_task_until_the_promote() -> None:
    async with scene() as one:
        group = await one.held()
        assert group.brought == one.topology
        one.early()
        assert one.tasks() == set()
        shown = group_status.group_summary(one.rig.group("g"), one.rig.manager)
        assert (shown.state, shown.gate, shown.protocol) == ("GATED", "streams", "streams")
        one.rig.commit("g", 60)
        await one.rig.until("synced", lambda: one.committed() == 60)
        await begin_promote(one.rig, "g")
        await one.rig.until("says who", lambda: "app at 127.0.0.1" in (one.rig.run_of("g").waiting_for or ""))
        one.rig.commit("g", 61)
        assert one.tasks() == set()
        one.source.joinable("g").tasks.leave("app")
        await one.rig.phase("g", GroupPhase.PROMOTED)
        assert one.committed() == 61
        assert one.tasks() == TASKS


async def test_it_is_held_once_all_its_topics_are_mirrored() -> None:
    async with scene(mirrored=False) as one:
        one.rig.run()
        refused = await one.rig.phase("g", GroupPhase.REFUSED)
        assert "does not mirror log" in (refused.reason or "")
        assert not one.there.tasks.members
        await one.rig.until("its offsets follow", lambda: one.committed() == 40)
        await one.rig.mirror("log", 2)
        await one.again()
        await one.again()
        await one.rig.phase("g", GroupPhase.GATED)
        assert one.there.tasks.members


async def test_it_is_let_go_when_a_mirror_of_its_state_is_removed() -> None:
    async with scene() as one:
        await one.held()
        await one.rig.controller.delete_mirror(LINK, "log", force=True)
        await one.rig.manager.look()
        refused = await one.rig.phase("g", GroupPhase.REFUSED)
        assert "does not mirror log" in (refused.reason or "") and not one.there.tasks.members


async def test_the_gate_leaves_before_a_coordinator_would_create_a_missing_topic() -> None:
    async with scene() as one:
        group = await one.held()
        one.rig.target.delete_topic("log")
        before = len(one.rig.target.received("streams_group_heartbeat"))
        await one.renew()
        await one.rig.until("it has left", lambda: not group.tasks.members)
        later = one.rig.target.received("streams_group_heartbeat")[before:]
        assert {one.entity.member_epoch for one in later} == {-1}
        failed = await one.rig.phase("g", GroupPhase.FAILED)
        assert "log of its topology is not on the target" in (failed.reason or "")


async def test_without_the_right_to_read_the_topology_it_is_refused_and_promoted_as_before() -> None:
    async with scene() as one:
        one.rig.source.inject(
            "list_offsets",
            error=29,
            times=None,
            match=lambda entity: any(topic.name == OFFSETS_TOPIC for topic in entity.topics),
        )
        one.rig.run()
        refused = await one.rig.phase("g", GroupPhase.REFUSED)
        assert f"lacks the right READ on Topic {OFFSETS_TOPIC}" in (refused.reason or "")
        await one.again()
        assert one.rig.group("g").phase is GroupPhase.REFUSED
        await begin_promote(one.rig, "g")
        await one.rig.phase("g", GroupPhase.DRAINING)
        one.source.joinable("g").tasks.leave("app")
        await one.rig.phase("g", GroupPhase.PROMOTED)
        assert one.committed() == 40 and not one.there.tasks.members


async def test_a_group_with_another_topology_on_the_target_is_refused_with_the_way_out() -> None:
    async with scene() as one:
        other = topology(["orders"])
        assert one.target.join("g", "old", other) == 0
        one.there.tasks.leave("old")
        one.rig.run()
        refused = await one.rig.phase("g", GroupPhase.REFUSED)
        assert "kafka-streams-groups.sh --delete" in (refused.reason or "")
        assert one.there.brought == other


async def test_a_topology_that_changes_at_the_source_is_taken_over() -> None:
    async with scene() as one:
        await one.held()
        newer = topology(["orders"], ["log"], epoch=1)
        one.begin(newer)
        await one.rig.manager.look()
        await one.rig.until("held with it", lambda: one.there.brought == newer)
        await one.rig.phase("g", GroupPhase.GATED)
        await one.rig.until("synced", lambda: one.committed() == 40)
        one.early(newer)
        assert one.tasks() == set()


async def test_while_members_wait_the_gate_keeps_the_topology_that_they_have_and_says_so() -> None:
    async with scene() as one:
        await one.held()
        one.early()
        one.begin(topology(["orders"], ["log"], epoch=1))
        await one.rig.manager.look()
        await one.rig.until("said", lambda: one.rig.run_of("g").gate_trouble is not None)
        assert "its topology or its mirrors have changed" in (one.rig.run_of("g").gate_trouble or "")
        assert one.there.brought == one.topology and one.tasks() == set()


async def test_the_next_process_takes_the_gate_over_without_the_source() -> None:
    async with scene() as one:
        group = await one.held()
        (gate,) = group.tasks.members
        one.early()
        await one.rig.end()
        await one.rig.claim()
        for node in one.rig.source.brokers.values():
            await node.stop()
        one.rig.run()
        await one.rig.until("taken over", one.closed)
        assert gate in group.tasks.members and one.tasks() == set()
        await begin_promote(one.rig, "g", force=True)
        await one.rig.phase("g", GroupPhase.PROMOTED, timeout=60)
        assert gate not in group.tasks.members and one.tasks() == TASKS


async def test_an_expired_gate_joins_again_and_one_with_members_behind_it_has_failed() -> None:
    async with scene() as one:
        group = await one.held()
        (gate,) = group.tasks.members
        group.tasks.leave(gate)
        await one.renew()
        await one.rig.until("joined again", lambda: bool(group.tasks.members.keys() - {gate}))
        await one.rig.until("closed", one.closed)
        one.early()
        (gate,) = group.tasks.members.keys() - {"early"}
        group.tasks.leave(gate)
        await one.renew()
        failed = await one.rig.phase("g", GroupPhase.FAILED)
        assert "early at 127.0.0.1" in (failed.reason or "")


async def test_the_promote_waits_for_the_copy_of_its_state() -> None:
    async with scene() as one:
        await one.held()
        one.early()
        one.rig.source.add("log", 1)
        await begin_promote(one.rig, "g")
        one.source.joinable("g").tasks.leave("app")
        await one.rig.until(
            "waits", lambda: "copy of its state: log-1 by 1" in (one.rig.run_of("g").trouble or "")
        )
        assert one.rig.group("g").phase is GroupPhase.FINAL_SYNC and one.tasks() == set()
        for tp, copy in one.rig.copies.items():
            copy.high_watermark += tp.topic == "log" and tp.partition == 1
        await one.rig.phase("g", GroupPhase.PROMOTED)


async def test_a_demote_holds_it_again_and_returns_its_offsets() -> None:
    async with scene() as one:
        await one.held()
        one.source.joinable("g").tasks.leave("app")
        await begin_promote(one.rig, "g")
        await one.rig.phase("g", GroupPhase.PROMOTED)
        one.rig.at_target.offsets.commit("g", ("orders", 0), 70, "")
        await begin_demote(one.rig, "g")
        await one.rig.phase("g", GroupPhase.GATED)
        assert one.rig.at_source.offsets.committed["g"]["orders", 0].offset == 70
        one.early()
        assert one.tasks() == set()


async def test_a_link_that_is_deleted_leaves_no_member_behind() -> None:
    async with scene() as one:
        group = await one.held()
        one.early()
        await one.rig.manager.release_all()
        assert group.tasks.members.keys() == {"early"} and one.tasks() == TASKS


# --- topologies ---------------------------------------------------------------------------------------------------------


async def test_the_newest_record_of_the_group_counts_compressed_or_not() -> None:
    async with Rig() as rig:
        first, second = topology(["orders"]), topology(["orders"], ["log"], ["again"])
        write_topology(rig.source, "g", first)
        write_topology(rig.source, "another", first)
        found = await topology_reader.read(rig.tools.source, "g", timeout=5)
        assert found.entity == first and found.topics == {"orders"}
        write_topology(rig.source, "g", second, gzipped=True)
        found = await topology_reader.read(rig.tools.source, "g", timeout=5)
        assert found.entity == second
        assert (found.internal, found.sources) == ({"log", "again"}, {"orders", "again"})
        write_topology(rig.source, "g", None)
        with pytest.raises(LinkerError, match="has no topology of it"):
            await topology_reader.read(rig.tools.source, "g", timeout=5)


def test_a_topology_is_kept_in_the_record_of_a_gate_as_it_was_read() -> None:
    from groups.gates.factory import plan_gate

    found = from_record(record(topology(["a"], ["b"], ["c"], epoch=3)))
    gate = plan_gate("l", "g", GateKind.STREAMS, topology=found.text)
    read = decode_gate("g", encode_gate(gate))
    assert read == gate and read.consumer is not None and parsed(read.consumer.topology or "") == found


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\0\1x",
        b"\0\0\xff\xff\xff\xff",
        record(topology(["a"])) + b"x",
        record(topology(["a" * 300_000])),
    ],
    ids=["empty", "version", "cut", "more", "large"],
)
def test_a_record_that_is_no_topology_is_told(value: bytes) -> None:
    with pytest.raises(MalformedFrame):
        from_record(value)
    with pytest.raises(MalformedFrame):
        parsed("no base64!")


def test_the_partition_of_a_group_is_javas() -> None:
    """As `Utils.abs("...".hashCode())` says."""
    assert java_hash("") == 0
    assert java_hash("orders") == 1008770331
    assert java_hash("polygenelubricants") == 0  # Integer.MIN_VALUE has no positive
    assert java_hash("\U0001f600") == 1772899
