"""The end of a switch: records that only the cluster that was left has are not deleted, and the target is not needed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from admin.models import FinishRequest
from admin.service import IllegalState, NotReady
from controller.decide.reverse import reverse_name
from controller.phases import Phase
from controller.state import MirrorPartition, MirrorTopic, Record, SwitchEnd, Taken
from fleet.stored_controller import StoredController
from linker.links.assembly import _drop
from linker.service import SidecarService
from router.clients_seen import TRANSACTION, ClientSeen
from tests.controller.memory_store import MemoryStore
from wire.errors import LinkerError
from wire.metadata.image import ClusterImage, PartitionImage, TopicImage

TOPIC_ID = b"\x01" * 16
LINK, BACK = "east", reverse_name("east")
SILENT = "the target's controller has not taken a heartbeat for a while"


class Switched:
    """Topic `t`, of two partitions, is reversed. `leaders`: of its partitions at the source, where the sidecar is 800."""

    def __init__(self, controller: StoredController, leaders: tuple[int, ...]) -> None:
        self.controller = controller
        image = ClusterImage()
        parts = {
            index: PartitionImage(index, (1, 800), (leader,), (), (), leader, 4, 5)
            for index, leader in enumerate(leaders)
        }
        image.topics_by_name["t"] = image.topics_by_id[TOPIC_ID] = TopicImage(TOPIC_ID, "t", parts)
        self.deleted: list[tuple[str, bool]] = []
        self.finished: list[tuple[list[str], SwitchEnd]] = []
        self.back: Any = SimpleNamespace(
            name=BACK,
            controller=controller,
            target=SimpleNamespace(image=image),
            link_brokers=lambda: frozenset({800}),
            bring_up=SimpleNamespace(delete=self._delete),
            router=SimpleNamespace(hub=self),
        )
        #: Of each coordinator of the source: partitions by transactional id, or why it does not tell.
        self.transactions: dict[int, dict[str, list[str]] | LinkerError] = {1: {}, 2: {}}
        #: Clients that came in at the source lately.
        self.left: list[ClientSeen] = []
        self.loop = SimpleNamespace(time=lambda: 0.0)
        switch = SimpleNamespace(finish=self._finish)
        source = SimpleNamespace(nodes=(1, 2), call=self._call)
        runtime = SimpleNamespace(name=LINK, read_only=None, switch=switch, source=source)
        self.not_started: str | None = None
        sidecar: Any = SimpleNamespace(
            controller=controller,
            links={LINK: runtime},
            joined={LINK: SimpleNamespace(links={BACK: self.back})},
            not_started=lambda: self.not_started,
            not_ready=lambda: SILENT,
            config=SimpleNamespace(sources={}),
        )
        self.service = SidecarService(sidecar)

    @classmethod
    async def make(cls, *leaders: int) -> Switched:
        controller = await StoredController.open(MemoryStore(), now=lambda: 7)
        link = replace(await controller.create_link(LINK, "cluster", {}), options={"join_source": True})
        back = replace(link, name=BACK, reverse_of=LINK)
        mirror = MirrorTopic(link=BACK, topic="t", topic_id=TOPIC_ID, source_topic_id=None, partitions=2)
        states: list[Record] = [
            MirrorPartition(link=BACK, topic="t", partition=index, phase=Phase.ACTIVE, taken=Taken(end=5))
            for index in (0, 1)
        ]
        await controller.decide(lambda _: ([link, back, mirror, *states], None))
        return cls(controller, leaders)

    async def _delete(self, topic: str, *, topic_too: bool, force: bool) -> None:
        self.deleted.append((topic, topic_too))

    async def _finish(self, topics: list[str], end: SwitchEnd, *, timeout: float) -> None:
        self.finished.append((topics, end))

    def clients_seen(self, _topics: object) -> list[ClientSeen]:
        return self.left

    async def _call(self, api: str, fields: dict[str, Any], *, node_id: int, **_more: object) -> Any:
        told = self.transactions[node_id]
        if isinstance(told, LinkerError):
            raise told
        if api == "list_transactions":
            assert "Ongoing" in fields["state_filters"]
            states = [SimpleNamespace(transactional_id=name) for name in told]
            return SimpleNamespace(error_code=0, transaction_states=states)
        assert api == "describe_transactions"
        states = [
            SimpleNamespace(
                transactional_id=name, topics=[SimpleNamespace(topic=topic) for topic in told.get(name, ())]
            )
            for name in fields["transactional_ids"]
        ]
        return SimpleNamespace(transaction_states=states)

    async def finish(self, *, delete: bool = False, dry_run: bool = False) -> list[str]:
        request = FinishRequest(topics=["t"], delete_source_topics=delete)
        return list((await self.service.finish_mirrors(LINK, request, dry_run=dry_run)).warnings)


def test_a_target_that_is_lost_keeps_nobody_from_finishing() -> None:
    """The way back then: no heartbeat of the sidecar is answered, and none will be."""

    async def main() -> None:
        one = await Switched.make(800, 800)
        await one.finish()
        assert one.finished == [(["t"], SwitchEnd.CLOSED)]
        one.not_started = "the sidecar is starting"
        with pytest.raises(NotReady, match="is starting"):
            await one.finish()

    asyncio.run(main())


@pytest.mark.parametrize("leaders", [(800, 800, 1), (800, 1)], ids=["added", "led by force"])
@pytest.mark.parametrize("dry_run", [False, True])
def test_a_topic_that_real_brokers_may_have_written_to_is_not_deleted(
    leaders: tuple[int, ...], dry_run: bool
) -> None:
    async def main() -> None:
        one = await Switched.make(*leaders)
        with pytest.raises(IllegalState, match="may have records that are nowhere else"):
            await one.finish(delete=True, dry_run=dry_run)
        assert one.finished == []
        told = await one.finish(dry_run=dry_run)
        assert any("is led by broker 1 of the source, and may have records" in text for text in told)
        assert len(one.finished) == (0 if dry_run else 1)

    asyncio.run(main())


def test_a_topic_that_the_target_has_as_a_whole_is_deleted() -> None:
    async def main() -> None:
        one = await Switched.make(800, 800)
        assert len(await one.finish(delete=True)) == 1
        assert one.finished == [(["t"], SwitchEnd.DELETED)]

    asyncio.run(main())


def test_partitions_that_came_after_the_word_keep_the_topic() -> None:
    """It is gone on with later, by another process maybe."""

    async def main() -> None:
        one = await Switched.make(800, 800, 1)
        with pytest.raises(LinkerError, match="t-2 is led by broker 1"):
            await _drop(one.back, "t")
        assert one.deleted == []
        one = await Switched.make(800, 800)
        await _drop(one.back, "t")
        assert one.deleted == [("t", True)]

    asyncio.run(main())


def test_a_producer_with_transactions_has_to_go_first() -> None:
    """`max.message.bytes=0` refuses markers, and a coordinator never writes a marker again that was refused like that."""

    async def main() -> None:
        one = await Switched.make(800, 800)
        one.transactions[2] = {"other": ["u"], "billing": ["t"]}
        for dry_run in (True, False):
            with pytest.raises(
                IllegalState, match=r"topic t: transactional\.id billing still writes in transactions"
            ):
                await one.finish(dry_run=dry_run)
        one.transactions[2] = {"other": ["u"]}
        one.left = [ClientSeen("t", "app", "10.0.0.7", TRANSACTION, 0.0)]
        with pytest.raises(IllegalState, match=r"client app at 10\.0\.0\.7 still writes in transactions"):
            await one.finish()
        assert one.finished == []
        assert len(await one.finish(delete=True)) == 1
        one.left = [ClientSeen("t", "app", "10.0.0.7", "produce", 0.0)]
        assert len(await one.finish()) == 1

    asyncio.run(main())


def test_a_coordinator_that_does_not_tell_is_named() -> None:
    """A source before Kafka 3.0, or one broker that is away, keeps nobody from finishing."""

    async def main() -> None:
        one = await Switched.make(800, 800)
        one.transactions[1] = LinkerError("it is away")
        told = await one.finish()
        assert "broker 1 does not tell its transactions: it is away" in told
        assert len(one.finished) == 1

    asyncio.run(main())
