"""`linker convert mm2`: what is printed is a link file, holds no secret, and leaves no key without a word."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from linker.cli.java_properties import java_properties
from linker.cli.link_file import LinkFile, parse_links
from tests.shell.conftest import Cli, Running

MM2 = r"""
# a file as the documentation of Kafka has it, and more
clusters = primary, backup, third
primary.bootstrap.servers = p1:9092,\
    p2:9092
backup.bootstrap.servers : b1:9092
primary.security.protocol = SASL_SSL
primary.sasl.mechanism = PLAIN
primary.sasl.jaas.config = org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="hunter2";
primary.ssl.truststore.location = /etc/mm2/trust.jks
primary.ssl.truststore.password = hunter2
primary.ssl.keystore.password = ${file:/etc/mm2/secrets:store}
primary.consumer.client.rack = r1
primary.consumer.max.poll.records = 500
backup.sasl.jaas.config = password="hunter2"
primary->backup.enabled = true
primary->backup.topics = orders, payments-v2, audit.log
backup->primary.enabled = false
primary->third.enabled = false
topics.blacklist = payments.*
replication.factor = 3
groups = app-.*
groups.exclude = console-.*
refresh.topics.interval.seconds = 30
sync.topic.configs.enabled = false
config.properties.exclude = min\\.insync\\.replicas, made\\.up
sync.topic.acls.interval.seconds = 7
sync.group.offsets.enabled = true
sync.group.offsets.interval.seconds = 5
replication.policy.separator = _
emit.heartbeats.interval.seconds = 5
emit.checkpoints.enabled = true
offset-syncs.topic.location = target
tasks.max = 10
quite.unknown = hunter2
"""


def converted(cli: Cli, tmp_path: Path, text: str, *more: str) -> tuple[LinkFile, str]:
    path = tmp_path / "mm2.properties"
    path.write_text(text)
    result = cli("convert", "mm2", str(path), *more)
    assert (result.code, result.err) == (0, "")
    return parse_links(result.out), result.out


def comments(text: str) -> dict[str, str]:
    lines = [line.removeprefix("# ").removeprefix("- ") for line in text.splitlines() if line.startswith("#")]
    return {key: told for key, colon, told in (line.partition(": ") for line in lines) if colon}


def test_a_dedicated_file(cli: Cli, tmp_path: Path) -> None:
    file, text = converted(cli, tmp_path, MM2)
    (link,) = file.links
    assert link.name == "primary"
    assert link.properties == {
        "bootstrap.servers": "p1:9092,p2:9092",
        "client.rack": "r1",
        "sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="u" password="${env:LINKER_LINK_PRIMARY_SASL_PASSWORD}";',
        "sasl.mechanism": "PLAIN",
        "security.protocol": "SASL_SSL",
        "ssl.keystore.password": "${env:LINKER_LINK_PRIMARY_SSL_KEYSTORE_PASSWORD}",
        "ssl.truststore.location": "/etc/mm2/trust.jks",
        "ssl.truststore.password": "${env:LINKER_LINK_PRIMARY_SSL_TRUSTSTORE_PASSWORD}",
    }
    assert [(one.topic, one.replication_factor) for one in link.mirrors] == [("orders", 3), ("audit.log", 3)]
    assert link.options.model_dump(exclude_defaults=True) == {
        "topic_config_sync": "off",
        "topic_config_exclude": "min.insync.replicas",
        "acl_sync": "follow",
        "acl_resources": "topic",
        "acl_sync_interval_ms": 7000,
        "groups_include": "app-.*",
        "groups_exclude": "console-.*",
        "groups_sync_interval_ms": 5000,
        "topics_refresh_interval_ms": 30000,
    }
    told = comments(text)
    assert "LINKER_LINK_PRIMARY_SASL_PASSWORD" in told["primary.sasl.jaas.config"]
    assert "PEM" in told["primary.ssl.truststore.location"]
    assert "primary.orders" in told["replication.policy.class (not set)"]
    assert "the option prefix: primary. has such names" in told["replication.policy.class (not set)"]
    assert "made.up" in told["config.properties.exclude"]
    assert told["quite.unknown"] == "no key that is known here"


def test_heartbeats_only_if_the_file_asks_for_them(cli: Cli, tmp_path: Path) -> None:
    for said, topic in (
        ("", ""),
        ("emit.heartbeats.enabled = false\n", ""),
        ("emit.heartbeats.enabled = true\n", "linker-heartbeats"),
    ):
        file, text = converted(cli, tmp_path, MM2 + said)
        options = file.links[0].options
        assert (options.heartbeat_topic, options.heartbeat_interval_ms) == (topic, 5000)
    assert "cluster id of the source" in comments(text)["emit.heartbeats.enabled"]
    changed = MM2.replace("heartbeats.interval.seconds = 5", "heartbeats.interval.seconds = 7")
    file, _ = converted(cli, tmp_path, changed + "emit.heartbeats.enabled = true\n")
    assert file.links[0].options.heartbeat_interval_ms == 7000


def test_no_secret_is_printed_and_every_key_is_accounted_for(cli: Cli, tmp_path: Path) -> None:
    _, text = converted(cli, tmp_path, MM2)
    assert "hunter2" not in text
    assert "/etc/mm2/secrets" not in text
    silent = {
        "primary.bootstrap.servers",
        "primary.security.protocol",
        "primary.sasl.mechanism",
        "primary.consumer.client.rack",
        "primary->backup.enabled",
        "topics.blacklist",
        "replication.factor",
        "groups",
        "groups.exclude",
        "refresh.topics.interval.seconds",
        "sync.topic.acls.interval.seconds",
        "sync.group.offsets.enabled",
        "sync.group.offsets.interval.seconds",
    }
    assert set(java_properties(MM2)) - set(comments(text)) == silent


def test_the_printed_file_is_taken_by_apply(cli: Cli, api: Running, tmp_path: Path) -> None:
    _, text = converted(cli, tmp_path, MM2.replace("audit.log", "empty"))
    path = tmp_path / "links.yaml"
    path.write_text(text)
    planned = cli("apply", "-f", str(path), "--dry-run")
    assert (planned.code, planned.err) == (3, "")
    assert cli("apply", "-f", str(path)).code == 0
    assert sorted(api.service.mirrors) == [("primary", "empty"), ("primary", "orders")]


def test_patterns(cli: Cli, tmp_path: Path) -> None:
    text = (
        "clusters=a,b\na.bootstrap.servers=x:1\nb.bootstrap.servers=y:1\na->b.enabled=true\na->b.topics=ord.*, pay\n"
        "sync.topic.acls.enabled=false\nemit.checkpoints.enabled=false\n"
    )
    file, _ = converted(cli, tmp_path, text, "--link", "east")
    (link,) = file.links
    assert (link.name, link.mirrors) == ("east", [])
    wanted = {
        "groups_include": "",
        "topics_include": "ord.*,pay",
        "topics_exclude": r".*[\-\.]internal,.*\.replica,__.*",
    }
    assert link.options.model_dump(exclude_defaults=True) == wanted


def test_a_connector_in_its_json(cli: Cli, tmp_path: Path) -> None:
    config = {
        "connector.class": "org.apache.kafka.connect.mirror.MirrorSourceConnector",
        "source.cluster.alias": "east 1",
        "target.cluster.alias": "west",
        "source.cluster.bootstrap.servers": "e:9092",
        "source.cluster.sasl.password": "hunter2",
        "target.cluster.bootstrap.servers": "w:9092",
        "topics": "orders",
        "replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
    }
    file, text = converted(cli, tmp_path, json.dumps({"name": "mm", "config": config}))
    (link,) = file.links
    assert link.name == "east-1"
    assert link.properties["sasl.password"] == "${env:LINKER_LINK_EAST_1_SASL_PASSWORD}"
    assert [one.topic for one in link.mirrors] == ["orders"]
    assert comments(text)["replication.policy.class"] == "names stay here, too"
    assert "hunter2" not in text


def test_several_flows(cli: Cli, tmp_path: Path) -> None:
    text = "clusters=a,b,c\n" + "".join(
        f"{one}.bootstrap.servers={one}:1\n{one}->c.enabled=true\n" for one in ("a", "b")
    )
    file, _ = converted(cli, tmp_path, text)
    assert [one.name for one in file.links] == ["a", "b"]
    assert cli("convert", "mm2", str(tmp_path / "mm2.properties"), "--link", "x").code == 2
    both = text + "c.bootstrap.servers=c:1\nc->a.enabled=true\n"
    path = tmp_path / "mm2.properties"
    path.write_text(both)
    assert "give --target" in cli("convert", "mm2", str(path)).err
    file, printed = converted(cli, tmp_path, both, "--target", "a")
    assert [one.name for one in file.links] == ["c"]
    assert "one direction" in comments(printed)["a->c.enabled"]


WRONG = {
    "a=b\n": "these are no properties of MirrorMaker 2: neither clusters nor source.cluster.bootstrap.servers is there",
    "clusters=a,b\n": "no flow is enabled",
    "clusters=a,b\na->b.enabled=true\n": "a.bootstrap.servers is missing",
    "clusters=a,b\na->b.enabled=true\na.bootstrap.servers=nowhere\n": "bootstrap.servers: 'nowhere' is not host:port",
}


@pytest.mark.parametrize("text", WRONG)
def test_one_line_for_a_file_that_cannot_be_used(cli: Cli, tmp_path: Path, text: str) -> None:
    path = tmp_path / "mm2.properties"
    path.write_text(text)
    result = cli("convert", "mm2", str(path))
    assert (result.code, result.out, result.err) == (2, "", f"linker: {path}: {WRONG[text]}\n")


def test_properties_as_java_reads_them() -> None:
    text = "a = 1\n  b:2\nc 3\n! no\n# no\\\nd=x\\\n   y\\\\\ne\\ f\\==\\u0041\\t.\na=4\nlast=\\"
    assert java_properties(text) == {"a": "4", "b": "2", "c": "3", "d": "xy\\", "e f=": "A\t.", "last": ""}
