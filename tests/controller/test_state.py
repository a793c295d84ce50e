"""Phases, paths, and that memory and store never differ: decisions against a store, every prefix of a history."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller import keys
from controller.decide import links
from controller.decide.mirrors import CopyNote, Leadership
from controller.errors import (
    AlreadyExists,
    CorruptState,
    IllegalTransition,
    InvalidName,
    NotFound,
    Refused,
)
from controller.group_phases import GROUP_TRANSITIONS, GroupPhase
from controller.image import ControllerImage
from controller.phases import (
    ENDED,
    PROMOTING,
    TRANSITIONS,
    Phase,
    check_transition,
)
from controller.state import (
    Attempt,
    JobStatus,
    Link,
    MirrorTopic,
    ProducerIdFloor,
)
from fleet.link_controller import LinkController
from fleet.stored_controller import StoredController
from fleet.stores.base import ControllerFenced, StoreError
from tests.controller.established import establish
from tests.controller.memory_store import MemoryStore
from tests.controller.test_encodings import IDENTITY
from wire.frames.types import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def mirror(link: str = "l", topic: str = "t", partitions: int = 2) -> MirrorTopic:
    return MirrorTopic(
        link=link, topic=topic, topic_id=bytes(range(16)), source_topic_id=None, partitions=partitions
    )


async def controller_with_mirror(store: MemoryStore | None = None) -> LinkController:
    controller = await StoredController.open(store or MemoryStore(), now=lambda: 7)
    await controller.create_link("l", "cluster", {"bootstrap.servers": "a:1"})
    await controller.create_mirror(mirror())
    for tp in (T0, T1):
        await establish(
            controller, "l", tp, leadership=Leadership(900, 3, (900,)), session_epoch=3, start_offset=0
        )
    return controller


def phases(controller: LinkController) -> list[Phase]:
    return [state.phase for state in controller.image.topic_partitions("l", "t")]


# Phases.


def test_the_table_is_whole_and_ends_where_it_should() -> None:
    assert set(TRANSITIONS) == set(Phase)
    assert {phase for phase, after in TRANSITIONS.items() if not after} == ENDED
    assert TRANSITIONS[Phase.HANDED_OVER] == {Phase.PROMOTED, Phase.FAILED_OVER}
    assert all(TRANSITIONS[p] <= PROMOTING | {Phase.ACTIVE} | ENDED for p in PROMOTING)


@pytest.mark.parametrize("current", Phase)
@pytest.mark.parametrize("wanted", Phase)
def test_illegal_steps_name_both_ends(current: Phase, wanted: Phase) -> None:
    if wanted in TRANSITIONS[current]:
        check_transition("p", current, wanted)
        return
    with pytest.raises(IllegalTransition, match=f"{current} and cannot become {wanted}"):
        check_transition("p", current, wanted)


# Names.


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "a b", "ä", "a\x00", "a\n", "x" * 250, "../x", "a%2f"]
)
def test_hostile_names(name: str) -> None:
    with pytest.raises(InvalidName):
        keys.mirror("l", name)
    with pytest.raises(InvalidName):
        keys.link(name)


@given(st.text(min_size=1, max_size=20))
def test_a_name_is_refused_or_comes_back(name: str) -> None:
    try:
        path = keys.partition_state("l", TopicPartition(name, 3))
    except InvalidName:
        return
    assert keys.split(path) == ("links", "l", "mirrors", name, "3", "state")


@given(st.text(min_size=1, max_size=300))
def test_any_group_id_becomes_one_segment_and_comes_back(name: str) -> None:
    try:
        path = keys.group("l", name)
    except InvalidName:
        assert len(name.encode("utf-8", "surrogatepass")) > keys.MAX_GROUP_BYTES
        return
    *above, segment = keys.split(path)
    assert above == ["links", "l", "groups"]
    assert keys.group_name(segment) == name


@pytest.mark.parametrize("name", ["hex.", "hex.61", ".", "..", "a/b", "orders"])
def test_group_ids_do_not_collide(name: str) -> None:
    others = ["hex.", "hex.61", "a", ".", "..", "a/b", "orders"]
    assert [keys.group("l", other) == keys.group("l", name) for other in others].count(True) == 1


def test_the_group_table_is_whole() -> None:
    assert set(GROUP_TRANSITIONS) == set(GroupPhase)
    assert GROUP_TRANSITIONS[GroupPhase.OPENING] == {GroupPhase.PROMOTED}


# Decisions.


async def test_a_mirror_from_link_to_failure_and_back() -> None:
    controller = await controller_with_mirror()
    assert phases(controller) == [Phase.ACTIVE] * 2
    await controller.pause("l", "t")
    assert phases(controller) == [Phase.PAUSED] * 2
    assert controller.image.mirrors["l", "t"].paused
    await controller.resume("l", "t")
    await controller.fail_partition("l", T0, "retention outran it")
    await controller.fail_partition("l", T0, "again")
    assert phases(controller) == [Phase.FAILED, Phase.ACTIVE]
    assert controller.image.partitions["l", T0].reason == "retention outran it"
    await controller.restart_partition("l", T0)
    state = controller.image.partitions["l", T0]
    assert (state.phase, state.session_epoch, state.reason) == (Phase.LINKING, -1, None)


async def test_refusals_change_nothing() -> None:
    controller = await controller_with_mirror()
    before = dict(controller.image.partitions)
    with pytest.raises(AlreadyExists):
        await controller.create_link("l", "c", {})
    with pytest.raises(AlreadyExists, match="of link 'l'"):
        await controller.create_mirror(mirror())
    await controller.create_link("m", "c", {})
    with pytest.raises(AlreadyExists, match="of link 'l'"):
        await controller.create_mirror(mirror(link="m"))
    with pytest.raises(NotFound, match="links: l, m"):
        await controller.delete_link("x")
    with pytest.raises(NotFound):
        await controller.pause("l", "u")
    with pytest.raises(Refused, match="still mirrors t"):
        await controller.delete_link("l")
    with pytest.raises(Refused, match="do not match"):
        await controller.create_mirror(mirror(topic="u"), [])
    with pytest.raises(IllegalTransition):
        await controller.advance("l", [T0], Phase.FENCED)
    assert controller.image.partitions == before


async def test_all_partitions_of_a_step_or_none() -> None:
    controller = await controller_with_mirror()
    await controller.advance("l", [T1], Phase.CATCHING_UP)
    with pytest.raises(IllegalTransition):
        await controller.advance("l", [T0, T1], Phase.FENCED)
    assert phases(controller) == [Phase.ACTIVE, Phase.CATCHING_UP]


async def test_validated_needs_to_know_what_may_be_sent() -> None:
    controller = await controller_with_mirror()
    for phase in (Phase.CATCHING_UP, Phase.FENCED):
        await controller.advance("l", [T0], phase)
    await controller.advance("l", [T0], Phase.ALIGNED, aligned_ends={T0: 4})
    with pytest.raises(Refused, match="hand-over that may be sent"):
        await controller.advance("l", [T0], Phase.VALIDATED)
    attempt = Attempt(leader_epoch=1, partition_epoch=2)
    with pytest.raises(Refused, match="VALIDATED only"):
        await controller.note_attempts("l", {T0: attempt})
    await controller.advance("l", [T0], Phase.VALIDATED, attempts={T0: attempt})
    await controller.advance("l", [T0], Phase.ACTIVE, reasons={T0: "why"})
    state = controller.image.partitions["l", T0]
    assert (state.aligned_end, state.attempt, state.reason) == (None, None, "why")


async def test_a_failure_during_a_promote_waits_for_its_end() -> None:
    controller = await controller_with_mirror()
    await controller.advance("l", [T0], Phase.CATCHING_UP)
    await controller.fail_partition("l", T0, "source topic re-created")
    assert phases(controller)[0] is Phase.CATCHING_UP
    await controller.advance("l", [T0], Phase.ACTIVE)
    state = controller.image.partitions["l", T0]
    assert (state.phase, state.reason, state.failure) == (Phase.FAILED, "source topic re-created", None)


async def test_promote_jobs() -> None:
    controller = await controller_with_mirror()
    with pytest.raises(NotFound):
        await controller.begin_promote("l", ["nope"])
    dry = await controller.begin_promote("l", dry_run=True)
    assert dry.partitions == (T0, T1)
    assert not controller.image.jobs
    job = await controller.begin_promote("l", ["t", "t"])
    assert job.topics == ("t",)
    with pytest.raises(Refused, match="running already"):
        await controller.begin_promote("l", ["t"])
    with pytest.raises(Refused, match="part of promote 1, which is running"):
        await controller.delete_mirror("l", "t")  # its turn has not come yet
    for change in (controller.pause, controller.resume):
        with pytest.raises(Refused, match="part of promote 1, which is running"):
            await change("l", "t")
    await controller.advance("l", [T0], Phase.CATCHING_UP)
    with pytest.raises(Refused, match="being promoted"):
        await controller.delete_mirror("l", "t")
    with pytest.raises(Refused, match="being promoted"):
        await controller.pause("l", "t")
    with pytest.raises(Refused, match="still holds t-0"):
        await controller.end_promote(job, JobStatus.DONE, None, {})
    await controller.advance("l", [T0], Phase.ACTIVE)
    await controller.end_promote(job, JobStatus.ABANDONED, "x", {})
    with pytest.raises(Refused, match="ABANDONED already"):
        await controller.end_promote(job, JobStatus.DONE, None, {})
    await controller.pause("l", "t")
    with pytest.raises(Refused, match="t-0 is PAUSED"):
        await controller.begin_promote("l")
    await controller.delete_mirror("l", "t")
    with pytest.raises(Refused, match="nothing to promote"):
        await controller.begin_promote("l")


async def test_source_epochs_ascend() -> None:
    controller = await controller_with_mirror()

    async def note(*epochs: tuple[int, int]) -> tuple[tuple[int, int], ...]:
        refused = await controller.note_copies("l", {T0: CopyNote(source_epochs=epochs)})
        if refused:
            raise refused[T0]
        return controller.image.partitions["l", T0].source_epochs

    for _ in range(2):
        assert await note((0, 0), (3, 10)) == ((0, 0), (3, 10))
    for wrong in (((0, 0), (3, 10), (4, 10)), ((0, 0), (0, 10))):
        with pytest.raises(Refused):
            await note(*wrong)
    assert controller.image.partitions["l", T0].source_epochs == ((0, 0), (3, 10))
    # A cluster that lost its metadata.
    assert await note((0, 0), (3, 10), (2, 20)) == ((0, 0), (3, 10), (2, 20))
    assert await note((0, 0)) == ((0, 0),)


async def test_a_note_that_is_refused_keeps_no_other_from_being_written() -> None:
    controller = await controller_with_mirror()
    gone = TopicPartition("nobody", 0)
    good, wrong = CopyNote(((1, 6),), ((0, 0),)), CopyNote(((1, 6),), ((7, 0), (5, 0)))
    refused = await controller.note_copies("l", {T0: wrong, gone: good, T1: good})
    assert {tp: type(error) for tp, error in refused.items()} == {T0: Refused, gone: NotFound}
    states = controller.image.partitions
    assert (states["l", T1].untruncated, states["l", T1].source_epochs) == good
    assert (states["l", T0].untruncated, states["l", T0].source_epochs) == ((), ())


async def test_old_news_about_leaders_is_ignored() -> None:
    controller = await controller_with_mirror()
    await controller.adopt_leadership("l", {T0: Leadership(-1, 4, (900,)), T1: Leadership(901, 2, (901,))})
    assert controller.image.partitions["l", T0].leader == -1
    assert controller.image.partitions["l", T1].leader == 900


async def test_deleting_leaves_nothing_behind() -> None:
    store = MemoryStore()
    controller = await controller_with_mirror(store)
    await controller.set_producer_id_floor(ProducerIdFloor(link="l", floor=1, source_seen=0, sampled_at=0))
    job = await controller.begin_promote("l")
    await controller.end_promote(job, JobStatus.ABANDONED, None, {})
    await controller.delete_mirror("l", "t")
    await controller.delete_link("l")
    assert set(await store.tree("/")) == {"/controller_epoch"}
    assert not controller.image.versions


async def test_listeners_hear_what_was_committed() -> None:
    controller = await controller_with_mirror()
    heard: list[object] = []
    controller.listeners.add(heard.extend)
    await controller.pause("l", "t")
    with pytest.raises(NotFound):
        await controller.pause("l", "u")
    assert len(heard) == 3


# Memory and store.


class Stumbling(MemoryStore):
    """Commits fail or hang, before or after they became durable."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.rng = rng
        self.steady = True

    async def commit(self, operations, *, controller_epoch):  # type: ignore[no-untyped-def]
        mood = 1.0 if self.steady else self.rng.random()
        if mood < 0.15:
            raise StoreError("before")
        await asyncio.sleep(0)
        await super().commit(operations, controller_epoch=controller_epoch)
        if mood < 0.3:
            raise StoreError("after")
        if mood < 0.45:
            await asyncio.sleep(3600)


@pytest.mark.parametrize("seed", range(30))
async def test_memory_follows_the_store_whatever_happens(seed: int) -> None:
    rng = random.Random(seed)
    store = Stumbling(rng)
    controller = await controller_with_mirror(store)
    store.steady = False
    steps = [
        lambda: controller.pause("l", "t"),
        lambda: controller.resume("l", "t"),
        lambda: controller.fail_partition("l", rng.choice([T0, T1]), "x"),
        lambda: controller.restart_partition("l", rng.choice([T0, T1])),
        lambda: controller.advance("l", [rng.choice([T0, T1])], rng.choice(list(Phase))),
        lambda: controller.save_identity(replace(IDENTITY, broker_epoch=rng.randint(0, 3))),
        lambda: controller.create_link(f"x{rng.randint(0, 3)}", "c", {}),
        lambda: controller.delete_link(f"x{rng.randint(0, 3)}"),
    ]
    for _ in range(60):
        task = asyncio.create_task(rng.choice(steps)())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if not task.done():
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await controller.refresh()
        loaded = ControllerImage.load(await store.tree("/"))
        loaded.stamp = controller.image.stamp  # how it was come by may differ
        assert vars(loaded) == vars(controller.image)
        assert controller.image.nodes() == {
            path: node for path, node in (await store.tree("/")).items() if path in loaded.versions
        }


async def test_a_fenced_controller_stays_fenced() -> None:
    """And tells nobody anything: whoever acts on what he is told would act on that for ever."""
    store = MemoryStore()
    old = await controller_with_mirror(store)
    new = await StoredController.open(store)
    told: list[object] = []
    old.listeners.add(told.append)
    for _ in range(2):
        with pytest.raises(ControllerFenced):
            await old.pause("l", "t")
    assert told == []
    await new.pause("l", "t")
    assert phases(new) == [Phase.PAUSED] * 2


async def test_decisions_wait_for_each_other() -> None:
    controller = await controller_with_mirror()
    results = await asyncio.gather(
        *(controller.create_link("same", "c", {}) for _ in range(5)), return_exceptions=True
    )
    assert sum(isinstance(result, AlreadyExists) for result in results) == 4


async def test_a_damaged_store_is_refused_with_its_path() -> None:
    store = MemoryStore()
    await controller_with_mirror(store)
    store.nodes["/links/l/mirrors/t/1/state"] = ('{"phase": "BORED"}', 3)
    with pytest.raises(CorruptState, match="/links/l/mirrors/t/1/state"):
        await StoredController.open(store)


def test_pure_decisions_leave_the_image_alone() -> None:
    image = ControllerImage()
    link = Link(name="l", source_cluster_id="c", properties={})
    records = links.create_link(image, link)
    assert records == [link]
    assert not image.links
    image.replay(records)
    assert image.links == {"l": link}


# Names at the source.


async def test_a_links_prefix_is_that_of_its_mirrors() -> None:
    controller = await StoredController.open(MemoryStore(), now=lambda: 7)
    await controller.create_link("l", "cluster", {"bootstrap.servers": "a:1"}, {"prefix": "east."})
    with pytest.raises(Refused, match="mirrors 't' by another name"):
        await controller.create_mirror(mirror())
    await controller.create_mirror(replace(mirror(topic="east.t"), source_name="t"))
    assert controller.image.mirrors["l", "east.t"].source_topic == "t"
    with pytest.raises(Refused, match="delete them first"):
        await controller.update_link("l", None, {"prefix": "west."})
    await controller.update_link("l", None, {"prefix": "east.", "forwarding": "off"})
    await controller.delete_mirror("l", "east.t")
    await controller.update_link("l", None, {"prefix": "west."})


async def test_without_a_prefix_both_names_are_one() -> None:
    controller = await controller_with_mirror()
    assert controller.image.mirrors["l", "t"].source_topic == "t"
    with pytest.raises(Refused, match="by another name"):
        await controller.create_mirror(replace(mirror(topic="u"), source_name="v"))
