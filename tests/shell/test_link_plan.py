"""A link file against the links that are there: every kind of difference, and the order of the steps."""

from __future__ import annotations

from typing import Any

from admin.models import (
    CreateMirrorsRequest,
    Forwarding,
    LinkDescription,
    LinkOptions,
    MirrorDescription,
    MirrorState,
    MirrorSummary,
    Traffic,
    UpdateLinkRequest,
)
from admin.validation_models import ContinuousValidationRequest
from linker.cli.link_file import LinkEntry, LinkFile, MirrorEntry
from linker.cli.link_plan import FIXED, MOST_TOPICS, SeenLink, Step, StepKind, compare_links
from tests.shell.memory_moment import NOW

SERVERS = {"bootstrap.servers": "one:9092"}


def wanted(*mirrors: str | MirrorEntry, name: str = "east", **more: Any) -> LinkEntry:
    entries = [MirrorEntry(topic=one) if isinstance(one, str) else one for one in mirrors]
    return LinkEntry(**{"name": name, "properties": SERVERS, "mirrors": entries, **more})


def there(
    *topics: str,
    name: str = "east",
    state: MirrorState = MirrorState.ACTIVE,
    properties: dict[str, str] = SERVERS,
    **options: Any,
) -> SeenLink:
    link = LinkDescription(
        name=name,
        state=state,
        source_cluster_id="source-id",
        bootstrap_servers="one:9092",
        mirrors=len(topics),
        target_cluster_id="target-id",
        properties=properties,
        options=LinkOptions(**options),
        forwarding=Forwarding(enabled=True),
        traffic=Traffic(),
        created_at=NOW,
    )
    prefix = len(link.options.prefix)
    mirrors = {
        one: MirrorSummary(
            link=name, topic=one, source_topic=one[prefix:] if prefix else None, state=state, partitions=1
        )
        for one in topics
    }
    details = {
        topic: MirrorDescription(
            **one.model_dump(),
            topic_id="abc",
            start="earliest",
            replication_factor=3,
            created_at=NOW,
            configs_from_target=["retention.ms"],
            partition_status=[],
        )
        for topic, one in mirrors.items()
    }
    return SeenLink(link, mirrors, details)


def plan(*entries: LinkEntry, seen: tuple[SeenLink, ...] = (), delete_missing: bool = False) -> list[Step]:
    return compare_links(
        LinkFile(links=list(entries)),
        {one.link.name: one for one in seen},
        delete_missing=delete_missing,
    )


def kinds(steps: list[Step]) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(step.kind.value, step.link, step.topics) for step in steps]


def test_all_links_come_before_all_mirrors() -> None:
    steps = plan(wanted("orders", name="east"), wanted("payments", name="west", source_cluster_id="x"))
    assert kinds(steps) == [
        ("create link", "east", ()),
        ("create link", "west", ()),
        ("create mirrors", "east", ("orders",)),
        ("create mirrors", "west", ("payments",)),
    ]
    assert steps[1].request is not None
    assert steps[1].request.model_dump()["source_cluster_id"] == "x"


def test_the_same_is_unchanged() -> None:
    options = LinkOptions(groups_include="a.*", validation_interval_ms=30_000, producer_id_margin=5_000_000)
    same = MirrorEntry(
        topic="payments", start="earliest", replication_factor=3, configs_from_target=["retention.ms"]
    )
    steps = plan(
        wanted("orders", same, options=options, source_cluster_id="source-id"),
        seen=(there("orders", "payments", **options.model_dump()),),
    )
    assert kinds(steps) == [("unchanged", "east", ()), ("unchanged", "east", ("orders", "payments"))]


def test_properties_are_changed_added_and_removed() -> None:
    entry = wanted(properties={"bootstrap.servers": "two:9092", "client.id": "linker"})
    steps = plan(entry, seen=(there(properties={**SERVERS, "client.rack": "r1"}),))
    assert steps == [
        Step(
            StepKind.UPDATE_LINK,
            "east",
            request=UpdateLinkRequest(
                properties={"bootstrap.servers": "two:9092", "client.id": "linker", "client.rack": None}
            ),
            differences=(
                "bootstrap.servers: one:9092 -> two:9092",
                "client.id: none -> linker",
                "client.rack: r1 -> none",
            ),
        )
    ]


def test_a_hidden_secret_is_replaced_and_not_shown() -> None:
    entry = wanted(properties={**SERVERS, "sasl.password": "${env:LINKER_LINK_A}"})
    steps = plan(entry, seen=(there(properties={**SERVERS, "sasl.password": "[hidden]"}),))
    assert steps[0].differences == ("sasl.password: [hidden] -> ${env:LINKER_LINK_A}",)


def test_an_option_that_is_not_named_goes_back_to_its_default() -> None:
    steps = plan(
        wanted(options={"fetchers_per_node": 4}),
        seen=(there(fetchers_per_node=2, groups_promote="auto", unpromoted_reads_hold=""),),
    )
    assert steps[0].differences == (
        "fetchers_per_node: 2 -> 4",
        "groups_promote: auto -> manual",
        "unpromoted_reads_hold: '' -> consumer-spark-kafka-.*",
    )
    request = steps[0].request
    assert isinstance(request, UpdateLinkRequest)
    assert request.options.named() == {
        "fetchers_per_node": 4,
        "groups_promote": "manual",
        "unpromoted_reads_hold": "consumer-spark-kafka-.*",
    }


def test_the_continuous_validation_has_a_step_of_its_own() -> None:
    begin = plan(wanted(options={"validation_interval_ms": 30_000}), seen=(there(),))
    end = plan(wanted(), seen=(there(validation_interval_ms=30_000),))
    assert [one.request for one in begin + end] == [
        ContinuousValidationRequest(enabled=True, interval_ms=30_000),
        ContinuousValidationRequest(enabled=False),
    ]
    assert begin[0].differences == ("validation_interval_ms: none -> 30000",)


def test_fixed_options_and_another_source_are_conflicts() -> None:
    assert {"producer_id_margin"} == FIXED
    seen = there(producer_id_margin=5_000_000)
    assert kinds(plan(wanted(), seen=(seen,))) == [("unchanged", "east", ())]
    step = plan(wanted(options={"producer_id_margin": 6_000_000}, source_cluster_id="other"), seen=(seen,))[0]
    assert (step.kind, step.differences) == (
        StepKind.CONFLICT,
        (
            "source_cluster_id: the link is to source-id, the file names other",
            "producer_id_margin is 5000000 and fixed since the link was made, the file names 6000000",
        ),
    )


def test_mirrors_are_grouped_by_their_settings() -> None:
    late: dict[str, Any] = {"start": "latest", "replication_factor": 2}
    steps = plan(
        wanted("a", MirrorEntry(topic="b", **late), "c", MirrorEntry(topic="d", **late)), seen=(there(),)
    )[1:]
    assert [one.request for one in steps] == [
        CreateMirrorsRequest(topics=["a", "c"]),
        CreateMirrorsRequest(topics=["b", "d"], start="latest", replication_factor=2),
    ]


def test_many_mirrors_are_made_some_at_a_time() -> None:
    steps = plan(wanted(*(f"t{n}" for n in range(2 * MOST_TOPICS + 1))), seen=(there(),))[1:]
    assert [len(one.topics) for one in steps] == [MOST_TOPICS, MOST_TOPICS, 1]


def test_settings_of_a_mirror_that_is_there_are_a_conflict_if_they_are_named() -> None:
    entry = wanted(MirrorEntry(topic="orders", start="latest", replication_factor=3, configs_from_target=[]))
    steps = plan(entry, seen=(there("orders"),))[1:]
    assert kinds(steps) == [("conflict", "east", ("orders",))]
    assert steps[0].differences == (
        "start is earliest, the file names latest: it counts when a mirror is made",
        "configs_from_target is ['retention.ms'], the file names []: it counts when a mirror is made",
    )
    promoted = plan(entry, seen=(there("orders", state=MirrorState.PROMOTED),))[1:]
    assert kinds(promoted) == [("unchanged", "east", ("orders",))]


def test_a_mirror_of_another_link_is_a_conflict() -> None:
    steps = plan(wanted("orders"), seen=(there(), there("orders", name="west")), delete_missing=True)
    assert kinds(steps)[1] == ("conflict", "east", ("orders",))
    assert steps[1].differences == ("it is a mirror of link west: delete it there first",)


def test_nothing_is_deleted_unless_it_is_told() -> None:
    seen = (there("orders", "payments"), there("empty", name="west"))
    assert kinds(plan(wanted("orders"), seen=seen)) == [
        ("unchanged", "east", ()),
        ("unchanged", "east", ("orders",)),
        ("not in the file", "east", ("payments",)),
        ("not in the file", "west", ("empty",)),
        ("not in the file", "west", ()),
    ]
    assert kinds(plan(wanted("orders"), seen=seen, delete_missing=True))[2:] == [
        ("delete mirror", "east", ("payments",)),
        ("delete mirror", "west", ("empty",)),
        ("delete link", "west", ()),
    ]


def test_topics_that_a_pattern_takes_are_the_links_own() -> None:
    options = {"topics_include": "ord.*,__app", "topics_exclude": "order-old"}
    seen = (there("orders", "__app", "__ord", "order-old", "payments", **options),)
    steps = plan(wanted(options=options), seen=seen, delete_missing=True)
    assert kinds(steps)[1:] == [
        ("delete mirror", "east", ("__ord",)),
        ("delete mirror", "east", ("order-old",)),
        ("delete mirror", "east", ("payments",)),
    ]
    # A link that is to go first stops to make mirrors.
    assert kinds(plan(seen=(there("orders", **options),), delete_missing=True)) == [
        ("update link", "east", ()),
        ("delete mirror", "east", ("orders",)),
        ("delete link", "east", ()),
    ]


def test_a_file_names_source_topics_and_a_prefix_goes_before_them() -> None:
    options = {"prefix": "east.", "topics_include": "taken"}
    seen = (there("east.orders", "east.taken", "east.left", **options), there("orders", name="west"))
    steps = plan(
        wanted("orders", "payments", options=options),
        wanted("orders", name="west"),
        seen=seen,
        delete_missing=True,
    )
    assert kinds(steps) == [
        ("unchanged", "east", ()),
        ("unchanged", "west", ()),
        ("unchanged", "east", ("orders",)),
        ("create mirrors", "east", ("payments",)),
        ("unchanged", "west", ("orders",)),
        ("delete mirror", "east", ("east.left",)),
    ]
