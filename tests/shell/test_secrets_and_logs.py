"""References to secrets, and that secrets appear neither in answers nor in the log."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from linker.process.logs import configure_logging
from wire.client.properties import (
    CLIENT_PROPERTIES,
    PropertyError,
    check_client_properties,
    parse_bootstrap_servers,
)
from wire.client.secrets import (
    HIDDEN,
    SecretError,
    hiding_values,
    redact,
    redact_properties,
    refuse_literal_secrets,
    resolve,
    resolve_properties,
)
from wire.client.security import ClientSecurity
from wire.errors import InvalidSecurityConfig, LinkerError

JAAS = 'o.a.k.PlainLoginModule required username="me" password=%s;'


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield io.StringIO()
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def test_references(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("from file\n")
    assert resolve("a${env:X}b", key="k", environ={"X": "1"}) == "a1b"
    assert resolve(f"${{file:{path}}}", key="k", environ={}) == "from file"
    # What a reference stands for is taken as it is: a secret may well contain ${...}.
    assert resolve("${env:X}", key="k", environ={"X": "${env:Y}"}) == "${env:Y}"
    assert resolve_properties({"k": "plain"}, environ={}) == {"k": "plain"}


@pytest.mark.parametrize(
    "value",
    ["${env:NONE}", "${file:relative}", "${file:/nonexistent}", "${file:/}", "${file:/dev/zero}", "${x:y}"],
)
def test_bad_references_name_the_key(value: str) -> None:
    with pytest.raises(SecretError, match=r"^sasl\.password: "):
        resolve(value, key="sasl.password", environ={})


@pytest.mark.parametrize("key", sorted(CLIENT_PROPERTIES | {"sasl.mechanism;SASL_SSL"}))
def test_what_a_reference_stands_for_is_in_no_error(
    stream: io.StringIO, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """Whatever checks or uses it; a property that comes later is in here too."""
    key, _, protocol = key.partition(";")
    monkeypatch.setenv("X", "hunter2")
    configure_logging("debug", "console", stream)
    properties = {
        "bootstrap.servers": "h:1",
        "security.protocol": protocol or ("SASL_SSL" if "sasl" in key else "SSL"),
        "sasl.mechanism": "PLAIN",
        key: "${env:X}",
    }
    if key == "ssl.keystore.key":
        properties["ssl.keystore.certificate.chain"] = "${env:X}"
    resolved = resolve_properties(properties)
    for use in (check_client_properties, ClientSecurity.from_properties):
        try:
            with hiding_values(properties):
                use(resolved)
        except LinkerError as error:
            logging.getLogger("x").exception("failed")
            assert "hunter2" not in str(error).lower()
    assert "hunter2" not in stream.getvalue().lower()


@pytest.mark.parametrize(
    "key", ["security.protocol", "bootstrap.servers", "sasl.mechanism", "ssl.truststore.location"]
)
def test_a_value_by_reference_that_cannot_be_used_is_named_by_its_key(key: str) -> None:
    properties = {
        "bootstrap.servers": "h:1",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "me",
        "sasl.password": "${env:PASSWORD}",
        key: "x${env:X}",
    }
    resolved = resolve_properties(properties, environ={"X": "hunter2", "PASSWORD": "p"})
    with pytest.raises(SecretError) as caught, hiding_values(properties):
        parse_bootstrap_servers(resolved["bootstrap.servers"])
        ClientSecurity.from_properties(resolved)
    assert str(caught.value).startswith(f"{key}: the value that its reference stands for cannot be used")
    assert caught.value.__suppress_context__


def test_what_is_no_reference_is_quoted_as_before() -> None:
    by_reference = {"sasl.password": "${env:X}", "client.id": "${env:X}"}
    with (
        pytest.raises(InvalidSecurityConfig, match="PLAIN needs username and password"),
        hiding_values(by_reference),
    ):
        ClientSecurity.from_properties(
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.password": "p"}
        )
    with pytest.raises(PropertyError, match=r"security\.protocol is TLS"), hiding_values(by_reference):
        check_client_properties({"bootstrap.servers": "h:1", "security.protocol": "TLS"})
    with pytest.raises(SecretError, match="NONE is not set"), hiding_values({"k": "${env:NONE}"}):
        resolve_properties({"k": "${env:NONE}"}, environ={})


def test_redaction() -> None:
    shown = redact_properties(
        {
            "bootstrap.servers": "a:1",
            "sasl.mechanism": "PLAIN",
            "sasl.password": "hunter2",
            "ssl.key.password": "${env:K}",
            "ssl.keystore.key": "-----BEGIN",
            "ssl.keystore.location": "/k.pem",
            "sasl.jaas.config": JAAS % '"hunter2"',
        }
    )
    assert shown["sasl.password"] == shown["ssl.keystore.key"] == HIDDEN
    assert shown["ssl.key.password"] == "${env:K}"
    assert (shown["bootstrap.servers"], shown["ssl.keystore.location"]) == ("a:1", "/k.pem")
    assert "hunter2" not in str(shown)
    assert 'username="me"' in shown["sasl.jaas.config"]


def test_literal_secrets_are_not_stored() -> None:
    refuse_literal_secrets({"sasl.jaas.config": JAAS % '"${env:P}"', "sasl.password": "${file:/p}"})
    for literal in (JAAS % '"p"', JAAS % "'p'", JAAS % "p", JAAS % '"p${env:P}"', "garbage p"):
        with pytest.raises(SecretError, match="in clear"):
            refuse_literal_secrets({"sasl.jaas.config": literal})
    with pytest.raises(SecretError):
        refuse_literal_secrets({"sasl.password": "p${env:P}"})


@given(st.text(alphabet="abcdefgh0123$%&=;\"' ", min_size=6).filter(lambda text: text.strip()))
def test_no_literal_survives(secret: str) -> None:
    assert secret not in redact("sasl.password", secret)
    quoted = secret.replace('"', "").replace("'", "").strip()
    if len(quoted) >= 6:
        assert quoted not in redact("sasl.jaas.config", JAAS % f'"{quoted}"')


@pytest.mark.parametrize("style", ["json", "console"])
def test_secrets_are_not_logged(stream: io.StringIO, style: str) -> None:
    configure_logging("debug", style, stream)
    structlog.get_logger("one").info("connecting", properties={"sasl.password": "hunter2"}, token=b"hunter2")
    logging.getLogger("two").warning("from %s", "stdlib", extra={"password": "hunter2", "broker": 3})
    try:
        raise ValueError("what")
    except ValueError:
        hunter = "hunter2"
        logging.getLogger("three").exception("failed")
        assert hunter
    out = stream.getvalue()
    assert "hunter2" not in out
    for part in ("connecting", "from stdlib", "broker", "ValueError: what", "warning"):
        assert part in out
    if style == "json":
        lines = [json.loads(line) for line in out.splitlines()]
        assert [line["logger"] for line in lines] == ["one", "two", "three"]


def test_level(stream: io.StringIO) -> None:
    configure_logging("warning", "json", stream)
    logging.getLogger("x").info("no")
    structlog.get_logger("x").info("no")
    logging.getLogger("x").error("yes")
    assert json.loads(stream.getvalue())["event"] == "yes"
