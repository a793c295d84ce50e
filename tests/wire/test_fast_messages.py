"""What is written and read by hand is what the schemas say."""

from __future__ import annotations

import random
import uuid
from collections.abc import Mapping
from typing import Any

import pytest

from wire.errors import LocalProtocolError, MalformedFrame
from wire.schema import codec
from wire.schema import fast_messages as by_hand

NAMES = ("orders", "ünïcode", "", "x" * 200)
METADATA = ("", "texts", None, "m" * 300)

COMMITTING = [("offset_commit", 8), ("offset_commit", 9)]
FETCHING = [("offset_fetch", 8), ("offset_fetch", 9)]
DESCRIBING = [("consumer_group_describe", 0), ("consumer_group_describe", 1)]
LISTING = [("list_offsets", version) for version in (6, 7, 8, 9, 10, 11)]
METADATA_VERSIONS = [("metadata", version) for version in (9, 10, 11, 12)]
ANSWERED = [
    *COMMITTING,
    *FETCHING,
    *DESCRIBING,
    *LISTING,
    ("describe_configs", 4),
    *METADATA_VERSIONS,
]


def some(source: random.Random, make: Any, most: int = 4) -> list[Any]:
    return [make() for _ in range(source.randrange(most))]


def request(api: str, source: random.Random) -> dict[str, Any]:
    def commit() -> dict[str, Any]:
        return {
            "partition_index": source.randrange(2**31),
            "committed_offset": source.choice([-1, 0, 2**62]),
            "committed_leader_epoch": source.choice([-1, 5]),
            "committed_metadata": source.choice(METADATA),
        }

    def group() -> dict[str, Any]:
        asked = {
            "name": source.choice(NAMES),
            "partition_indexes": some(source, lambda: 7, source.choice([4, 140])),
        }
        return {"group_id": source.choice(NAMES), "topics": source.choice([None, [], [asked, asked]])}

    if api == "offset_commit":
        return {
            "group_id": source.choice(NAMES),
            "generation_id_or_member_epoch": source.choice([-1, 0, 2**31 - 1]),
            "member_id": source.choice(NAMES),
            "topics": some(
                source,
                lambda: {
                    "name": source.choice(NAMES),
                    "partitions": some(source, commit, source.choice([4, 150])),
                },
            ),
        }
    if api == "offset_fetch":
        return {
            "groups": some(source, group, source.choice([4, 140])),
            "require_stable": source.choice([False, True]),
        }
    if api == "metadata":
        further = source.choice(
            [
                {},
                {"include_topic_authorized_operations": True},
                {"include_topic_authorized_operations": False, "include_cluster_authorized_operations": True},
            ]
        )
        named = source.choice([{}, {"topic_id": None}])
        return further | {
            "topics": source.choice(
                [None, some(source, lambda: {"name": source.choice(NAMES), **named}, source.choice([4, 150]))]
            ),
            "allow_auto_topic_creation": source.choice([False, True]),
        }
    if api == "list_offsets":
        asked = {
            "partition_index": source.randrange(2**31),
            "current_leader_epoch": source.choice([-1, 5]),
            "timestamp": source.choice([-4, -1, 2**62]),
        }
        timeout = source.choice([{}, {"timeout_ms": source.choice([0, 30_000])}])
        return timeout | {
            "replica_id": source.choice([-2, -1, 7]),
            "isolation_level": source.choice([0, 1]),
            "topics": some(
                source,
                lambda: {
                    "name": source.choice(NAMES),
                    "partitions": some(source, lambda: asked, source.choice([4, 150])),
                },
            ),
        }
    return {"group_ids": some(source, lambda: source.choice(NAMES), 200)}


def response(api: str, version: int, source: random.Random) -> dict[str, Any]:
    def topic(partition: Mapping[str, Any]) -> Any:
        return lambda: {
            "name": source.choice(NAMES),
            "partitions": some(source, lambda: partition, source.choice([4, 150])),
        }

    def assignment() -> dict[str, Any]:
        owned = {
            "topic_id": uuid.uuid4(),
            "topic_name": source.choice(NAMES),
            "partitions": some(source, lambda: source.randrange(2**31), 50),
        }
        return {"topic_partitions": some(source, lambda: owned)}

    def member() -> dict[str, Any]:
        return {
            "member_id": source.choice(NAMES),
            "instance_id": source.choice(METADATA),
            "rack_id": source.choice(METADATA),
            "member_epoch": source.randrange(-2, 2**31),
            "client_id": source.choice(NAMES),
            "client_host": "/127.0.0.1",
            "subscribed_topic_names": some(source, lambda: source.choice(NAMES)),
            "subscribed_topic_regex": source.choice(METADATA),
            "assignment": assignment(),
            "target_assignment": assignment(),
            **({"member_type": source.choice([-1, 0, 1])} if version else {}),
        }

    if api == "offset_commit":
        result = {"partition_index": source.randrange(2**31), "error_code": source.choice([0, 25, 999])}
        return {"throttle_time_ms": 5, "topics": some(source, topic(result))}
    if api == "offset_fetch":
        fetched = {
            "partition_index": source.randrange(2**31),
            "committed_offset": source.choice([-1, 0, 2**62]),
            "committed_leader_epoch": source.choice([-1, 5]),
            "metadata": source.choice(METADATA),
            "error_code": source.choice([0, 88]),
        }
        group = {
            "group_id": source.choice(NAMES),
            "topics": some(source, topic(fetched)),
            "error_code": source.choice([0, 16]),
        }
        return {
            "groups": some(source, lambda: group, source.choice([4, 140]) if len(group["topics"]) < 2 else 4)
        }
    if api == "list_offsets":
        listed = {
            "partition_index": source.randrange(2**31),
            "error_code": source.choice([0, 6, 999]),
            "timestamp": source.choice([-1, 2**62]),
            "offset": source.choice([-1, 0, 2**62]),
            "leader_epoch": source.choice([-1, 5]),
        }
        return {"throttle_time_ms": 5, "topics": some(source, topic(listed))}
    if api == "metadata":
        return metadata(source)
    if api == "describe_configs":
        return configs(source)
    described = {
        "error_code": source.choice([0, 69]),
        "error_message": source.choice(METADATA),
        "group_id": source.choice(NAMES),
        "group_state": "Stable",
        "group_epoch": 3,
        "assignment_epoch": 2,
        "assignor_name": source.choice(NAMES),
        "members": some(source, member),
    }
    return {
        "groups": some(
            source, lambda: described, source.choice([4, 140]) if len(described["members"]) < 2 else 4
        )
    }


def configs(source: random.Random) -> dict[str, Any]:
    def config() -> dict[str, Any]:
        synonym = {"name": source.choice(NAMES), "value": source.choice(METADATA), "source": 5}
        return {
            "name": source.choice(NAMES),
            "value": source.choice(METADATA),
            "read_only": source.choice([False, True]),
            "config_source": source.choice([-1, 1, 5]),
            "is_sensitive": source.choice([False, True]),
            "synonyms": some(source, lambda: synonym),
            "config_type": source.choice([0, 7]),
            "documentation": source.choice(METADATA),
        }

    before: list[dict[str, Any]] = []

    def result() -> dict[str, Any]:
        nonlocal before
        if source.random() < 0.6:  # topics mostly have the same
            before = some(source, config, source.choice([4, 40]))
        return {
            "error_code": source.choice([0, 29, 999]),
            "error_message": source.choice(METADATA),
            "resource_type": source.choice([2, 4, 32]),
            "resource_name": source.choice(NAMES),
            "configs": before,
        }

    return {"throttle_time_ms": 5, "results": some(source, result)}


def metadata(source: random.Random) -> dict[str, Any]:
    def nodes() -> list[int]:
        return some(source, lambda: source.randrange(2**31), source.choice([4, 20, 140]))

    def partition() -> dict[str, Any]:
        return {
            "error_code": source.choice([0, 5, 999]),
            "partition_index": source.randrange(2**31),
            "leader_id": source.choice([-1, 3]),
            "leader_epoch": source.choice([-1, 2**31 - 1]),
            "replica_nodes": nodes(),
            "isr_nodes": nodes(),
            "offline_replicas": nodes(),
        }

    return {
        "throttle_time_ms": 5,
        "brokers": some(
            source,
            lambda: {
                "node_id": source.randrange(2**31),
                "host": source.choice(NAMES),
                "port": source.randrange(2**16),
                "rack": source.choice(METADATA),
            },
        ),
        "cluster_id": source.choice(METADATA),
        "controller_id": source.choice([-1, 2]),
        "topics": some(
            source,
            lambda: {
                "error_code": source.choice([0, 3, 29]),
                "name": source.choice(NAMES),
                "topic_id": source.choice([None, uuid.UUID(int=source.randrange(1, 2**128))]),
                "is_internal": source.choice([False, True]),
                "partitions": some(source, partition, 4),
                "topic_authorized_operations": source.choice([-(2**31), 7]),
            },
        ),
    }


def plain(value: Any) -> Any:
    """The attributes that by hand are kept, of either kind of answer."""
    if isinstance(value, str | bytes | int | uuid.UUID | None):
        return int(value) if isinstance(value, int) else value
    if hasattr(value, "_fields"):
        return {name: plain(getattr(value, name)) for name in value._fields}
    return [plain(one) for one in value]


def as_kept(value: Any, shape: Any) -> Any:
    """A schema's entity, as far as `shape` goes; what its version lacks is as nobody had set it."""
    if isinstance(shape, dict):
        return {name: as_kept(getattr(value, name, None), inner) for name, inner in shape.items()}
    if isinstance(shape, list):
        assert len(value) == len(shape)
        return [as_kept(one, inner) for one, inner in zip(value, shape, strict=True)]
    return int(value) if isinstance(value, int) else value


@pytest.mark.parametrize(("api", "version"), COMMITTING + FETCHING + DESCRIBING + LISTING + METADATA_VERSIONS)
def test_requests_are_those_of_the_schema(api: str, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    source = random.Random(f"{api}{version}")
    requests = [request(api, source) for _ in range(20)]

    def encoded(fields: Mapping[str, object]) -> bytes:
        return codec.encode_request(api, version, fields, correlation_id=7, client_id="kafka-linker-1")

    ours = [encoded(fields) for fields in requests]
    messages = codec._FAST_MESSAGES
    assert all(by_hand.encode_body(messages, api, version, fields) is not None for fields in requests)
    monkeypatch.setattr(codec, "_FAST_MESSAGES", {})
    assert ours == [encoded(fields) for fields in requests]


@pytest.mark.parametrize(("api", "version"), ANSWERED)
def test_answers_are_those_of_the_schema(api: str, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    source = random.Random(f"{api}{version}")
    frames = [codec.encode_response(api, version, 7, response(api, version, source)) for _ in range(20)]
    by_hand = [plain(codec.decode_response(api, version, frame)) for frame in frames]
    monkeypatch.setattr(codec, "_FAST_MESSAGES", {})
    by_schema = [codec.decode_response(api, version, frame) for frame in frames]
    assert by_hand == [as_kept(one, shape) for one, shape in zip(by_schema, by_hand, strict=True)]


@pytest.mark.parametrize(("api", "version"), ANSWERED)
def test_a_garbled_answer_is_said_to_be_one(api: str, version: int) -> None:
    source = random.Random(f"{api}{version}")
    frame = codec.encode_response(api, version, 7, response(api, version, source))
    while len(frame) < 60:
        frame = codec.encode_response(api, version, 7, response(api, version, source))
    for end in range(4, len(frame), max(1, len(frame) // 60)):
        with pytest.raises(MalformedFrame):
            codec.decode_response(api, version, frame[:end])
    with pytest.raises(MalformedFrame):
        codec.decode_response(api, version, frame + b"\0")
    for _ in range(150):  # whatever it says, an answer or this error, and not much memory
        hurt = bytearray(frame)
        for _ in range(source.randrange(1, 4)):
            hurt[source.randrange(5, len(hurt))] = source.randrange(256)
        try:
            codec.decode_response(api, version, bytes(hurt))
        except MalformedFrame as error:
            assert error.api == api


def test_requests_with_further_fields_go_by_the_schema() -> None:
    fields = request("offset_commit", random.Random(1)) | {"group_instance_id": "me"}
    assert by_hand.encode_body(codec._FAST_MESSAGES, "offset_commit", 9, fields) is None
    frame = codec.encode_request("offset_commit", 9, fields, correlation_id=1, client_id=None)
    assert codec.decode_request(frame)[1].group_instance_id == "me"


def test_a_field_that_is_missing_is_a_bug_of_ours() -> None:
    fields = request("offset_commit", random.Random(1)) | {"topics": [{"name": "orders"}]}
    with pytest.raises(LocalProtocolError, match="partitions"):
        codec.encode_request("offset_commit", 9, fields, correlation_id=1, client_id=None)
