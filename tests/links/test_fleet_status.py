"""What other sidecars lead, as people are shown it: never an old reading as if it were of now."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import Any

import pytest

from fleet.messages import LinkTraffic, SidecarReport
from fleet.progress import CopyReport, ReportBook, decode_copies, encode_copies
from linker.fleet.clock import lease_clock
from linker.fleet.ports import ClusterPorts
from linker.links.copies import Copies
from linker.links.traffic import traffic
from router.ports import LinkStats, RouterStats
from tests.links.link_context import context
from wire.frames.types import TopicPartition
from wire.metadata.image import PartitionImage

TP = TopicPartition("t", 0)


class Stage:
    """This sidecar is 900; `leader` leads the partition and reported on it `age` seconds ago."""

    def __init__(self, leader: int, age: float | None = None, *, by: int = 901) -> None:
        partition = PartitionImage(
            index=0,
            replicas=(900, 901),
            isr=(901,),
            adding=(),
            removing=(),
            leader=leader,
            leader_epoch=3,
            partition_epoch=1,
        )
        image = SimpleNamespace(topics_by_name={"t": SimpleNamespace(partitions={0: partition})})
        self.target: Any = SimpleNamespace(broker_id=900, image=image)
        self.heard: dict[int, float] = {901: 0.1}
        self.local: dict[TopicPartition, Any] = {}
        self.head: Any = SimpleNamespace(
            book=ReportBook(),
            members={901: None},
            heard_ago=self.heard.get,
            controller=SimpleNamespace(image=SimpleNamespace(identities={900: None, 901: None})),
        )
        if age is not None:
            report = CopyReport(
                link="l",
                topic="t",
                partition=0,
                leader_epoch=3,
                loaded=True,
                high_watermark=10,
                log_start_offset=0,
            )
            self.head.book.note(by, [report], lease_clock() - age)

    def copies(self, *, head: bool = True) -> Copies:
        return Copies(context("l", None, self.target, head=head and self.head), self.local)


def test_a_fresh_report_is_shown() -> None:
    copies = Stage(901, 0.9).copies()
    copy = copies.get(TP)
    assert copy is not None and copy.high_watermark == 10


def test_where_a_follower_went_back_to_is_told_with_its_time() -> None:
    """From the sidecar that leads the partition to the one that decides what is still proved."""
    scene = Stage(901)
    now = time.monotonic()
    mine: Any = SimpleNamespace(
        spec=SimpleNamespace(topic_id=b"t" * 16),
        loaded=True,
        end_known=True,
        heard=True,
        high_watermark=10,
        log_start_offset=0,
        followers={
            1: SimpleNamespace(
                fetch_offset=9,
                broker_epoch=2,
                last_fetch_monotonic=now - 1,
                caught_up_monotonic=0.0,
                restarts=((4, now - 60),),
            )
        },
        failed=None,
        trouble=None,
        bytes_fetched=0,
        bytes_served=0,
    )
    partition = SimpleNamespace(leader=901, leader_epoch=3)
    target = SimpleNamespace(image=SimpleNamespace(partition=lambda *_: partition))
    leader: Any = SimpleNamespace(target=target, router=None, _broker_id=901)
    report = ClusterPorts._report(leader, "l", TP, mine, now)
    assert report is not None
    scene.head.book.note(901, decode_copies(json.loads(json.dumps(encode_copies([report])))), lease_clock())
    copy = scene.copies().get(TP)
    assert copy is not None
    ((offset, at),) = copy.followers[1].restarts
    assert offset == 4
    assert at == pytest.approx(now - 60, abs=5)


def test_an_old_report_is_not_shown_as_if_it_were_of_now() -> None:
    scene = Stage(901, 7.0)
    copies = scene.copies()
    assert copies.get(TP) is None
    silent = str(copies.silent(TP))
    assert silent.startswith("sidecar 901, which leads it, has not reported on it; its last report is 7.")
    del scene.head.members[901]
    scene.heard[901] = 6.5
    assert str(copies.silent(TP)).startswith(
        "sidecar 901, which leads it, is away for 6.5 s; its last report is 7."
    )


def test_no_report_at_all() -> None:
    assert Stage(901).copies().silent(TP) == "sidecar 901, which leads it, has not reported on it yet"
    scene = Stage(901)
    scene.head.members, scene.heard = {}, {}
    scene.head.heard_ago = {}.get
    assert scene.copies().silent(TP) == "sidecar 901, which leads it, is away"


def test_a_report_of_the_one_before_is_nothing() -> None:
    scene = Stage(901, 0.5, by=902)
    assert scene.copies().get(TP) is None
    assert scene.copies().silent(TP) is not None


def test_nobody_leads() -> None:
    copies = Stage(-1, 0.5).copies()
    assert copies.get(TP) is None
    assert copies.silent(TP) == "nobody leads it: of its ISR (901) no sidecar is there"


@pytest.mark.parametrize("head", [True, False])
def test_what_this_sidecar_leads_is_its_own(head: bool) -> None:
    scene = Stage(900, 0.5, by=901)
    scene.local[TP] = mine = SimpleNamespace()
    copies = scene.copies(head=head)
    assert copies.get(TP) is mine
    assert copies.silent(TP) is None


def test_led_by_a_real_broker_is_no_silence() -> None:
    assert Stage(1).copies().silent(TP) is None


def test_traffic_is_summed_over_the_fleet() -> None:
    stats = RouterStats()
    stats.links["l"] = LinkStats(produces=2, bytes=20, errors={7: 1})
    stats.links["other"] = LinkStats(produces=50, bytes=500, errors={7: 9})
    fetcher = SimpleNamespace(
        partitions={TP: SimpleNamespace(bytes_fetched=5, bytes_served=6)},
        gone_bytes_fetched=100,
        gone_bytes_served=200,
    )
    runtime: Any = SimpleNamespace(name="l", fetcher=fetcher, router=SimpleNamespace(stats=stats))
    own = traffic(runtime)
    assert (own.fetched_bytes, own.served_bytes, own.forwarded_produces) == (105, 206, 2)

    def member(local: bool, *links: LinkTraffic) -> Any:
        return SimpleNamespace(local=local, said=SidecarReport(links=list(links)))

    head: Any = SimpleNamespace(
        members={
            900: member(True, LinkTraffic(link="l", fetched_bytes=105)),  # this one, already counted
            901: member(
                False,
                LinkTraffic(link="l", fetched_bytes=1000, forwarded_produces=30, forward_errors=4),
                LinkTraffic(link="other", fetched_bytes=9999),
            ),
            902: SimpleNamespace(local=False, said=None),
        }
    )
    whole = traffic(runtime, head)
    assert (whole.fetched_bytes, whole.served_bytes) == (1105, 206)
    assert (whole.forwarded_produces, whole.forwarded_bytes, whole.forward_errors) == (32, 20, 5)
