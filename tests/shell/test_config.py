"""The configuration file: what it means, and one clear line for everything that is wrong with one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from linker.config.file import load_config, parse_config
from linker.config.listeners import ClientListener
from linker.config.model import Config, ConfigError
from wire.client.properties import PropertyError, parse_bootstrap_servers, parse_listener
from wire.client.secrets import SecretError
from wire.client.security import ClientSecurity

BASE = Path("/etc/linker")
EXAMPLE = Path(__file__).parents[2] / "deploy" / "linker.yaml"

MINIMAL = """
sidecar:
  broker.id: 900
  listeners: ["PLAINTEXT://127.0.0.1:19092"]
target:
  bootstrap.servers: "one:9092,[::1]:9093"
"""


def parse(text: str, **environ: str) -> Config:
    return parse_config(text, base=BASE, environ=environ)


def test_minimal() -> None:
    config = parse(MINIMAL)
    assert config.sidecar.broker_id == 900
    assert config.sidecar.client_listeners() == [
        ClientListener("PLAINTEXT", "127.0.0.1", 19092, "127.0.0.1", 19092, "PLAINTEXT")
    ]
    assert config.target.bootstrap_servers() == [("one", 9092), ("::1", 9093)]
    assert config.target.controller_bootstrap_servers() is None
    assert config.store_path == BASE / "state" / "linker.db"
    assert config.sidecar.admin_address() == ("127.0.0.1", 8080)
    assert config.sidecar.memory_bytes == 134217728


def test_everything() -> None:
    config = parse(
        """
sidecar:
  broker.id: 900
  listeners: INTERNAL://:19092,CLIENTS://0.0.0.0:19093
  advertised.listeners: INTERNAL://in.example:19092,CLIENTS://out.example:29093
  listener.security.protocol.map: INTERNAL:PLAINTEXT,CLIENTS:SASL_SSL
  ssl.keystore.location: /common.pem
  ssl.client.auth: none
  listener.name.clients.ssl.keystore.location: /clients.pem
  listener.name.clients.ssl.key.password: ${env:KEY}
  rack: a
  state.dir: /var/lib/linker
  admin.listen: 0.0.0.0:8080
  admin.token: ${env:TOKEN}
  memory.bytes: 33554432
target:
  bootstrap.servers: [one:9092, two:9092]
  security.protocol: SASL_SSL
  sasl.mechanism: SCRAM-SHA-512
  sasl.username: linker
  sasl.password: ${env:PASSWORD}
  controller.quorum.bootstrap.servers: c1:9093
  controller.security.protocol: SSL
store: {type: sqlite, path: db/here.db}
log: {level: debug, format: json}
""",
        TOKEN="0123456789",
        PASSWORD="secret",
        KEY="keypass",
    )
    clients = config.sidecar.client_listeners()[1]
    assert clients == ClientListener("CLIENTS", "0.0.0.0", 19093, "out.example", 29093, "SASL_SSL")
    assert config.sidecar.listener_properties("CLIENTS") == {
        "ssl.keystore.location": "/clients.pem",
        "ssl.key.password": "keypass",
        "ssl.client.auth": "none",
    }
    assert config.sidecar.listener_properties("INTERNAL")["ssl.keystore.location"] == "/common.pem"
    assert config.target.controller_bootstrap_servers() == [("c1", 9093)]
    assert config.store_path == BASE / "db" / "here.db"
    assert config.sidecar.state_dir == Path("/var/lib/linker")
    shown = f"{config!r} {config} {config.model_dump()}"
    for secret in ("0123456789", "keypass", "'secret'"):
        assert secret not in shown


def test_a_fleet() -> None:
    fleet = (
        "sidecar: {broker.id: 900, listeners: ['PLAINTEXT://h:1'], control.listener: '0.0.0.0:9', "
        "control.advertised: 'me:9', control.secret: '${env:SECRET}', admin.listen: '0.0.0.0:8080', "
        "admin.advertised: 'me:80', admin.token: 12345678a}\ntarget: {bootstrap.servers: 'x:1'}\n"
    )
    config = parse(fleet + "store: {type: topic}\nfleet: {link.brokers: 2}", SECRET="0123456789abcdef")
    assert (config.store.topic, config.store.seat_timeout_ms) == ("__kafka_linker_state", 6000)
    assert config.sidecar.control_address() == ("0.0.0.0", 9)
    assert config.sidecar.control_advertised_address() == ("me", 9)
    assert config.sidecar.admin_advertised_address() == ("me", 80)
    assert (config.fleet.lease_ms, config.fleet.link_brokers) == (10_000, 2)
    assert config.sidecar.control_tls() is None
    secured = fleet.replace(
        "control.advertised",
        "control.security.protocol: SSL, ssl.keystore.location: /a.pem, "
        "listener.name.control.ssl.truststore.location: /b.pem, control.advertised",
    )
    assert parse(secured + "store: {type: topic}", SECRET="0123456789abcdef").sidecar.control_tls() == {
        "security.protocol": "SSL",
        "ssl.keystore.location": "/a.pem",
        "ssl.truststore.location": "/b.pem",
    }
    config = parse(
        fleet + "store: {type: zookeeper, connect: 'a:1,b:2/linker', session.timeout.ms: 9000, username: u, "
        "password: '${env:SECRET}', security.protocol: SSL, ssl.keystore.key: '${env:SECRET}'}",
        SECRET="0123456789abcdef",
    )
    assert (config.store.connect, config.store.session_timeout_ms) == ("a:1,b:2/linker", 9000)
    assert config.store.tls_properties() == {
        "security.protocol": "SSL",
        "ssl.keystore.key": "0123456789abcdef",
    }
    assert "0123456789abcdef" not in f"{config!r} {config} {config.model_dump()}"
    assert parse(MINIMAL).sidecar.control_address() is None


def test_secrets_are_resolved_when_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PW", "first")
    config = parse_config(
        MINIMAL + "  sasl.password: ${env:PW}\n  controller.sasl.password: x${env:PW}\n", base=BASE
    )
    monkeypatch.setenv("PW", "second")
    assert config.target.client_properties()["sasl.password"] == "second"
    assert config.target.controller_properties()["sasl.password"] == "xsecond"


@pytest.mark.parametrize(
    "key", ["bootstrap.servers", "security.protocol", "controller.quorum.bootstrap.servers"]
)
def test_what_a_reference_of_the_target_stands_for_is_not_said(key: str) -> None:
    document = yaml.safe_load(MINIMAL)
    document["target"][key] = "${env:X}"
    with pytest.raises(ConfigError) as caught:
        parse(yaml.safe_dump(document), X="hunter2")
    assert f"{key}: the value that its reference stands for cannot be used" in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("prefix", ["", "controller."])
def test_nor_is_it_when_the_target_is_reached(monkeypatch: pytest.MonkeyPatch, prefix: str) -> None:
    monkeypatch.setenv("X", "hunter2")
    more = f"  {prefix}security.protocol: SASL_SSL\n  {prefix}sasl.mechanism: ${{env:X}}\n"
    target = parse(MINIMAL + more, X="hunter2").target
    with pytest.raises(SecretError, match=r"^sasl\.mechanism: the value"), target.hiding_values():
        ClientSecurity.from_properties(target.controller_properties())


SIDECAR = (
    "sidecar: {broker.id: 900, listeners: ['PLAINTEXT://h:1']%s}\ntarget: {bootstrap.servers: 'x:1'%s}\n"
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file must hold sections"),
        ("- a", "the file must hold sections"),
        ("a: [", "not valid YAML: line 1: "),
        ("\x00", "not valid YAML"),
        ("[" * 400, "not valid YAML"),
        ("a: !!python/object:os.system x", "not valid YAML"),
        ("target: {}", "section sidecar is missing"),
        ("sidecar: {}\ntarget: {bootstrap.servers: 'x:1'}", "sidecar.broker.id: is missing"),
        ("sidecar: 5\ntarget: {bootstrap.servers: 'x:1'}", "sidecar must be a section"),
        (SIDECAR % ("", "") + "sidecar: {}", "key sidecar is given twice"),
        (SIDECAR % ("", "") + "sidcar: {}", "unknown key sidcar; did you mean sidecar?"),
        (SIDECAR % ("", "") + "store: {type: etcd}", "store.type: "),
        (SIDECAR % ("", "") + "store: {type: zookeeper}", "store.connect is missing"),
        (SIDECAR % ("", "") + "store: {type: zookeeper, connect: zk}", "connect: 'zk' is not host:port"),
        (
            SIDECAR % ("", "") + "store: {type: zookeeper, connect: 'zk:1/'}",
            "connect: '/' is not an absolute path",
        ),
        (SIDECAR % ("", "") + "store: {type: zookeeper, connect: 'zk:1/a//b'}", "illegal segment"),
        (
            SIDECAR % ("", "") + "store: {type: zookeeper, connect: 'zk:1', path: a}",
            "store.path is an option of type",
        ),
        (
            SIDECAR % ("", "") + "store: {connect: 'zk:1'}",
            "store.connect is an option of type zookeeper, and type is",
        ),
        (
            SIDECAR % ("", "") + "store: {type: topic, session.timeout.ms: 5000}",
            "store.session.timeout.ms is an option",
        ),
        (
            SIDECAR % ("", "") + "store: {type: topic, ssl.truststore.location: a}",
            "needs type zookeeper with",
        ),
        (
            SIDECAR % ("", "") + "store: {type: topic, ssl.truststore.locaton: a}",
            "did you mean ssl.truststore.location?",
        ),
        (SIDECAR % ("", "") + "store: {type: topic, topic: 'a b'}", "store.topic: "),
        (SIDECAR % ("", "") + "store: {type: topic, seat.timeout.ms: 10}", "store.seat.timeout.ms: "),
        (
            SIDECAR % ("", "") + "store: {seat.timeout.ms: 6000}",
            "store.seat.timeout.ms is an option of type topic",
        ),
        (
            SIDECAR % ("", "") + "store: {type: topic}",
            "sidecar.control.listener is missing: with store.type topic",
        ),
        (
            SIDECAR % ("", "") + "store: {type: zookeeper, connect: 'zk:1', username: a}",
            "username and password belong together",
        ),
        (SIDECAR % (", control.listener: '127.0.0.1:1'", ""), "sidecar.control.listener is for a fleet"),
        (
            SIDECAR % (", control.advertised: 'a:1'", ""),
            "control.advertised is of no use without control.listener",
        ),
        (SIDECAR % (", control.secret: '0123456789abcdef'", ""), "control.secret is of no use without"),
        (
            SIDECAR % (", control.listener: '10.0.0.1:1'", ""),
            "not a loopback address, so control.secret must be set",
        ),
        (SIDECAR % (", control.listener: '0.0.0.0:1'", ""), "control.listener binds to every address"),
        (
            SIDECAR % (", control.security.protocol: SSL", ""),
            "control.security.protocol is of no use without",
        ),
        (
            SIDECAR % (", control.listener: 'h:1', control.advertised: 'h:0'", ""),
            "control.advertised must name",
        ),
        (SIDECAR % (", admin.advertised: 'a:1'", ""), "admin.advertised is of no use without control"),
        (
            SIDECAR % (", control.listener: '10.0.0.1:1', control.secret: 0123456789abcdef", ""),
            "admin.listen: 127.0.0.1 is a loopback address, but the other sidecars",
        ),
        (
            SIDECAR
            % (
                (
                    ", control.listener: '10.0.0.1:1', control.secret: 0123456789abcdef, "
                    "admin.listen: '0.0.0.0:1', admin.token: 12345678a"
                ),
                "",
            ),
            "other sidecars cannot connect to 0.0.0.0:1: give admin.advertised",
        ),
        (
            SIDECAR % (", control.listener: '127.0.0.1:1', admin.listen: '127.0.0.1:0'", ""),
            "other sidecars cannot connect to 127.0.0.1:0",
        ),
        (
            SIDECAR % (", control.listener: 'h:1', control.secret: short", ""),
            "control.secret is shorter than 16",
        ),
        (SIDECAR % (", control.listener: h", ""), "control.listener: 'h' is not host:port"),
        (SIDECAR % ("", "") + "fleet: {lease.ms: 10}", "fleet.lease.ms: "),
        (SIDECAR % ("", "") + "fleet: {lease.ms: 2000}", "fleet.lease.ms must be at least twice"),
        (SIDECAR % ("", "") + "fleet: {failure.timeout.ms: 400}", "fleet.failure.timeout.ms must be above"),
        (SIDECAR % ("", "") + "fleet: {link.broker: 2}", "did you mean link.brokers?"),
        (SIDECAR % ("", "") + "log: {level: loud}", "log.level: "),
        (SIDECAR % (", rakc: a", ""), "unknown key sidecar.rakc; did you mean rack?"),
        (SIDECAR % (", broker_id: 1", ""), "unknown key sidecar.broker_id; did you mean broker.id?"),
        (SIDECAR % (", listener_ssl: {}", ""), "unknown key sidecar.listener_ssl"),
        (SIDECAR % (", memory.bytes: 5", ""), "sidecar.memory.bytes: "),
        (SIDECAR % (", memory.bytes: lots", ""), "sidecar.memory.bytes: "),
        (SIDECAR % (", ssl.keystore.locatoin: a", ""), "did you mean ssl.keystore.location?"),
        (SIDECAR % (", listener.name.other.ssl.keystore.key: a", ""), "there is no listener OTHER"),
        (SIDECAR % (", admin.listen: '0.0.0.0:8080'", ""), "admin.token must be set"),
        (SIDECAR % (", admin.listen: 'example.org:8080'", ""), "admin.token must be set"),
        (SIDECAR % (", admin.listen: '8080'", ""), "admin.listen: '8080' is not host:port"),
        (SIDECAR % (", admin.token: short", ""), "admin.token is shorter"),
        (
            SIDECAR % (", admin.token.required: false, admin.listen: '0.0.0.0:8080'", ""),
            "admin.token must be set",
        ),
        (
            SIDECAR % (", admin.token.required: false, admin.token: 12345678a", ""),
            "admin.token.required is false, but there is an admin.token",
        ),
        (SIDECAR % (", admin.token: '${env:NONE}'", ""), "environment variable NONE is not set"),
        (SIDECAR % (", advertised.listeners: ['SSL://h:1']", ""), "advertised.listeners names SSL, but"),
        (SIDECAR % (", listener.security.protocol.map: 'PLAINTEXT:TLS'", ""), "unknown protocol TLS"),
        (
            SIDECAR.replace("PLAINTEXT://h:1", "h:1") % ("", ""),
            "'h:1' is not a listener; write NAME://host:port",
        ),
        (SIDECAR.replace("h:1'", "h:65536'") % ("", ""), "is not a listener"),
        (SIDECAR.replace("//h", "//0.0.0.0") % ("", ""), "PLAINTEXT binds to every address; name one"),
        (SIDECAR.replace("PLAINTEXT", "MINE") % ("", ""), "listener MINE has no protocol"),
        (SIDECAR.replace("['PLAINTEXT://h:1']", "[]") % ("", ""), "sidecar.listeners: "),
        (SIDECAR.replace("900", "-1") % ("", ""), "sidecar.broker.id: "),
        (SIDECAR.replace("'x:1'", "''") % ("", ""), "target: bootstrap.servers is missing"),
        (SIDECAR.replace("'x:1'", "'x'") % ("", ""), "target: bootstrap.servers: 'x' is not host:port"),
        (
            SIDECAR % ("", ", security.protocl: SSL"),
            "unknown key target.security.protocl; did you mean security.protocol?",
        ),
        (
            SIDECAR % ("", ", client.rack: a"),
            "target.client.rack is not known: the sidecar has one rack, sidecar.rack",
        ),
        (SIDECAR % ("", ", security.protocol: TLS"), "security.protocol is TLS"),
        (
            SIDECAR % ("", ", sasl.password: '${env:NONE}'"),
            "target: sasl.password: environment variable NONE",
        ),
        (SIDECAR % ("", ", sasl.password: '${file:/none}'"), "cannot read /none"),
        (SIDECAR % ("", ", sasl.password: '${vault:x}'"), "${vault:...} is not known"),
        (SIDECAR % ("", ", sasl: {password: x}"), "target.sasl must be a plain value"),
        (
            SIDECAR % ("", ", controller.quorum.bootstrap.servers: c"),
            "target.controller.quorum.bootstrap.servers: 'c'",
        ),
    ],
)
def test_one_clear_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


SOURCES = """
sources:
  east: {%s}
"""


def test_a_source_that_is_joined() -> None:
    config = parse(
        MINIMAL
        + SOURCES
        % "broker.id: 900, listeners: 'IN://:1,OUT://h:2', advertised.listeners: 'IN://a:3,OUT://b:4', "
        "listener.security.protocol.map: 'IN:PLAINTEXT,OUT:SSL', listener.name.out.ssl.keystore.location: /k, rack: r, "
        "controller.sasl.password: '${env:SECRET}', controller.quorum.bootstrap.servers: 'c:5'",
        SECRET="hidden",
    )
    east = config.sources["east"]
    assert (east.broker_id, east.rack) == (900, "r")  # ids are each cluster's own
    assert [(one.name, one.advertised_port, one.security_protocol) for one in east.client_listeners()] == [
        ("IN", 3, "PLAINTEXT"),
        ("OUT", 4, "SSL"),
    ]
    assert east.listener_properties("OUT") == {"ssl.keystore.location": "/k"}
    assert east.controller_bootstrap_servers() == [("c", 5)]
    assert "hidden" not in repr(config)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("", "sources.east.broker.id: is missing"),
        ("broker.id: 1", "sources.east.listeners: is missing"),
        ("broker.id: 1, listener: x", "unknown key sources.east.listener; did you mean listeners?"),
        (
            "broker.id: 1, listeners: 'TLS://h:1'",
            "sources.east: listener.security.protocol.map: listener TLS",
        ),
        (
            "broker.id: 1, listeners: 'PLAINTEXT://:1'",
            "sources.east.advertised.listeners: listener PLAINTEXT",
        ),
        (
            "broker.id: 1, listeners: 'PLAINTEXT://h:1', listener.name.x.ssl.keystore.location: k",
            "sources.east.listener.name.x.ssl.keystore.location: there is no listener X",
        ),
        (
            "broker.id: 1, listeners: 'PLAINTEXT://h:1', controller.ssl.key.password: '${env:NO}'",
            "sources.east: controller.ssl.key.password: environment variable NO",
        ),
        (
            "broker.id: 1, listeners: 'PLAINTEXT://h:1', controller.quorum.bootstrap.servers: c",
            "sources.east: controller.quorum.bootstrap.servers: 'c'",
        ),
        (
            "broker.id: 1, listeners: 'PLAINTEXT://127.0.0.1:19092'",
            "sources.east.listeners: PLAINTEXT and sidecar.listeners: PLAINTEXT are one address, 127.0.0.1:19092",
        ),
        (
            "broker.id: 1, listeners: 'PLAINTEXT://:8080', advertised.listeners: 'PLAINTEXT://h:1'",
            "sidecar.admin.listen and sources.east.listeners: PLAINTEXT are one address",
        ),
    ],
)
def test_one_clear_line_about_a_source(section: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(MINIMAL + SOURCES % section)
    assert message in str(caught.value)


@pytest.mark.parametrize("text", ["sources: [east]", "sources: {east: 800}", "sources: {'a b': {}}"])
def test_sources_that_are_no_sections(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^sources"):
        parse(MINIMAL + text)


def test_errors_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "linker.yaml"
    for content, message in [
        (b"\xff", "not UTF-8"),
        (b"a: 1", "unknown key a"),
        (b"#" * (1 << 21), "larger"),
    ]:
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=message) as caught:
            load_config(path)
        assert str(path) in str(caught.value)
    for missing in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(ConfigError, match="cannot read the config file"):
            load_config(missing)


@given(st.text(max_size=200))
def test_any_text_is_a_config_or_a_config_error(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert len(str(caught.value).splitlines()) == 1


ANY_VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(ANY_VALUE, st.sampled_from(["sidecar", "target", "store", "fleet", "log"]))
def test_any_value_in_a_section_is_refused_clearly(value: object, section: str) -> None:
    document = yaml.safe_load(MINIMAL)
    document[section] = value
    try:
        parse(yaml.safe_dump(document))
    except ConfigError as error:
        assert str(error)


@given(st.text(max_size=30))
def test_any_address(text: str) -> None:
    for attempt in (lambda: parse_listener(text, key="listeners"), lambda: parse_bootstrap_servers(text)):
        try:
            attempt()
        except PropertyError as error:
            assert str(error)


def test_the_example_is_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LINKER_TARGET_PASSWORD", "x")
    assert load_config(EXAMPLE).sidecar.broker_id == 900


def test_validation_section() -> None:
    text = SIDECAR % ("", "") + (
        "validation:\n  policy: warn\n  interval.ms: 5000\n  spark.master: spark://h:7077\n"
        "  spark.conf: {spark.executor.memory: 2g, spark.task.cpus: 2, spark.eventLog.enabled: true,"
        " spark.authenticate.secret: '${env:SPARK_SECRET}'}\n  evidence.dir: proofs\n"
    )
    config = parse_config(text, base=Path("/etc/linker"), environ={"SPARK_SECRET": "hush"})
    assert config.validation.policy == "warn"
    assert config.validation.max_distance == 10_000
    assert config.validation.spark_conf == {
        "spark.executor.memory": "2g",
        "spark.task.cpus": "2",
        "spark.eventLog.enabled": "true",
        "spark.authenticate.secret": "hush",
    }
    assert "hush" not in repr(config)
    assert config.evidence_dir == Path("/etc/linker/proofs")
    assert config.validator_dir == Path("/etc/linker/state/validator")
    plain = parse_config(SIDECAR % ("", ""), base=Path("/etc/linker"), environ={})
    assert (plain.validation.policy, plain.validation.spark_master) == ("require", "local[*]")
    assert plain.evidence_dir == Path("/etc/linker/state/evidence")


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("policy: maybe", "validation.policy"),
        ("max.distance: -1", "validation.max.distance"),
        ("spark.master: h:7077", "validation.spark.master"),
        ("spark.conf: {executor.memory: 2g}", "executor.memory is no property of Spark"),
        ("spark.conf: {spark.master: yarn}", "spark.master is not set here; use spark.master above"),
        ("spark.conf: [1]", "validation.spark.conf"),
        ("polciy: skip", "unknown key validation.polciy"),
    ],
)
def test_wrong_validation_sections(wrong: str, told: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)):
        parse_config(SIDECAR % ("", "") + f"validation:\n  {wrong}\n", base=Path("/x"), environ={})
