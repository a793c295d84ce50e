"""Questions to the link broker itself: answered here, never by a real broker in its name."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from router import apis, broker_resource
from router.apis import DECIDED, Answerer
from router.on_mirrors import NO_SHARE_GROUPS
from router.ports import RouterLimits
from tests.router.rig import LINK_BROKER, Rig, eventually
from wire.client.connection import Connection
from wire.errors import ConnectionLost
from wire.schema import codec

BROKER, LOGGER, TOPIC = 4, 8, 2
SET, DELETE = 0, 1
LEADER, FOLLOWER = "leader.replication.throttled.rate", "follower.replication.throttled.rate"


async def offered(broker: Any, request: Any) -> Mapping[str, object]:
    """Offered by the target's brokers, and nothing that one of them should be asked here."""
    raise AssertionError(f"broker {broker.id} was asked {request.api}")


def rig_of(limits: RouterLimits | None = None, **handlers: Any) -> Rig:
    rig = Rig(limits=limits)
    for key in [*apis.ABOUT_THE_BROKER, *apis.TO_A_LEADER, *apis.REFUSED]:
        if key >= 8:
            rig.target.handlers.setdefault(codec.api_name(key), offered)
    rig.target.handlers.update(handlers)
    return rig


async def altered(broker: Any, request: Any) -> Mapping[str, object]:
    """As a broker of the target: one that is named and is not this one is not its own."""
    return {
        "responses": [
            {
                "error_code": 42 if one.resource_name not in ("", str(broker.id), "plain") else 0,
                "error_message": "Unexpected broker id" if one.resource_name == str(LINK_BROKER) else None,
                "resource_type": one.resource_type,
                "resource_name": one.resource_name,
            }
            for one in request.entity.resources
        ]
    }


def denied(api: str, list_name: str) -> Any:
    async def handle(_broker: Any, request: Any) -> Mapping[str, object]:
        return {
            list_name: [
                {
                    "error_code": 31,
                    "error_message": "Cluster authorization failed.",
                    "resource_type": one.resource_type,
                    "resource_name": one.resource_name,
                }
                for one in request.entity.resources
            ]
        }

    return handle


async def no_cluster_rights(broker: Any, _request: Any) -> Mapping[str, object]:
    return {"cluster_id": broker.cluster.cluster_id, "controller_id": 1, "cluster_authorized_operations": 0}


def test_every_api_is_decided_once() -> None:
    """A new api of Kafka has to be looked at before it is passed through."""
    assert set(codec._API_NAMES) <= set(DECIDED)
    kinds = [apis._SERVED, apis.ABOUT_THE_BROKER, apis.TO_A_LEADER, apis.REFUSED, apis._ANY_BROKER]
    assert sum(map(len, kinds)) == len(DECIDED) == 93  # 0 to 92, those from before KRaft too


async def test_the_router_does_what_the_table_says() -> None:
    async with rig_of() as rig:
        for key, who in DECIDED.items():
            assert rig.router.serves(key) is (who is not Answerer.ANY_BROKER), key


async def call(client: Connection, api: str, fields: Mapping[str, object], **more: Any) -> Any:
    return await client.call(api, fields, timeout=5, **more)


def resource(kind: int, name: str, keys: list[str] | None = None) -> dict[str, Any]:
    return {"resource_type": kind, "resource_name": name, "configuration_keys": keys}


async def described(client: Connection, resources: list[dict[str, Any]]) -> Any:
    """Their configs with all fields, as a client of another make decodes them."""
    number = client.next_correlation_id()
    sent = codec.encode_request(
        "describe_configs", 4, {"resources": resources}, correlation_id=number, client_id="app"
    )
    reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    client.channel.send(number, [len(sent).to_bytes(4, "big"), sent], reply.set_result)
    return codec.decode_response("describe_configs", 4, await reply, whole=True)


async def test_configs_of_this_broker_and_a_topics_in_one_request() -> None:
    async with rig_of() as rig:
        client = await rig.client()
        asked = [
            resource(BROKER, str(LINK_BROKER)),
            resource(TOPIC, "orders", ["retention.ms"]),
            resource(BROKER, "2"),
            resource(LOGGER, str(LINK_BROKER)),
            resource(BROKER, "x"),
        ]
        answer = await described(client, asked)
        told = {(one.resource_type, one.resource_name): one for one in answer.results}
        assert [(one.resource_type, one.resource_name) for one in answer.results] == [
            (one["resource_type"], one["resource_name"]) for one in asked
        ]
        mine = told[BROKER, str(LINK_BROKER)]
        assert int(mine.error_code) == 0
        configs = {one.name: one for one in mine.configs}
        assert configs["broker.id"].value == configs["node.id"].value == "900"
        assert configs["broker.rack"].value == "r9"
        assert configs["advertised.listeners"].value == f"CLIENTS://127.0.0.1:{rig.listener.port}"
        assert all(one.read_only for one in mine.configs)
        assert [(one.name, one.value) for one in told[TOPIC, "orders"].configs] == [
            ("retention.ms", "604800000")
        ]
        other = told[BROKER, "2"]
        assert int(other.error_code) == 42
        assert other.error_message == "Unexpected broker id, expected 900 or empty string, but received 2"
        assert (int(told[LOGGER, "900"].error_code), tuple(told[LOGGER, "900"].configs)) == (0, ())
        assert told[BROKER, "x"].error_message == "Broker id must be an integer, but it is: x"


async def test_where_a_mirror_comes_from_is_told_if_it_is_asked_for_by_name() -> None:
    async with rig_of() as rig:
        rig.router.ports.upstream = {"orders": "A,B"}.get
        client = await rig.client()
        keys = [broker_resource.UPSTREAM, "retention.ms"]
        rig.target.add_topic("own", 1)
        asked = [
            resource(TOPIC, "orders", keys),
            resource(BROKER, str(LINK_BROKER), ["broker.id"]),
            resource(TOPIC, "own", keys),
            resource(TOPIC, "orders"),
            resource(TOPIC, "nowhere", keys),
        ]
        for version in (1, 4):
            answer = await call(client, "describe_configs", {"resources": asked}, version=version)
            told = [{one.name: one.value for one in result.configs} for result in answer.results]
            assert told[0] == {broker_resource.UPSTREAM: "A,B", "retention.ms": "604800000"}
            assert told[1] == {"broker.id": "900"}
            assert told[2] == {"retention.ms": "604800000"}
            assert broker_resource.UPSTREAM not in told[3]
            assert int(answer.results[4].error_code) == 3
        alone = await call(client, "describe_configs", {"resources": asked[:1]})
        assert sorted(one.value for one in alone.results[0].configs) == ["604800000", "A,B"]


async def test_producer_ids_are_told_to_other_sidecars_without_a_right() -> None:
    """Asked for by name and alone: of its other configs a client hears with the right that a real broker wants for them."""
    async with rig_of(describe_configs=denied("describe_configs", "results")) as rig:
        rig.router.ports.producer_ids = lambda: "A:5:"
        client = await rig.client()
        mine = resource(BROKER, str(LINK_BROKER), [broker_resource.PRODUCER_IDS])
        answer = await call(client, "describe_configs", {"resources": [mine]})
        assert [(one.name, one.value) for one in answer.results[0].configs] == [
            (broker_resource.PRODUCER_IDS, "A:5:")
        ]
        more = resource(BROKER, str(LINK_BROKER), [broker_resource.PRODUCER_IDS, "broker.id"])
        answer = await call(client, "describe_configs", {"resources": [more]})
        assert [(int(one.error_code), tuple(one.configs)) for one in answer.results] == [(31, ())]
        other = resource(BROKER, "2", [broker_resource.PRODUCER_IDS])
        answer = await call(client, "describe_configs", {"resources": [other]})
        assert [(int(one.error_code), tuple(one.configs)) for one in answer.results] == [(42, ())]


async def test_who_may_not_know_a_topics_configs_is_not_told_where_it_comes_from() -> None:
    async with rig_of(describe_configs=denied("describe_configs", "results")) as rig:
        rig.router.ports.upstream = {"orders": "A,B"}.get
        client = await rig.client()
        asked = [resource(TOPIC, "orders", [broker_resource.UPSTREAM])]
        answer = await call(client, "describe_configs", {"resources": asked})
        assert [(int(one.error_code), tuple(one.configs)) for one in answer.results] == [(31, ())]


@pytest.mark.parametrize("count", [1, 20_000])
async def test_a_large_request_is_not_taken_apart(count: int) -> None:
    """It goes to a real broker as it is: by the schema each byte of it takes time in which nobody else is served."""
    async with rig_of() as rig:
        client = await rig.client()
        asked = [resource(BROKER, str(LINK_BROKER)), *[resource(TOPIC, f"topic-{i}") for i in range(count)]]
        answer = await client.call("describe_configs", {"resources": asked}, timeout=30)
        assert len(answer.results) == len(asked)
        passed = [len(one.entity.resources) for one in rig.target.requests if one.api == "describe_configs"]
        assert (passed == [len(asked)]) is (count > 1)


async def test_an_answer_that_is_passed_on_is_whole() -> None:
    """The fields that nobody here reads are for the client."""

    async def told(_broker: Any, request: Any) -> Mapping[str, object]:
        config = {
            "name": "retention.ms",
            "value": "5",
            "config_source": 1,
            "synonyms": [{"name": "log.retention.ms", "value": "9", "source": 5}],
            "config_type": 5,
            "documentation": "how long",
        }
        found = {"error_code": 0, "resource_type": TOPIC, "resource_name": "orders", "configs": [config]}
        return {
            "results": [found for one in request.entity.resources if one.resource_type == TOPIC] or [found]
        }

    async with rig_of(describe_configs=told) as rig:
        client = await rig.client()
        answer = await described(client, [resource(BROKER, str(LINK_BROKER)), resource(TOPIC, "orders")])
        (config,) = answer.results[1].configs
        assert (config.config_source, config.config_type, config.documentation) == (1, 5, "how long")
        assert [(one.name, one.source) for one in config.synonyms] == [("log.retention.ms", 5)]


async def test_only_the_keys_that_were_asked_for() -> None:
    async with rig_of() as rig:
        client = await rig.client()
        asked = [resource(BROKER, "900", ["broker.id", "log.dirs"])]
        answer = await call(client, "describe_configs", {"resources": asked})
        assert [one.name for one in answer.results[0].configs] == ["broker.id"]


async def test_configs_without_this_broker_are_not_touched() -> None:
    async with rig_of() as rig:
        client = await rig.client()
        await call(client, "describe_configs", {"resources": [resource(TOPIC, "orders")]})
        assert rig.target.counts["describe_configs"] == 1


async def test_a_stranger_is_told_no_configs() -> None:
    async with rig_of(describe_configs=denied("describe_configs", "results")) as rig:
        client = await rig.client()
        answer = await call(client, "describe_configs", {"resources": [resource(BROKER, "900")]})
        assert [(int(one.error_code), tuple(one.configs)) for one in answer.results] == [(31, ())]


def change(name: str, *configs: tuple[str, int, str | None], kind: int = BROKER) -> dict[str, Any]:
    return {
        "resource_type": kind,
        "resource_name": name,
        "configs": [{"name": key, "config_operation": how, "value": value} for key, how, value in configs],
    }


async def test_throttles_of_this_broker_are_taken_and_taken_off() -> None:
    """kafka-reassign-partitions --throttle sets them on every broker it sees, and ends half-way where one refuses."""
    async with rig_of(incremental_alter_configs=altered) as rig:
        client = await rig.client()
        for how, value in ((SET, "50000"), (DELETE, None)):
            asked = [
                change("plain", ("retention.ms", SET, "1"), kind=TOPIC),
                change("900", (LEADER, how, value), (FOLLOWER, how, value)),
            ]
            answer = await call(client, "incremental_alter_configs", {"resources": asked})
            assert [(one.resource_name, int(one.error_code)) for one in answer.responses] == [
                ("plain", 0),
                ("900", 0),
            ]
        # Nothing of it was made, and of broker 900 no real broker was asked.
        sent = [one.entity for one in rig.target.requests if one.api == "incremental_alter_configs"]
        assert [(one.resource_name, entity.validate_only) for entity in sent for one in entity.resources] == [
            ("", True),
            ("plain", False),
        ] * 2


async def test_other_configs_of_this_broker_are_refused_with_words() -> None:
    async with rig_of(incremental_alter_configs=altered) as rig:
        client = await rig.client()
        asked = [
            change("900", ("log.cleaner.threads", SET, "2"), (LEADER, SET, "1")),
            change("900", ("kafka.server", SET, "DEBUG"), kind=LOGGER),
            change("2", (LEADER, SET, "1")),
        ]
        answer = await call(client, "incremental_alter_configs", {"resources": asked})
        assert [int(one.error_code) for one in answer.responses] == [42, 42, 42]
        one, two, three = [one.error_message or "" for one in answer.responses]
        assert "has no log.cleaner.threads: its settings are in its own configuration file" in one
        assert "none of Kafka's loggers" in two
        assert three.startswith("Unexpected broker id, expected 900")


async def test_the_old_way_to_alter_configs() -> None:
    async with rig_of(alter_configs=altered, incremental_alter_configs=altered) as rig:
        client = await rig.client()
        asked = [
            {
                "resource_type": BROKER,
                "resource_name": "900",
                "configs": [{"name": LEADER, "value": "7"}],
            }
        ]
        answer = await call(client, "alter_configs", {"resources": asked})
        assert [int(one.error_code) for one in answer.responses] == [0]
        assert rig.target.counts["alter_configs"] == 0


async def test_a_stranger_changes_nothing() -> None:
    refused = denied("incremental_alter_configs", "responses")
    async with rig_of(incremental_alter_configs=refused) as rig:
        client = await rig.client()
        asked = [change("900", ("log.cleaner.threads", SET, "2"))]
        answer = await call(client, "incremental_alter_configs", {"resources": asked})
        assert [int(one.error_code) for one in answer.responses] == [31]


async def test_one_empty_log_directory() -> None:
    """With none at all Kafka's admin client raises ClusterAuthorizationException."""
    async with rig_of() as rig:
        client = await rig.client()
        for version in (1, 5):
            answer = await call(client, "describe_log_dirs", {"topics": None}, version=version)
            assert [(int(one.error_code), one.topics) for one in answer.results] == [(0, ())]
        assert (answer.results[0].total_bytes, answer.results[0].usable_bytes) == (-1, -1)


async def test_a_stranger_is_told_no_directories() -> None:
    async with rig_of(describe_cluster=no_cluster_rights) as rig:
        client = await rig.client()
        answer = await call(client, "describe_log_dirs", {"topics": None})
        assert (int(answer.error_code), answer.results) == (31, ())
        asked = {"dirs": [{"path": "/d", "topics": [{"name": "orders", "partitions": [0]}]}]}
        moved = await call(client, "alter_replica_log_dirs", asked)
        assert [int(one.error_code) for one in moved.results[0].partitions] == [31]


async def test_no_replica_is_moved_between_directories() -> None:
    async with rig_of() as rig:
        client = await rig.client()
        topics = [{"name": "orders", "partitions": [0, 1]}]
        asked = {"dirs": [{"path": "/d1", "topics": topics}, {"path": "/d2", "topics": topics}]}
        answer = await call(client, "alter_replica_log_dirs", asked)
        parts = [(one.partition_index, int(one.error_code)) for one in answer.results[0].partitions]
        assert (len(answer.results), parts) == (1, [(0, 57), (1, 57), (0, 57), (1, 57)])


async def test_no_groups_and_no_transactions() -> None:
    async with rig_of() as rig:
        client = await rig.client()
        groups = await call(client, "list_groups", {})
        assert (int(groups.error_code), groups.groups) == (0, ())
        found = await call(client, "list_transactions", {"state_filters": ["Ongoing", "Odd"]})
        assert (int(found.error_code), found.transaction_states) == (0, ())
        assert found.unknown_state_filters == ("Odd",)
        assert not rig.target.counts["list_groups"] + rig.target.counts["list_transactions"]


async def deleted(_broker: Any, request: Any) -> Mapping[str, object]:
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": part.partition_index, "low_watermark": part.offset, "error_code": 0}
                    for part in topic.partitions
                ],
            }
            for topic in request.entity.topics
        ]
    }


async def test_records_of_a_mirror_are_not_deleted_and_others_are() -> None:
    async with rig_of(delete_records=deleted) as rig:
        client = await rig.client()
        # A third partition of the mirror was added at the target: a real broker has it.
        asked = [
            {"name": "orders", "partitions": [{"partition_index": i, "offset": 5} for i in (0, 2)]},
            {"name": "plain", "partitions": [{"partition_index": 0, "offset": 9}]},
        ]
        answer = await call(client, "delete_records", {"topics": asked, "timeout": 1000})
        told = {
            (topic.name, part.partition_index): (int(part.error_code), part.low_watermark)
            for topic in answer.topics
            for part in topic.partitions
        }
        assert told == {("orders", 0): (44, -1), ("orders", 2): (0, 5), ("plain", 0): (0, 9)}
        assert [topic.name for topic in answer.topics] == ["orders", "plain"]


async def test_records_of_a_mirror_that_another_leads_are_its_leaders_matter() -> None:
    """NOT_LEADER_OR_FOLLOWER of a real broker sends the client to who leads it now."""
    async with rig_of(delete_records=deleted) as rig:
        client = await rig.client()
        rig.directory.mirrors["orders"].partitions[0].leading = False
        asked = [{"name": "orders", "partitions": [{"partition_index": 0, "offset": 5}]}]
        answer = await call(client, "delete_records", {"topics": asked, "timeout": 1000})
        assert int(answer.topics[0].partitions[0].error_code) == 0
        assert rig.target.counts["delete_records"] == 1


def topic_rights(bits: int) -> Any:
    async def handle(broker: Any, request: Any) -> Mapping[str, object]:
        from tests.fakes import metadata

        fields = dict(await metadata.handle(broker, request))
        fields["topics"] = [
            {**topic, "topic_authorized_operations": bits}
            for topic in fields["topics"]  # type: ignore[attr-defined]
        ]
        return fields

    return handle


async def test_who_may_not_delete_is_told_so() -> None:
    async with rig_of(metadata=topic_rights(1 << 8)) as rig:
        client = await rig.client()
        asked = [{"name": "orders", "partitions": [{"partition_index": 0, "offset": 5}]}]
        answer = await call(client, "delete_records", {"topics": asked, "timeout": 1000})
        assert int(answer.topics[0].partitions[0].error_code) == 29
        asked = [{"name": "orders", "partition_indexes": [0]}]
        answer = await call(client, "describe_producers", {"topics": asked})
        assert int(answer.topics[0].partitions[0].error_code) == 29


async def test_a_mirror_has_no_producers_at_the_target() -> None:
    async with rig_of() as rig:
        client = await rig.client()
        asked = [{"name": "orders", "partition_indexes": [0, 1]}]
        answer = await call(client, "describe_producers", {"topics": asked})
        parts = answer.topics[0].partitions
        assert [(one.partition_index, int(one.error_code), one.active_producers) for one in parts] == [
            (0, 0, ()),
            (1, 0, ()),
        ]


@pytest.mark.parametrize("api", ["share_fetch", "share_acknowledge"])
async def test_share_groups_get_an_error_that_their_client_shows(api: str) -> None:
    async with rig_of() as rig:
        client = await rig.client()
        topic_id = rig.directory.mirrors["orders"].topic_id
        asked: dict[str, Any] = {
            "group_id": "g",
            "member_id": "m",
            "share_session_epoch": 0,
            "topics": [{"topic_id": topic_id, "partitions": [{"partition_index": 1}]}],
        }
        answer = await call(client, api, asked)
        (part,) = answer.responses[0].partitions
        assert (int(answer.error_code), int(part.error_code)) == (0, 44)
        assert part.error_message == NO_SHARE_GROUPS
        # The next one of the session names no partition; the client has to name them all again.
        answer = await call(client, api, {**asked, "share_session_epoch": 1, "topics": []})
        assert int(answer.error_code) == 122
        # Once it is promoted, the client is sent to who leads it.
        rig.directory.mirrors["orders"].partitions[1].leading = False
        answer = await call(client, api, asked)
        assert int(answer.responses[0].partitions[0].error_code) == 6
        answer = await call(client, api, {**asked, "share_session_epoch": -1})
        assert (int(answer.error_code), answer.responses) == (0, ())


async def test_what_is_for_controllers_ends_the_connection() -> None:
    async with rig_of() as rig:
        client = await rig.client()
        with pytest.raises(ConnectionLost):
            await call(client, "allocate_producer_ids", {"broker_id": 1, "broker_epoch": 1})
        assert not rig.target.counts["allocate_producer_ids"]
        await asyncio.wait_for(client.closed_event.wait(), 25)


async def test_a_broker_that_says_nothing_does_not_hold_the_client_for_ever() -> None:
    """A probe of ours is in no one's time but the broker's: the client's own request, as any that is passed on."""
    limits = RouterLimits(upstream_timeout=0.2)

    async def silent(_broker: Any, _request: Any) -> Mapping[str, object]:
        await asyncio.sleep(30)
        return {}

    async with rig_of(limits, describe_cluster=silent) as rig:
        client = await rig.client()
        with pytest.raises(ConnectionLost):
            await call(client, "describe_log_dirs", {"topics": None})


async def test_a_version_that_was_not_named_is_a_real_brokers_to_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Clients that never ask for versions; a target of 3.9 has DescribeConfigs 0, which nothing here can read."""
    passed: list[int] = []
    monkeypatch.setattr(
        "router.passthrough.Upstream.forward",
        lambda _, exchange: (passed.append(exchange.header.api_key), exchange.no_reply()),
    )
    async with rig_of() as rig:
        client = await rig.client()
        keys = [apis.DESCRIBE_CONFIGS, apis.ALTER_REPLICA_LOG_DIRS, apis.SHARE_FETCH]
        for key in keys:
            frame = key.to_bytes(2, "big") + bytes(2) + key.to_bytes(4, "big") + b"\0\0" + b"\0" * 8
            client.channel.send(key, [len(frame).to_bytes(4, "big"), frame], lambda _: None)
        await eventually(lambda: passed == keys)
