"""Which writes go in one piece, and that nobody can tell: each story is told twice, with and without."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from router.fence import FenceState
from router.ports import RouterLimits
from router.produce.fast_path import FastPath
from router.produce.session import ProduceSession
from tests.fakes.batches import build_batch
from tests.router.rig import E0, Producer, Rig, ScriptedLease, eventually, session_of
from wire.frames.types import AclRight, TopicPartition

TP0 = TopicPartition("orders", 0)
LIMITS = RouterLimits(settle_grace=0.3, min_timeout=0.3)
Story = Callable[[Rig, Producer], Awaitable[object]]


class Told:
    """What there is to be seen of a story from outside."""

    def __init__(self, rig: Rig, told: object) -> None:
        stats = rig.router.stats
        tps = [TopicPartition("orders", index) for index in range(rig.partitions)]
        self.seen = {
            "told": told,
            "log": [rig.values(index=tp.partition) for tp in tps],
            "requests": sorted((r.node, r.version, r.client_id) for r in rig.source.received("produce")),
            "forwarded": [rig.router.forwarded.get(tp) for tp in tps],
            "counted": (stats.produce_requests, stats.produce_answered),
            "of links": dict(stats.links),
            "held": rig.router.hub.budget.used,
            "not answered": sum(len(one.produce.answers.jobs) for one in sessions(rig)),
        }


class Ways:
    """How requests were admitted, counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fast_path = self.step_by_step = 0
        send, admit = FastPath.send, ProduceSession._admit

        def sent(one: FastPath, *arguments: Any) -> bool:
            done = send(one, *arguments)
            self.fast_path += done
            return done

        def admitted(one: ProduceSession, *arguments: Any) -> None:
            self.step_by_step += 1
            admit(one, *arguments)

        monkeypatch.setattr(FastPath, "send", sent)
        monkeypatch.setattr(ProduceSession, "_admit", admitted)


async def told(story: Story, limits: RouterLimits = LIMITS, **options: Any) -> dict[str, object]:
    """Of a producer whose way is known: it has written once."""
    options = {"lease": ScriptedLease(), **options}
    async with Rig(limits=limits, **options) as rig:
        producer = Producer(await rig.client(), rig, producer_id=5)
        assert (await producer.send(0))[0].error == 0
        return Told(rig, await asyncio.wait_for(story(rig, producer), 25)).seen


async def twice(story: Story, monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[object, Ways]:
    """What it told, which does not depend on the way."""
    with monkeypatch.context() as patch:
        ways = Ways(patch)
        seen = await told(story, **options)
    with monkeypatch.context() as patch:
        patch.setattr(FastPath, "send", lambda *_: False)
        assert seen == await told(story, **options)
    return seen["told"], ways


def sessions(rig: Rig) -> list[Any]:
    return [found for one in rig.listener.connections if (found := session_of(one)) is not None]


async def on_its_way(rig: Rig, producer: Producer) -> asyncio.Future[list[Any]]:
    """A second write, which the source has and has not answered."""
    rig.source.inject("produce", delay=0.1)
    pending = producer.send(0)
    await eventually(lambda: rig.source.counts["produce"] == 2)
    return pending


def codes(results: list[Any]) -> list[tuple[int, int]]:
    return [(one.error, one.base_offset) for one in results]


async def usual(rig: Rig, producer: Producer) -> object:
    one = await producer.send(0)
    many = await asyncio.gather(*[producer.send(0) for _ in range(7)])
    return codes([*one, *(result for (result,) in many)])


@pytest.mark.parametrize("high", [9, 11, 12, 13])
async def test_a_usual_write(high: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, ways = await twice(usual, monkeypatch, source_versions={"produce": (3, high)})
    assert seen == [(0, 1 + number) for number in range(8)]
    assert (ways.fast_path, ways.step_by_step) == (8, 1)


@pytest.mark.parametrize("version", [9, 11, 12, 13])
async def test_by_the_version_of_the_client(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(rig: Rig, producer: Producer) -> object:
        other = Producer(producer.connection, rig, version=version, producer_id=5)
        other.sequences = dict(producer.sequences)
        return [codes(await other.send(0)) for _ in range(3)]

    seen, ways = await twice(story, monkeypatch)
    assert seen == [[(0, 1)], [(0, 2)], [(0, 3)]]
    # By another name of the topic its way is learned anew, by the first.
    assert ways.fast_path == (3 if version == 13 else 2)


async def test_an_old_version_by_a_known_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its requests and answers look otherwise."""

    async def story(rig: Rig, producer: Producer) -> object:
        named = Producer(producer.connection, rig, version=9, producer_id=5)
        await named.send(0, sequence=1)
        batch = build_batch(1, producer_id=5, producer_epoch=0, base_sequence=2)
        partitions = [{"index": 0, "records": batch}]
        fields = {
            "transactional_id": None,
            "acks": -1,
            "timeout_ms": 1000,
            "topic_data": [{"name": "orders", "partition_data": partitions}],
        }
        answer = await producer.connection.call("produce", fields, version=8, timeout=5)
        one = answer.responses[0].partition_responses[0]
        return int(one.error_code), one.base_offset

    seen, ways = await twice(story, monkeypatch)
    assert (seen, ways.fast_path) == ((0, 2), 0)


async def not_forwarding(rig: Rig, producer: Producer) -> object:
    rig.directory.mirrors["orders"].partitions[0].forwarding = False
    return codes(await producer.send(0, timeout_ms=300))


async def refusing(rig: Rig, producer: Producer) -> object:
    partition = rig.directory.mirrors["orders"].partitions[0]
    partition.forwarding, partition.refusing = False, "the mirror has failed"
    return codes(await producer.send(0))


async def not_leading(rig: Rig, producer: Producer) -> object:
    rig.directory.mirrors["orders"].partitions[0].leading = False
    rig.elect("orders", 0, 2, E0 + 1)
    return codes(await producer.send(0))


async def no_mirror(rig: Rig, producer: Producer) -> object:
    del rig.directory.mirrors["orders"]
    return codes(await producer.send(0))


async def another_mirror(rig: Rig, producer: Producer) -> object:
    """Of the same name: whatever was learned of the one before is void."""
    mirrors = rig.directory.mirrors
    mirrors["orders"] = replace(mirrors["orders"], source_topic_id=bytes(16))
    return codes(await producer.send(0, timeout_ms=300))


async def another_link(rig: Rig, producer: Producer) -> object:
    """Of the same topic, with another source, perhaps."""
    mirrors = rig.directory.mirrors
    mirrors["orders"] = replace(mirrors["orders"], link="west")
    return codes(await producer.send(0))


async def no_lease(rig: Rig, producer: Producer) -> object:
    rig.lease.lapse()  # type: ignore[attr-defined]
    return codes(await producer.send(0, timeout_ms=300))


async def fenced(rig: Rig, producer: Producer) -> object:
    await rig.router.fence([TP0], timeout=25)
    held = producer.send(0)
    await asyncio.sleep(0.05)
    assert not held.done()
    rig.router.unfence([TP0])
    return codes(await held)


async def handed_over(rig: Rig, producer: Producer) -> object:
    await rig.router.fence([TP0], timeout=25)
    rig.router.handed_over([TP0])
    return codes(await producer.send(0))


async def transactional(rig: Rig, producer: Producer) -> object:
    return codes(await producer.send(0, transactional=True))


async def garbled(rig: Rig, producer: Producer) -> object:
    old = bytearray(build_batch(1))
    old[16] = 1
    return [codes(await producer.send(0, records=one)) for one in (b"x", b"x" * 70, bytes(old))]


async def acks_0(rig: Rig, producer: Producer) -> object:
    producer.send(0, acks=0)
    await eventually(lambda: rig.router.stats.produce_answered == 2)
    return len(rig.values())


async def another_client_id(rig: Rig, producer: Producer) -> object:
    producer.client_id = "other"
    return [codes(await producer.send(0)) for _ in range(2)]


async def one_went_back(rig: Rig, producer: Producer) -> object:
    rig.lease.lapse()  # type: ignore[attr-defined]
    first = codes(await producer.send(0, timeout_ms=300))
    rig.lease.renew()  # type: ignore[attr-defined]
    behind = codes(await producer.send(0))  # it would overtake the one that comes again
    again = codes(await producer.send(0, sequence=1))
    return first, behind, again


async def waits_behind(rig: Rig, producer: Producer) -> object:
    rig.source.inject("produce", error=6, times=1)
    return codes([result for one in [producer.send(0) for _ in range(3)] for result in await one])


async def two_partitions(rig: Rig, producer: Producer) -> object:
    return codes(await producer.send(0, 1))


UNUSUAL: dict[Story, tuple[object, int]] = {
    not_forwarding: ([(6, -1)], 0),
    refusing: ([(19, -1)], 0),
    not_leading: ([(6, -1)], 0),
    no_mirror: ([(6, -1)], 0),
    another_mirror: ([(6, -1)], 0),
    another_link: ([(0, 1)], 0),
    no_lease: ([(6, -1)], 0),
    fenced: ([(0, 1)], 0),
    handed_over: ([(6, -1)], 0),
    transactional: ([(19, -1)], 0),
    garbled: ([[(87, -1)]] * 3, 0),
    acks_0: (2, 0),
    another_client_id: ([[(0, 1)], [(0, 2)]], 1),  # known by then
    one_went_back: (([(6, -1)], [(6, -1)], [(0, 1)]), 1),
    two_partitions: ([(0, 1), (0, 0)], 0),
}


@pytest.mark.parametrize("story", UNUSUAL, ids=lambda story: story.__name__)
async def test_an_unusual_write(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, ways = await twice(story, monkeypatch)
    assert (seen, ways.fast_path) == UNUSUAL[story]


async def test_the_leader_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(rig: Rig, producer: Producer) -> object:
        other = next(node for node in rig.source.brokers if node != rig.source.partition("orders", 0).leader)
        rig.source.move_leader("orders", 0, other)
        await rig.cluster.refresh(["orders"])
        return [codes(await producer.send(0)) for _ in range(2)]

    seen, ways = await twice(story, monkeypatch)
    assert seen == [[(0, 1)], [(0, 2)]]
    assert ways.fast_path == 1  # the second: the way to the new leader is known


async def test_a_refused_one_is_sent_again_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, ways = await twice(waits_behind, monkeypatch)
    assert seen == [(0, 1), (0, 2), (0, 3)]
    assert ways.fast_path >= 1


async def test_the_connection_is_cut_behind_the_write(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(rig: Rig, producer: Producer) -> object:
        rig.source.inject("produce", close_after=0)
        return codes(await producer.send(0))

    seen, ways = await twice(story, monkeypatch)
    assert ways.fast_path == 1
    assert seen == [(0, 1)] or seen == [(0, -1)]


async def test_the_answer_comes_when_the_lease_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(rig: Rig, producer: Producer) -> object:
        pending = await on_its_way(rig, producer)
        rig.lease.lapse()  # type: ignore[attr-defined]
        await eventually(lambda: len(rig.router.hub.gate) == 1)
        rig.lease.renew()  # type: ignore[attr-defined]
        rig.router.lease_renewed()
        return codes(await pending)

    seen, ways = await twice(story, monkeypatch)
    assert (seen, ways.fast_path) == ([(0, 1)], 1)


async def test_the_answer_comes_when_the_source_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(rig: Rig, producer: Producer) -> object:
        pending = await on_its_way(rig, producer)
        rig.router.cut([TP0])
        told = codes(await pending)
        await eventually(lambda: not rig.router.hub.fences.pending([TP0]))
        return told

    seen, ways = await twice(story, monkeypatch)
    assert (seen, ways.fast_path) == ([(7, -1)], 1)


async def test_the_answer_comes_when_somebody_else_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a fence before it. What is in whose log nobody here can say."""

    async def story(rig: Rig, producer: Producer) -> object:
        pending = await on_its_way(rig, producer)
        rig.router.hub.fences._state[TP0] = FenceState.HANDED_OVER
        return codes(await pending)

    seen, ways = await twice(story, monkeypatch)
    assert (seen, ways.fast_path) == ([(7, -1)], 1)


async def test_the_new_leader_is_written_to_while_clients_do_not_know_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Even before the link's own state says that it leads no more; and nothing is learned of those ways."""

    async def story(rig: Rig, producer: Producer) -> object:
        rig.router.expect_hand_over([TP0])
        await rig.router.fence([TP0], timeout=25)
        rig.hand_over("orders", 0, 1)
        rig.router.carry([TP0])
        rig.directory.mirrors["orders"].partitions[0].leading = True
        results = [codes(await producer.send(0)) for _ in range(2)]
        (session,) = sessions(rig)
        assert all(one.route.link == "east" for one in session.produce._fast_path._usual.values())
        return results, rig.source.counts["produce"], rig.router.stats.links["east"].carried

    seen, ways = await twice(story, monkeypatch)
    assert (seen, ways.fast_path) == (([[(0, 1)], [(0, 2)]], 1, 2), 0)


async def test_the_right_to_write_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(rig: Rig, producer: Producer) -> object:
        real = rig.target.handlers["metadata"]

        async def denied(broker, request):  # type: ignore[no-untyped-def]
            answer = dict(await real(broker, request))
            topics = [{**topic, "topic_authorized_operations": 1 << 3} for topic in answer["topics"]]
            return {**answer, "topics": topics}

        rig.target.handlers["metadata"] = denied
        await asyncio.sleep(0.06)
        asks = codes(await producer.send(0))
        (session,) = sessions(rig)
        await eventually(lambda: session.authorizer.allowed("orders", AclRight.WRITE) is False)
        return asks, codes(await producer.send(0))

    limits = RouterLimits(settle_grace=0.3, authorization_ttl=0.05)
    seen, ways = await twice(story, monkeypatch, limits=limits)
    assert (seen, ways.fast_path) == (([(0, 1)], [(29, -1)]), 1)


async def test_another_producer_waits_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the same connection; the source may not know it, so what is in flight is answered first."""

    async def story(rig: Rig, producer: Producer) -> object:
        other = Producer(producer.connection, rig, producer_id=6)
        rig.source.inject("produce", delay=0.05)
        return [codes(await one) for one in (producer.send(0), other.send(0))]

    seen, ways = await twice(story, monkeypatch)
    assert (seen, ways.fast_path) == ([[(0, 1)], [(0, 2)]], 1)


async def test_whoever_waits_for_the_answers_hears_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(rig: Rig, producer: Producer) -> object:
        pending = await on_its_way(rig, producer)
        began = asyncio.get_running_loop().time()
        await rig.router.answered([TP0], timeout=40)
        assert asyncio.get_running_loop().time() - began < 20
        return codes(await pending)

    seen, ways = await twice(story, monkeypatch)
    assert (seen, ways.fast_path) == ([(0, 1)], 1)


async def test_nobody_is_there_to_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(rig: Rig, producer: Producer) -> object:
        await on_its_way(rig, producer)
        producer.connection.close()
        await eventually(lambda: rig.router.hub.budget.used == 0)
        return rig.router.hub.fences.lanes(TP0)

    seen, ways = await twice(story, monkeypatch)
    assert (not seen, ways.fast_path) == (True, 1)
    assert (ways.fast_path, ways.step_by_step) == (1, 1)


async def test_long_client_ids_are_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients choose them, up to 32 KiB each."""

    async def story(rig: Rig, producer: Producer) -> object:
        producer.client_id = "c" * 257
        return [codes(await producer.send(0)) for _ in range(3)]

    seen, ways = await twice(story, monkeypatch)
    assert (seen, ways.fast_path) == ([[(0, 1)], [(0, 2)], [(0, 3)]], 0)
