"""Requests of several batches that go in one piece, and that nobody can tell: each story is told twice, with and without."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from router.fence import FenceState
from tests.fakes.batches import build_batch
from tests.router.rig import E0, Producer, Rig, eventually
from tests.router.test_fast_path import codes, sessions, twice
from wire.errors import LinkerError
from wire.frames.produce import ProduceResponse, encode_produce_request, parse_produce_response
from wire.frames.types import TopicPartition

ALL = (0, 1, 2, 3)
Story = Callable[[Rig, Producer], Awaitable[object]]


async def of_known_ways(
    story: Story, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> tuple[Any, tuple[int, int]]:
    """Told once the producer has written to all four partitions; requests that went in one piece, and step by step."""

    async def known(rig: Rig, producer: Producer) -> object:
        assert [one.error for one in await producer.send(*ALL)] == [0] * 4
        return await story(rig, producer)

    seen, counts = await twice(known, monkeypatch, **{"partitions": 4, **options})
    # The first write and the first one to all of them are nobody's usual ones.
    return seen, (counts.fast_path, counts.step_by_step - 2)


def nodes_of(rig: Rig) -> set[int]:
    return {rig.source.partition("orders", index).leader for index in ALL}


async def under_way(rig: Rig, producer: Producer, *partitions: int) -> asyncio.Future[list[Any]]:
    """A write that the source has and has not answered."""
    before = rig.source.counts["produce"]
    rig.source.inject("produce", delay=0.1, times=len(nodes_of(rig)))
    pending = producer.send(*(partitions or ALL))
    nodes = {rig.source.partition("orders", index).leader for index in partitions or ALL}
    await eventually(lambda: rig.source.counts["produce"] == before + len(nodes))
    return pending


@pytest.mark.parametrize("source_nodes", [1, 2, 3])
@pytest.mark.parametrize("high", [9, 12, 13])
async def test_a_usual_write(source_nodes: int, high: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever leads at the source: the client sees one answer."""

    async def story(rig: Rig, producer: Producer) -> object:
        assert len(nodes_of(rig)) == source_nodes
        many = await asyncio.gather(*[producer.send(*ALL) for _ in range(5)])
        return [codes(one) for one in many], codes(await producer.send(2, 1))

    options = {"source_nodes": source_nodes, "source_versions": {"produce": (3, high)}}
    seen, ways = await of_known_ways(story, monkeypatch, **options)
    expected = [[(0, 2 + n), *[(0, 1 + n)] * 3] for n in range(5)]  # one more was written to the first
    assert seen == (expected, [(0, 6), (0, 6)])
    assert ways == (6, 0)


@pytest.mark.parametrize("version", [9, 11, 12, 13])
async def test_by_the_version_of_the_client(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(rig: Rig, producer: Producer) -> object:
        other = Producer(producer.connection, rig, version=version, producer_id=5)
        other.sequences = dict(producer.sequences)
        return [codes(await other.send(0, 3)) for _ in range(3)]

    seen, (fast_path, _) = await of_known_ways(story, monkeypatch)
    assert seen == [[(0, 2 + n), (0, 1 + n)] for n in range(3)]
    assert fast_path == (3 if version == 13 else 2)  # by another name the way is learned anew


async def test_without_a_producer_id(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(rig: Rig, producer: Producer) -> object:
        plain = Producer(producer.connection, rig)
        return [codes(one) for one in await asyncio.gather(*[plain.send(*ALL) for _ in range(3)])]

    seen, ways = await of_known_ways(story, monkeypatch)
    assert seen == [[(0, 2 + n), *[(0, 1 + n)] * 3] for n in range(3)]
    assert ways == (3, 0)


async def ask(
    producer: Producer, sequences: dict[tuple[str, int], int], version: int = 12
) -> ProduceResponse:
    """Of several topics (-1: without partitions); the whole answer."""
    connection, topics = producer.connection, {}
    for (topic, index), sequence in sequences.items():
        if index < 0:
            topics[topic] = []
            continue
        batch = build_batch(1, producer_id=5, producer_epoch=0, base_sequence=sequence)
        topics.setdefault(topic, []).append((index, memoryview(batch)))
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    correlation_id = connection.next_correlation_id()
    buffers = encode_produce_request(version, correlation_id, "app", None, -1, 3000, list(topics.items()))
    connection.channel.send(correlation_id, buffers, done.set_result)
    return parse_produce_response(await done, version)


def told_of(response: ProduceResponse) -> list[tuple[int, int]]:
    return codes([one for _, results in response.topics for one in results])


async def test_of_two_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(rig: Rig, producer: Producer) -> object:
        rig.mirror("bills", 2)
        await rig.cluster.refresh(["bills"])
        told = []
        for number in range(4):
            if number == 3:
                partition = rig.directory.mirrors["bills"].partitions[1]
                partition.forwarding, partition.refusing = False, "the mirror has failed"
            parts = {
                ("bills", 0): number,
                ("bills", 1): number,
                ("orders", 1): 1 + number,
                ("orders", 2): 1 + number,
            }
            told.append(told_of(await ask(producer, parts)))
        return told

    seen, ways = await of_known_ways(story, monkeypatch)
    assert seen == [
        [(0, 0), (0, 0), (0, 1), (0, 1)],
        [(0, 1), (0, 1), (0, 2), (0, 2)],
        [(0, 2), (0, 2), (0, 3), (0, 3)],
        [(0, 3), (19, -1), (0, 4), (0, 4)],
    ]
    assert ways == (2, 2)


async def test_of_a_topic_whose_id_at_the_source_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked for by name, the other one by its id: never both in one request."""

    async def story(rig: Rig, producer: Producer) -> object:
        rig.mirror("bills", 1).source_topic_id = None
        await rig.cluster.refresh(["bills"])
        alone = [told_of(await ask(producer, {one: 0 if one[0] == "bills" else 1})) for one in BOTH]
        return alone, [told_of(await ask(producer, {BOTH[0]: n, BOTH[1]: 1 + n})) for n in (1, 2)]

    seen, ways = await of_known_ways(story, monkeypatch, source_nodes=1)
    assert seen == ([[(0, 0)], [(0, 1)]], [[(0, 1), (0, 2)], [(0, 2), (0, 3)]])
    assert ways == (0, 4)  # nor is anything learned of it: alone, the second one is asked for by its id


async def test_a_topic_without_partitions_is_answered_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(rig: Rig, producer: Producer) -> object:
        rig.mirror("bills", 1)
        told = []
        for sequence in (1, 2):
            response = await ask(producer, {("bills", -1): 0, ("orders", 1): sequence})
            told.append([(key, codes(results)) for key, results in response.topics])
        return told

    seen, ways = await of_known_ways(story, monkeypatch)
    assert seen == [[("bills", []), ("orders", [(0, n)])] for n in (1, 2)]
    assert ways == (1, 1)


async def test_a_link_without_a_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """It could not be started here: whoever asks for its source gets an error, and clients are told to come again."""

    async def story(rig: Rig, producer: Producer) -> object:
        ports, real = rig.router.ports, rig.router.ports.source

        def source(link: str) -> Any:
            raise LinkerError(f"there is no link {link}")

        partitions = rig.directory.mirrors["orders"].partitions
        for one in partitions.values():
            one.forwarding = False
        ports.source = source
        told = codes(await producer.send(*ALL, timeout_ms=300))
        ports.source = real
        return told

    seen, ways = await of_known_ways(story, monkeypatch)
    assert (seen, ways) == ([(6, -1)] * 4, (0, 1))


BOTH = (("bills", 0), ("orders", 1))


async def one_not_forwarding(rig: Rig, producer: Producer) -> object:
    rig.directory.mirrors["orders"].partitions[2].forwarding = False
    return codes(await producer.send(*ALL, timeout_ms=300))


async def one_handed_over(rig: Rig, producer: Producer) -> object:
    tps = [TopicPartition("orders", 1)]
    await rig.router.fence(tps, timeout=25)
    rig.router.handed_over(tps)
    return codes(await producer.send(*ALL))


async def one_fenced(rig: Rig, producer: Producer) -> object:
    tps = [TopicPartition("orders", 3)]
    await rig.router.fence(tps, timeout=25)
    held = producer.send(*ALL)
    await asyncio.sleep(0.05)
    assert not held.done()
    rig.router.unfence(tps)
    return codes(await held)


async def no_lease(rig: Rig, producer: Producer) -> object:
    rig.lease.lapse()  # type: ignore[attr-defined]
    return codes(await producer.send(*ALL, timeout_ms=300))


async def one_transactional(rig: Rig, producer: Producer) -> object:
    return codes(await producer.send(*ALL, transactional=True))


async def all_garbled(rig: Rig, producer: Producer) -> object:
    return codes(await producer.send(*ALL, records=b"x" * 70))


async def named_twice(rig: Rig, producer: Producer) -> object:
    return codes(await producer.send(0, 1, 1))


async def acks_0(rig: Rig, producer: Producer) -> object:
    answered = rig.router.stats.produce_answered
    producer.send(*ALL, acks=0)
    await eventually(lambda: rig.router.stats.produce_answered == answered + 1)
    return [len(rig.values(index=index)) for index in ALL]


async def one_is_new(rig: Rig, producer: Producer) -> object:
    """Its first write: nothing is known of the way there."""
    (session,) = sessions(rig)
    usual = session.produce._fast_path._usual
    for known in [known for known in usual if known[1] == 2]:
        del usual[known]
    return [codes(await producer.send(*ALL)) for _ in range(2)]


UNUSUAL: dict[Story, tuple[object, tuple[int, int]]] = {
    one_not_forwarding: ([(0, 2), (0, 1), (6, -1), (0, 1)], (0, 1)),
    one_handed_over: ([(0, 2), (6, -1), (0, 1), (0, 1)], (0, 1)),
    one_fenced: ([(0, 2), (0, 1), (0, 1), (0, 1)], (0, 1)),
    no_lease: ([(6, -1)] * 4, (0, 1)),
    one_transactional: ([(19, -1)] * 4, (0, 1)),
    all_garbled: ([(87, -1)] * 4, (0, 1)),
    named_twice: ([(42, -1)] * 3, (0, 0)),
    acks_0: ([3, 2, 2, 2], (0, 1)),
    one_is_new: ([[(0, 2), *[(0, 1)] * 3], [(0, 3), *[(0, 2)] * 3]], (1, 1)),
}


@pytest.mark.parametrize("story", UNUSUAL, ids=lambda story: story.__name__)
async def test_an_unusual_write(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, ways = await of_known_ways(story, monkeypatch)
    assert (seen, ways) == UNUSUAL[story]


async def test_one_partition_has_another_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(rig: Rig, producer: Producer) -> object:
        other = next(node for node in rig.source.brokers if node != rig.source.partition("orders", 1).leader)
        rig.source.move_leader("orders", 1, other)
        await rig.cluster.refresh(["orders"])
        return [codes(await producer.send(*ALL)) for _ in range(2)]

    seen, ways = await of_known_ways(story, monkeypatch)
    assert seen == [[(0, 2), *[(0, 1)] * 3], [(0, 3), *[(0, 2)] * 3]]
    assert ways == (1, 1)  # the second: the way to the new leader is known


@pytest.mark.parametrize("code", [6, 2, 87])
async def test_a_node_refuses_its_part(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A leadership error is sent again in order, behind which others wait; anything else is the client's."""

    async def story(rig: Rig, producer: Producer) -> object:
        rig.source.inject("produce", error=code, times=1, node=rig.source.partition("orders", 0).leader)
        many = [producer.send(*ALL) for _ in range(3)]
        return [[one.error for one in await each] for each in many]

    seen, (fast_path, _) = await of_known_ways(story, monkeypatch)
    assert fast_path >= 1
    if code == 6:
        assert seen == [[0] * 4] * 3
    else:
        assert seen != [[0] * 4] * 3


async def test_a_connection_is_cut_behind_its_part(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(rig: Rig, producer: Producer) -> object:
        rig.source.inject("produce", close_after=0, times=1, node=rig.source.partition("orders", 0).leader)
        return codes(await producer.send(*ALL))

    seen, ways = await of_known_ways(story, monkeypatch)
    assert ways == (1, 0)
    assert [error for error, _ in seen] == [0] * 4


async def test_the_answers_come_when_the_lease_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(rig: Rig, producer: Producer) -> object:
        pending = await under_way(rig, producer)
        rig.lease.lapse()  # type: ignore[attr-defined]
        await eventually(lambda: len(rig.router.hub.gate) == 4)
        assert not pending.done()
        rig.lease.renew()  # type: ignore[attr-defined]
        rig.router.lease_renewed()
        return codes(await pending)

    seen, ways = await of_known_ways(story, monkeypatch)
    assert (seen, ways) == ([(0, 2), *[(0, 1)] * 3], (1, 0))


async def test_one_is_given_up_with_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its neighbours in the same request are acknowledged."""

    async def story(rig: Rig, producer: Producer) -> object:
        pending = await under_way(rig, producer)
        rig.router.cut([TopicPartition("orders", 2)])
        told = codes(await pending)
        await eventually(lambda: not rig.router.hub.fences.pending([TopicPartition("orders", 2)]))
        return told

    seen, ways = await of_known_ways(story, monkeypatch)
    assert (seen, ways) == ([(0, 2), (0, 1), (7, -1), (0, 1)], (1, 0))


async def test_somebody_else_leads_one_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(rig: Rig, producer: Producer) -> object:
        pending = await under_way(rig, producer)
        rig.router.hub.fences._state[TopicPartition("orders", 1)] = FenceState.HANDED_OVER
        return codes(await pending)

    seen, ways = await of_known_ways(story, monkeypatch)
    assert (seen, ways) == ([(0, 2), (7, -1), (0, 1), (0, 1)], (1, 0))


async def test_a_fence_waits_for_what_is_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(rig: Rig, producer: Producer) -> object:
        pending = await under_way(rig, producer)
        tps = [TopicPartition("orders", index) for index in ALL]
        await rig.router.fence(tps, timeout=25)
        assert not any(lane.in_flight for tp in tps for lane in rig.router.hub.fences.lanes(tp))
        rig.router.unfence(tps)
        return codes(await pending)

    seen, ways = await of_known_ways(story, monkeypatch)
    assert (seen, ways) == ([(0, 2), *[(0, 1)] * 3], (1, 0))


async def test_one_node_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's time ends: what the others took is told, and what nobody knows as well."""

    async def story(rig: Rig, producer: Producer) -> object:
        leader = rig.source.partition("orders", 0).leader
        quiet = [index for index in ALL if rig.source.partition("orders", index).leader == leader]
        rig.source.inject("produce", delay=1.0, times=1, node=leader)
        told = codes(await producer.send(*ALL, timeout_ms=400))
        assert [index for index, (code, _) in enumerate(told) if code == 7] == quiet
        await eventually(lambda: rig.router.hub.budget.used == 0)
        return told

    seen, ways = await of_known_ways(story, monkeypatch)
    assert ways == (1, 0)
    assert sorted(code for code, _ in seen) == [0, 0, 7, 7]  # type: ignore[attr-defined]


async def test_another_producer_waits_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(rig: Rig, producer: Producer) -> object:
        other = Producer(producer.connection, rig, producer_id=6)
        rig.source.inject("produce", delay=0.05)
        return [codes(await one) for one in (producer.send(*ALL), other.send(3, 0))]

    seen, ways = await of_known_ways(story, monkeypatch)
    assert (seen, ways) == ([[(0, 2), *[(0, 1)] * 3], [(0, 2), (0, 3)]], (1, 1))


async def test_nobody_is_there_to_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(rig: Rig, producer: Producer) -> object:
        await under_way(rig, producer)
        producer.connection.close()
        await eventually(lambda: rig.router.hub.budget.used == 0)
        return [rig.router.hub.fences.lanes(TopicPartition("orders", index)) for index in ALL]

    seen, ways = await of_known_ways(story, monkeypatch)
    assert not any(seen)  # type: ignore[arg-type]
    assert ways == (1, 0)


def answered_otherwise(rig: Rig, change: Callable[[dict[str, Any], list[dict[str, Any]]], None]) -> None:
    """change(answer, its partitions), of each answer of the source from now on."""
    real = rig.source.handlers["produce"]

    async def changed(broker, request):  # type: ignore[no-untyped-def]
        answer = dict(await real(broker, request))
        for topic in answer["responses"]:
            change(answer, topic["partition_responses"])
        return answer

    rig.source.handlers["produce"] = changed


async def test_the_source_answers_in_another_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers group partitions as they like."""

    async def story(rig: Rig, producer: Producer) -> object:
        answered_otherwise(rig, lambda _, partitions: partitions.reverse())
        return codes(await producer.send(*ALL)), codes(await producer.send(1, 0))

    seen, ways = await of_known_ways(story, monkeypatch, source_nodes=1)
    assert (seen, ways) == (([(0, 2), *[(0, 1)] * 3], [(0, 2), (0, 3)]), (2, 0))


async def test_the_source_slows_its_clients_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the slowest node says."""

    async def story(rig: Rig, producer: Producer) -> object:
        times = iter((7, 30))
        answered_otherwise(rig, lambda answer, _: answer.update(throttle_time_ms=next(times, 3)))
        slow = await ask(producer, {("orders", 0): 2, ("orders", 1): 1})
        less = await ask(producer, {("orders", 0): 3, ("orders", 1): 2})
        return slow.throttle_ms, less.throttle_ms

    seen, ways = await of_known_ways(story, monkeypatch)
    assert seen == (30, 3)
    assert ways == (1, 1)


async def test_brokers_of_the_source_are_nobody_for_a_client(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(rig: Rig, producer: Producer) -> object:
        def with_leader(_: object, partitions: list[dict[str, Any]]) -> None:
            for one in partitions:
                one["current_leader"] = {"leader_id": 1, "leader_epoch": 7}

        answered_otherwise(rig, with_leader)
        results = await producer.send(*ALL)
        return codes(results), [one.current_leader for one in results]

    seen, ways = await of_known_ways(story, monkeypatch)
    assert (seen, ways) == (([(0, 2), *[(0, 1)] * 3], [None] * 4), (1, 0))


async def test_the_source_has_one_of_them_already(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it says of a duplicate older than it remembers is no success, though it may name an offset."""

    async def story(rig: Rig, producer: Producer) -> object:
        answered_otherwise(rig, lambda _, partitions: partitions[0].update(error_code=46))
        return codes(await producer.send(*ALL))

    seen, ways = await of_known_ways(story, monkeypatch, source_nodes=1)
    assert (seen, ways) == ([(46, 2), *[(0, 1)] * 3], (1, 0))


async def test_a_success_without_an_offset_is_told_and_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(rig: Rig, producer: Producer) -> object:
        answered_otherwise(rig, lambda _, partitions: partitions[0].update(base_offset=-1))
        return codes(await producer.send(*ALL))

    seen, ways = await of_known_ways(story, monkeypatch, source_nodes=1)
    assert (seen, ways) == ([(0, -1), *[(0, 1)] * 3], (1, 0))


async def test_a_connection_that_is_closed_is_not_written_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a producer without an id nobody would know what became of it."""

    async def story(rig: Rig, producer: Producer) -> object:
        (session,) = sessions(rig)
        for usual in session.produce._fast_path._usual.values():
            usual.route.close()
        return codes(await Producer(producer.connection, rig).send(*ALL))

    seen, ways = await of_known_ways(story, monkeypatch)
    assert (seen, ways) == ([(0, 2), *[(0, 1)] * 3], (0, 1))


async def test_without_an_answer_to_come_nothing_is_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(rig: Rig, producer: Producer) -> object:
        (session,) = sessions(rig)
        usual = session.produce._fast_path._usual
        usual.clear()
        answered = rig.router.stats.produce_answered
        producer.send(*ALL, acks=0)
        await eventually(lambda: rig.router.stats.produce_answered == answered + 1)
        return len(usual)

    seen, _ = await of_known_ways(story, monkeypatch)
    assert seen == 0


async def test_whoever_waits_for_the_answers_hears_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(rig: Rig, producer: Producer) -> object:
        pending = await under_way(rig, producer)
        began = asyncio.get_running_loop().time()
        await rig.router.answered([TopicPartition("orders", index) for index in ALL], timeout=40)
        assert asyncio.get_running_loop().time() - began < 20
        return codes(await pending)

    seen, ways = await of_known_ways(story, monkeypatch)
    assert (seen, ways) == ([(0, 2), *[(0, 1)] * 3], (1, 0))


async def test_what_is_held_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(rig: Rig, producer: Producer) -> object:
        pending = await under_way(rig, producer)
        (session,) = sessions(rig)
        held = rig.router.hub.budget.used
        (job,) = session.produce.answers.jobs
        told = codes(await pending)
        return held == job.size, rig.router.hub.budget.used, job.batches, told

    seen, ways = await of_known_ways(story, monkeypatch)
    assert (seen, ways) == ((True, 0, [], [(0, 2), *[(0, 1)] * 3]), (1, 0))


async def test_not_leading_one_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(rig: Rig, producer: Producer) -> object:
        rig.directory.mirrors["orders"].partitions[3].leading = False
        rig.elect("orders", 3, 2, E0 + 1)
        return codes(await producer.send(*ALL))

    seen, ways = await of_known_ways(story, monkeypatch)
    assert (seen, ways) == ([(0, 2), (0, 1), (0, 1), (6, -1)], (0, 1))
