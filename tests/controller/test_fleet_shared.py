"""The controller as a sidecar sees it: a copy that equals the head's image, whatever has happened."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from controller.decide.mirrors import CopyNote
from controller.decide.validations import watermark
from controller.groups import GateKind
from controller.mirror_group import GroupProtocol, MirrorGroup
from controller.phases import Phase
from controller.state import JobStatus, MirrorTopic, ProducerIdFloor, Record, RemoveGroup, SidecarIdentity
from fleet import messages as m
from fleet.shared_controller import MOST_UNANSWERED, NotTheController, SharedController
from fleet.stored_controller import StoredController
from fleet.stores.base import Candidate, Seat, StoreError
from tests.controller.fleet_kit import (
    LINK,
    TP,
    Caller,
    TroubledStore,
    head_with_mirror,
    now,
    running_head,
    welcome,
    with_mirror,
)
from tests.controller.validation_kit import an_advance
from tests.controller.virtual_loop import run_virtual
from wire.frames.types import TopicPartition


def identity(broker_id: int, session: str = "") -> SidecarIdentity:
    return SidecarIdentity(
        broker_id=broker_id, incarnation_id=bytes(16), log_dir_id=bytes(16), session=session
    )


async def any_change(controller: StoredController, rng: random.Random) -> None:
    """One change of whatever kind, refused or not."""
    image = controller.image
    topics = sorted(topic for _, topic in image.mirrors)
    match rng.randrange(12):
        case 0:
            name = f"x{rng.randrange(3)}"
            if name in image.links:
                await controller.delete_link(name)
            else:
                await controller.create_link(name, "c", {"n": str(rng.random())})
        case 1:
            topic = f"y{rng.randrange(3)}"
            if topic in topics:
                await controller.delete_mirror(LINK, topic)
            else:
                mirror = MirrorTopic(
                    link=LINK, topic=topic, topic_id=bytes(16), source_topic_id=None, partitions=2
                )
                await controller.create_mirror(mirror)
        case 2:
            await controller.save_identity(identity(rng.randrange(3), str(rng.random())))
        case 3:
            await controller.remove_sidecar(rng.randrange(3))
        case 4:
            await controller.set_producer_id_floor(
                ProducerIdFloor(link=LINK, floor=rng.randrange(9), source_seen=1, sampled_at=1)
            )
        case 5 if image.partitions[LINK, TP].phase is Phase.ACTIVE:
            await controller.begin_promote(LINK, ["t"])
            await controller.advance(LINK, [TP], Phase.CATCHING_UP)
        case 6 if image.running_jobs(LINK):
            job = image.running_jobs(LINK)[0]
            await controller.advance(LINK, [TP], Phase.ACTIVE, reasons={TP: "enough"})
            await controller.end_promote(job, JobStatus.ABANDONED, "enough", {})
        case 9:
            name = f"g/{rng.randrange(3)}"
            records: list[Record] = [
                MirrorGroup(
                    link=LINK,
                    group=name,
                    protocol=GroupProtocol.CLASSIC,
                    gate=GateKind.CLASSIC,
                    since=rng.randrange(9),
                )
            ]
            if (LINK, name) in image.groups and rng.random() < 0.5:
                records = [RemoveGroup(LINK, name)]
            await controller.decide(lambda _: (records, None))
        case 7:
            await controller.note_copies(LINK, {TP: CopyNote(untruncated=((1, rng.randrange(9)),))})
        case 8:
            state = image.partitions[LINK, TP]
            base = watermark(image, LINK, TP, 1)
            await controller.advance_validation(
                LINK, [an_advance(TP, state.session_epoch, base, (base or 0) + rng.randrange(9))]
            )
        case 10:
            await controller.forget_validation(LINK, [TP])
        case _:
            await controller.note_copies(LINK, {TP: CopyNote(source_epochs=((1, rng.randrange(9)),))})


@pytest.mark.parametrize("seed", range(12))
def test_a_copy_equals_the_heads_image_after_any_history(seed: int) -> None:
    async def main() -> None:
        rng = random.Random(seed)
        store = TroubledStore()
        controller = await with_mirror(store)
        copy = SharedController(lambda: 0)
        told: list[Sequence[Record]] = []
        copy.listeners.add(told.append)
        async with running_head(controller, store) as head:
            caller = Caller(head)
            copy.welcomed(await caller.join())
            seq = 0
            for _ in range(80):
                if rng.random() < 0.1:
                    store.failing = StoreError("who knows")
                try:
                    await any_change(controller, rng)
                except StoreError:
                    pass
                store.failing = None
                for message in await caller.heard():
                    assert isinstance(message, m.Delta)
                    seq += 1
                    assert message.seq == seq
                    copy.apply(message)
                if rng.random() < 0.3:  # what raised is read again
                    await controller.refresh()
                    for message in await caller.heard():
                        assert isinstance(message, m.Delta)
                        assert message.reset
                        seq += 1
                        copy.apply(message)
            await controller.refresh()
            for message in await caller.heard():
                copy.apply(message)  # type: ignore[arg-type]
            ours, theirs = copy.image, controller.image
            assert ours.nodes() == theirs.nodes()
            assert ours.versions == theirs.versions
            for table in (
                "links",
                "mirrors",
                "partitions",
                "validations",
                "floors",
                "jobs",
                "identities",
                "groups",
            ):
                assert getattr(ours, table) == getattr(theirs, table)
            assert copy.controller_epoch == controller.controller_epoch
            assert len(told) > 20

    run_virtual(main())


def test_roles() -> None:
    async def main() -> None:
        store = TroubledStore()
        controller = await with_mirror(store)
        shared = SharedController(lambda: 0)
        told: list[int] = []
        shared.listeners.add(lambda records: told.append(len(records)))
        assert not shared.loaded
        with pytest.raises(NotTheController, match="no sidecar is"):
            await shared.create_link("x", "c", {})
        shared.seat = Seat(holder=Candidate(broker_id=7, admin="h:1"), epoch=3)
        with pytest.raises(NotTheController, match=r"sidecar 7 .*h:1"):
            await shared.create_link("x", "c", {})
        shared.become_controller(controller)
        assert shared.loaded and shared.is_controller
        await shared.create_link("x", "c", {})
        assert told == [0, 1]
        assert "x" in shared.image.links
        # What a head of another time sends does not touch the head's own image.
        shared.welcomed(welcome(9))
        shared.apply(m.Delta(controller_epoch=9, seq=1, reset=True))
        assert "x" in shared.image.links
        shared.cease_controller()
        assert told == [0, 1, 0]
        assert "x" in shared.image.links and not shared.is_controller
        await controller.create_link("late", "c", {})
        assert told == [0, 1, 0]  # not ours any more
        shared.welcomed(welcome(10))
        assert not shared.image.links
        assert shared.controller_epoch == 10

    run_virtual(main())


def test_a_sidecar_asks_for_no_more_at_a_time_than_the_head_holds() -> None:
    async def main() -> None:
        shared = SharedController(lambda: 0)
        out: set[int] = set()
        most = answered = 0
        go_on = asyncio.Event()

        async def ask(question: m.Ask) -> None:
            nonlocal most, answered
            out.add(question.partition)
            most = max(most, len(out))
            await go_on.wait()
            out.discard(question.partition)
            answered += 1

        shared.ask = ask
        notes = {TopicPartition("t", number): CopyNote(source_epochs=((1, 2),)) for number in range(1200)}
        noting = asyncio.create_task(shared.note_copies(LINK, notes))
        await asyncio.sleep(1)
        go_on.set()
        assert await noting == {}
        assert (most, answered) == (MOST_UNANSWERED, 1200)

    run_virtual(main())


def test_what_a_sidecar_knows_the_reason_for_is_asked_of_the_head() -> None:
    async def main() -> None:
        shared = SharedController(lambda: 0)
        asked: list[m.Ask] = []

        async def ask(question: m.Ask) -> None:
            asked.append(question)

        with pytest.raises(NotTheController):
            await shared.fail_partition(LINK, TP, "why")
        shared.ask = ask
        await shared.fail_partition(LINK, TP, "why")
        await shared.note_copies(LINK, {TP: CopyNote(untruncated=((3, 4),), source_epochs=((1, 2),))})
        assert [q.what for q in asked] == ["fail_partition", "untruncated", "source_epochs"]
        assert [q.pairs for q in asked] == [[], [(3, 4)], [(1, 2)]]
        assert asked[0].reason == "why"

    run_virtual(main())


@pytest.mark.parametrize("leads", [True, False])
def test_the_head_writes_what_the_leader_asks_and_nobody_else(leads: bool) -> None:
    async def main() -> None:
        async with head_with_mirror() as head:
            caller = Caller(head, 900 if leads else 901)
            await caller.join()
            question = m.Ask(n=5, what="fail_partition", link=LINK, topic="t", partition=0, reason="gone")
            caller.say(question)
            answer = await caller.hear(m.Answer)
            assert answer.n == 5
            state = head.controller.image.partitions[LINK, TP]
            if leads:
                assert answer.error is None
                assert (state.phase, state.reason) == (Phase.FAILED, "gone")
            else:
                assert answer.error is not None
                assert answer.error[0] == "NotTheLeader"  # as far as is known here: it asks again
                assert state.phase is Phase.ACTIVE
            caller.say(question.model_copy(update={"topic": "none", "n": 6}))
            answer = await caller.hear(m.Answer)
            assert answer.n == 6
            assert answer.error is not None
            assert answer.error[0] == "NotFound"

    run_virtual(main())


def test_asks_are_written_in_their_order_and_a_flood_ends_the_channel() -> None:
    async def main() -> None:
        store = TroubledStore()
        controller = await with_mirror(store)
        async with running_head(controller, store) as head:
            caller = Caller(head)
            await caller.join()
            question = m.Ask(n=0, what="source_epochs", link=LINK, topic="t", partition=0)
            store.delay = 0.01
            for n in range(10):
                caller.say(question.model_copy(update={"n": n, "pairs": [(n, n)]}))
            answers = [await caller.hear(m.Answer) for _ in range(10)]
            assert [a.n for a in answers] == list(range(10))
            assert controller.image.partitions[LINK, TP].source_epochs == ((9, 9),)
            store.hanging = True
            head.members[900].asked = asyncio.Queue(3)
            for n in range(6):
                caller.say(replace_n(question, n))
            await caller.over()
            assert 900 not in head.members

    run_virtual(main())


def replace_n(question: m.Ask, n: int) -> m.Ask:
    return question.model_copy(update={"n": n, "pairs": [(n, n)]})


def test_times_are_those_of_the_loop() -> None:
    async def main() -> None:
        begun = now()
        await asyncio.sleep(60)
        assert now() == begun + 60
        assert replace(identity(1), session="x").session == "x"

    run_virtual(main())
