"""Where a source ends that link brokers hold while it is switched: from the state, and from the brokers that follow them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from controller.decide import give_backs
from controller.image import ControllerImage
from controller.judge.alignment import SourceEnd
from linker.promote.fleet_ports import ListedSourceEnds
from linker.promote.taken_source import TakenSource
from tests.controller.test_take_overs import BACK, TP, image_of, taken, taking
from tests.fakes import FakeCluster
from tests.links.conftest import client
from wire.client.cluster import Cluster
from wire.errors import LinkerError
from wire.frames.error_codes import UNSUPPORTED_VERSION
from wire.frames.fetch import FetchRequest, FetchResponse

END = 100


@pytest_asyncio.fixture
async def fake() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(nodes=3) as found:  # the last one stands for the link broker
        found.add_topic("t", partitions=1)
        for _ in range(END):
            found.add("t", 0)
        found.move_leader("t", 0, 3)
        yield found


@pytest_asyncio.fixture
async def source(fake: FakeCluster) -> AsyncIterator[Cluster]:
    cluster = client(fake, "source")
    await cluster.connect()
    await cluster.refresh({"t"}, timeout=5)
    yield cluster
    await cluster.close()


def of(image: ControllerImage, source: Cluster) -> TakenSource:
    return TakenSource("l", lambda: image, source)


async def test_its_end_is_where_it_was_taken_over(fake: FakeCluster, source: Cluster) -> None:
    image = taken(taking(image_of()))
    found = of(image, source)
    assert found.ends([TP]) == {TP: END}
    assert found.reader(TP) == 1
    fake.counts.clear()
    assert await ListedSourceEnds(source, found).ends([TP], timeout=5) == {TP: SourceEnd(END, END, END)}
    assert not fake.counts["list_offsets"], "its leader can tell nothing"


async def test_an_open_transaction_is_seen(fake: FakeCluster, source: Cluster) -> None:
    fake.partition("t", 0).log.open_transactions[7] = 40
    found = of(taken(taking(image_of())), source)
    ends = await ListedSourceEnds(source, found).ends([TP], timeout=5)
    assert ends == {TP: SourceEnd(END, END, 40)} and ends[TP].in_transaction


async def test_who_has_not_followed_to_the_end_knows_of_no_transaction(
    fake: FakeCluster, source: Cluster
) -> None:
    log = fake.partition("t", 0).log
    log.high_watermark = END - 1
    found = of(taken(taking(image_of())), source)
    with pytest.raises(LinkerError, match=r"broker [12] has not followed to offset 100 yet"):
        await ListedSourceEnds(source, found).ends([TP], timeout=2)
    asked = asyncio.ensure_future(ListedSourceEnds(source, found).ends([TP], timeout=5))
    await asyncio.sleep(0.1)
    assert not asked.done()
    log.high_watermark = END
    assert await asked == {TP: SourceEnd(END, END, END)}


async def test_a_last_try_without_an_answer_does_not_hide_the_reason(
    fake: FakeCluster, source: Cluster
) -> None:
    fake.partition("t", 0).log.high_watermark = END - 1
    found = of(taken(taking(image_of())), source)
    asked = asyncio.ensure_future(ListedSourceEnds(source, found).ends([TP], timeout=2))
    async with asyncio.timeout(25):
        while len(fake.received("fetch")) < 2:
            await asyncio.sleep(0.01)
    fake.inject("fetch", drop=True, times=None)
    with pytest.raises(LinkerError, match=r"broker [12] has not followed to offset 100 yet"):
        await asked


async def test_one_that_is_away_is_passed_over(fake: FakeCluster, source: Cluster) -> None:
    await fake.brokers[1].close()
    found = of(taken(taking(image_of())), source)
    ends = await ListedSourceEnds(source, found).ends([TP], timeout=8)
    assert ends == {TP: SourceEnd(END, END, END)}


async def test_one_that_refuses_is_passed_over_and_its_reason_is_told(
    source: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse, fetch = {1, 2}, source.fetch

    async def answered(
        broker: int, request: FetchRequest, **options: Any
    ) -> tuple[memoryview, FetchResponse]:
        if broker in refuse:
            return memoryview(b""), FetchResponse(UNSUPPORTED_VERSION, 0, 0, [])
        return await fetch(broker, request, **options)

    monkeypatch.setattr(source, "fetch", answered)
    found = of(taken(taking(image_of())), source)
    with pytest.raises(LinkerError, match=r"UNSUPPORTED_VERSION: broker [12] refused a fetch"):
        await ListedSourceEnds(source, found).ends([TP], timeout=2)
    refuse.remove(2)
    assert await ListedSourceEnds(source, found).ends([TP], timeout=5) == {TP: SourceEnd(END, END, END)}


async def test_before_and_afterwards_its_leader_is_asked(fake: FakeCluster, source: Cluster) -> None:
    image = taking(image_of())
    found = of(image, source)
    assert found.ends([TP]) == {} and found.reader(TP) is None
    await ListedSourceEnds(source, found).ends([TP], timeout=5)
    assert fake.counts["list_offsets"]
    image.replay(give_backs.give_back(taken(image), BACK, ["t"], 0))
    assert found.ends([TP]) == {}
    assert TakenSource("l", ControllerImage, source).ends([TP]) == {}
