"""What doctor says of a source that was written to after a promote."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from admin.models import CheckResult
from controller.phases import Phase
from linker.checks.preflight import SeenTopic
from linker.links.runtime import LinkRuntime
from linker.promote import left_behind
from wire.errors import LinkerError
from wire.frames.types import TopicPartition

ID, OTHER = b"\x07" * 16, b"\x08" * 16


def tp(topic: str, partition: int = 0) -> TopicPartition:
    return TopicPartition(topic, partition)


class Source:
    """Answers ListOffsets of the latest offset, and Metadata by way of the patched `seen_source_topics`."""

    def __init__(
        self, ends: dict[TopicPartition, int], errors: dict[TopicPartition, int] | None = None
    ) -> None:
        self.ends, self.errors = ends, errors or {}
        self.asked: list[TopicPartition] = []

    async def list_offsets(
        self, tps: dict[TopicPartition, int], *, timeout: float
    ) -> dict[TopicPartition, Any]:
        assert set(tps.values()) == {-1}
        self.asked += tps
        return {
            one: SimpleNamespace(offset=self.ends.get(one, -1), error=self.errors.get(one, 0)) for one in tps
        }


def link(source: Source, **states: tuple[Phase, int | None]) -> LinkRuntime:
    """A link of topics of one partition each, all made with ID."""
    image = SimpleNamespace(
        mirrors={("east", topic): SimpleNamespace(source_topic_id=ID, partitions=1) for topic in states},
        link_partitions=lambda _: [
            SimpleNamespace(tp=tp(topic), phase=phase, aligned_end=end)
            for topic, (phase, end) in states.items()
        ],
    )
    return cast(
        "LinkRuntime", SimpleNamespace(name="east", source=source, controller=SimpleNamespace(image=image))
    )


@pytest.fixture
def ids(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes | None]:
    """Topics of the source and their ids, to be filled by the test."""
    there: dict[str, bytes | None] = {}

    async def seen(_: object, topics: list[str]) -> dict[str, SeenTopic]:
        return {
            topic: SeenTopic(there[topic], 3 if topic == "grown" else 1) for topic in topics if topic in there
        }

    monkeypatch.setattr(left_behind, "seen_source_topics", seen)
    return there


async def test_nothing_was_promoted(ids: dict[str, bytes | None]) -> None:
    source = Source({})
    assert (
        await left_behind.look(
            link(source, a=(Phase.ACTIVE, None), b=(Phase.ALIGNED, 7), c=(Phase.FAILED_OVER, 9))
        )
        == []
    )
    assert source.asked == []


async def test_a_source_that_nobody_wrote_to(ids: dict[str, bytes | None]) -> None:
    ids |= {"a": ID, "b": ID}
    [check] = await left_behind.look(
        link(
            Source({tp("a"): 7, tp("b"): 3}),
            a=(Phase.PROMOTED, 7),
            b=(Phase.PROMOTED, 5),
            c=(Phase.PROMOTED, 1),
        )
    )
    assert (check.name, check.result) == ("after promotes", CheckResult.OK)
    assert check.detail == "of 3 promoted partitions 2 are still at the source, and nobody wrote there since"


async def test_a_source_that_gave_its_topics_ids_since(ids: dict[str, bytes | None]) -> None:
    """An upgrade of a source of before 2.8; while it lasts, some brokers tell no ids of topics that have one."""
    ids |= {"old": OTHER, "new": None}
    runtime = link(Source({tp("old"): 9, tp("new"): 8}), old=(Phase.PROMOTED, 7), new=(Phase.PROMOTED, 7))
    runtime.controller.image.mirrors["east", "old"].source_topic_id = None  # type: ignore[index, misc]
    checks = await left_behind.look(runtime)
    assert [check.detail.partition(" offsets")[0] for check in checks] == ["topic new: 1", "topic old: 2"]


async def test_writes_that_stayed_behind_are_counted_and_placed(ids: dict[str, bytes | None]) -> None:
    ids |= {"a": ID, "b": ID}
    [check] = await left_behind.look(
        link(Source({tp("a"): 19, tp("b"): 5}), a=(Phase.PROMOTED, 7), b=(Phase.PROMOTED, 5))
    )
    assert check.result is CheckResult.WARN
    assert check.detail.startswith("topic a: 12 offsets were written to the source after the hand-over; a-0:")
    assert "from offset 7 to 19" in check.detail
    assert "deny writes" in (check.remedy or "")


async def test_partitions_that_were_added_and_written_to_are_told(ids: dict[str, bytes | None]) -> None:
    ids |= {"grown": ID}
    source = Source({tp("grown"): 7, tp("grown", 1): 0, tp("grown", 2): 4})
    rests, added = await left_behind.look(link(source, grown=(Phase.PROMOTED, 7)))
    assert rests.detail.startswith("of 1 promoted partitions 1 are still at the source")
    assert added.result is CheckResult.WARN
    assert added.detail == (
        "topic grown: 1 partitions with records were added at the source and never mirrored, grown-2 the first: "
        "4 offsets in them are not at the target"
    )
    source.ends[tp("grown", 2)] = 0
    [rests] = await left_behind.look(link(source, grown=(Phase.PROMOTED, 7)))
    assert rests.result is CheckResult.OK


async def test_another_topic_of_that_name_is_not_ours(ids: dict[str, bytes | None]) -> None:
    ids |= {"a": OTHER}
    source = Source({tp("a"): 19})
    [check] = await left_behind.look(link(source, a=(Phase.PROMOTED, 7)))
    assert check.result is CheckResult.OK
    assert source.asked == []


async def test_what_cannot_be_asked_is_a_finding(
    ids: dict[str, bytes | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    ids |= {"a": ID, "b": ID}
    half = Source({tp("a"): 19, tp("b"): 5}, {tp("a"): 6})
    known, unknown = await left_behind.look(link(half, a=(Phase.PROMOTED, 7), b=(Phase.PROMOTED, 5)))
    assert known.detail.startswith("of 1 promoted partitions 1 are still at the source")
    assert (unknown.result, unknown.detail) == (
        CheckResult.WARN,
        "whether somebody still wrote to the source is not known: a-0: NOT_LEADER_OR_FOLLOWER",
    )
    [unknown] = await left_behind.look(link(half, a=(Phase.PROMOTED, 7)))
    assert unknown.result is CheckResult.WARN

    async def gone(*_: object) -> dict[str, bytes | None]:
        raise LinkerError("the source is off")

    monkeypatch.setattr(left_behind, "seen_source_topics", gone)
    [check] = await left_behind.look(link(Source({}), a=(Phase.PROMOTED, 7)))
    assert check.result is CheckResult.WARN
    assert "is not known: the source is off" in check.detail


def test_one_line_for_each_topic() -> None:
    ends = {tp("a", 0): 1, tp("a", 1): 2, tp("a", 2): 3, tp("b", 0): 4}
    first, second = left_behind.checks(ends, {tp("a", 0): 1, tp("a", 1): 12, tp("a", 2): 5, tp("b", 0): 5})
    assert "topic a: 12 offsets" in first.detail
    assert "; and 1 more partitions" in first.detail
    assert "topic b: 1 offsets" in second.detail
    assert "more partitions" not in second.detail
