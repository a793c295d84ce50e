"""A cluster whose topics have a prefix before their names for us: its own names are on the wire, and nowhere else."""

from __future__ import annotations

import dataclasses

import pytest

from tests.fakes.cluster import FakeCluster
from wire.client.cluster import Cluster
from wire.client.security import ClientSecurity
from wire.client.topic_names import TopicNames
from wire.errors import LocalProtocolError
from wire.frames.fetch import FetchPartition, FetchRequest
from wire.frames.list_offsets import EARLIEST, LATEST
from wire.frames.types import TopicPartition
from wire.schema.codec import decode_response, encode_response

EAST = TopicNames("east.")


@pytest.mark.parametrize(
    ("api", "asked", "sent"),
    [
        ("metadata", {"topics": [{"name": "east.a"}]}, {"topics": [{"name": "a"}]}),
        ("metadata", {"topics": None}, {"topics": None}),
        (
            "list_offsets",
            {"topics": [{"name": "east.east.", "x": 1}]},
            {"topics": [{"name": "east.", "x": 1}]},
        ),
        ("describe_producers", {"topics": [{"name": "east.a"}]}, {"topics": [{"name": "a"}]}),
        ("describe_log_dirs", {"topics": [{"topic": "east.a"}]}, {"topics": [{"topic": "a"}]}),
        ("offset_for_leader_epoch", {"topics": [{"topic": "east.a"}]}, {"topics": [{"topic": "a"}]}),
        (
            "describe_configs",
            {
                "resources": [
                    {"resource_type": 2, "resource_name": "east.a"},
                    {"resource_type": 4, "resource_name": "1"},
                ]
            },
            {
                "resources": [
                    {"resource_type": 2, "resource_name": "a"},
                    {"resource_type": 4, "resource_name": "1"},
                ]
            },
        ),
        ("create_topics", {"topics": [{"name": "east.a"}]}, {"topics": [{"name": "a"}]}),
        ("produce", {"topic_data": [{"name": "east.a"}]}, {"topic_data": [{"name": "a"}]}),
        ("describe_acls", {"resource_name_filter": None}, {"resource_name_filter": None}),
    ],
)
def test_requests_have_the_clusters_own_names(
    api: str, asked: dict[str, object], sent: dict[str, object]
) -> None:
    assert EAST.request(api, asked) == sent


def test_answers_have_our_names() -> None:
    for api, entries in (("create_topics", "topics"), ("produce", "responses")):
        fields = dataclasses.make_dataclass("Answer", [entries])
        entry = dataclasses.make_dataclass("Entry", ["name"])("a")
        answer = EAST.answer(api, fields([entry]))
        assert [one.name for one in getattr(answer, entries)] == ["east.a"]


def test_a_name_without_the_prefix_is_not_sent() -> None:
    """It would be the name of another topic."""
    with pytest.raises(LocalProtocolError, match=r"'orders' does not begin with 'east\.'"):
        EAST.request("metadata", {"topics": [{"name": "orders"}]})


@pytest.mark.parametrize(
    "api", ["alter_configs", "incremental_alter_configs", "delete_topics", "delete_records"]
)
def test_what_could_change_a_topic_under_its_other_name_is_not_sent(api: str) -> None:
    with pytest.raises(LocalProtocolError, match="not known where this api names topics"):
        EAST.request(api, {})


def test_topics_of_log_dirs_have_our_names() -> None:
    asked = encode_response(
        "describe_log_dirs",
        4,
        1,
        {
            "results": [
                {"error_code": 0, "log_dir": "/kafka", "topics": [{"name": "a", "partitions": []}]},
                {"error_code": 0, "log_dir": "/other", "topics": []},
            ]
        },
    )
    told = EAST.answer("describe_log_dirs", decode_response("describe_log_dirs", 4, asked))
    assert [[topic.name for topic in one.topics] for one in told.results] == [["east.a"], []]


async def test_the_source_is_asked_by_its_names_and_heard_by_ours() -> None:
    async with FakeCluster() as fake:
        fake.add_topic("orders")
        fake.add_topic("east.orders")
        cluster = Cluster(
            "source", fake.bootstrap, ClientSecurity.from_properties({}), "test", topic_prefix="east."
        )
        try:
            await cluster.connect()
            await cluster.refresh()
            assert set(cluster.topics) == {"east.orders", "east.east.orders"}
            tp = TopicPartition("east.orders", 0)
            leader = cluster.leader(tp)
            assert leader is not None
            for at in (EARLIEST, LATEST):
                assert (await cluster.list_offsets({tp: at}))[tp].error == 0
            request = FetchRequest(
                version=12, topics=[("east.orders", [FetchPartition(0, -1, 0, -1, -1, 1000)])]
            )
            _, answer = await cluster.fetch(leader.id, request, timeout=10)
            assert (await cluster.call("describe_log_dirs", {"topics": []}, timeout=10)).results[
                0
            ].topics == ()
            assert [(part.key, part.error) for part in answer.partitions] == [("east.orders", 0)]
        finally:
            await cluster.close()
