"""Security from Kafka's property names; every mistake is one clear line, and no secret shows."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from tests.fakes.certs import Authority
from wire.client.security import ClientSecurity, ListenerSecurity, parse_jaas
from wire.errors import InvalidSecurityConfig

AUTHORITY = Authority()
SCRAM = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256"}


def test_plaintext_is_the_default() -> None:
    security = ClientSecurity.from_properties({"bootstrap.servers": "x:1"})
    assert security.protocol == "PLAINTEXT"
    assert security.ssl_context() is None
    assert security.sasl is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('o.a.k.PlainLoginModule required username="u" password="p";', {"username": "u", "password": "p"}),
        ("m required\n username='u'\n password=bare;", {"username": "u", "password": "bare"}),
        (r'm required username="a\"b" password="c\\d;e=f";', {"username": 'a"b', "password": r"c\d;e=f"}),
        ("", {}),
    ],
)
def test_jaas(text: str, expected: dict[str, str]) -> None:
    assert parse_jaas(text) == expected


def test_no_secret_shows() -> None:
    issued = AUTHORITY.issue("client")
    client = ClientSecurity.from_properties(
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "someone",
            "sasl.password": "hunter2",
            "ssl.truststore.certificates": AUTHORITY.pem,
            "ssl.keystore.key": issued.key,
            "ssl.keystore.certificate.chain": issued.certificate,
            "ssl.key.password": "hunter3",
        }
    )
    listener = ListenerSecurity.from_properties(
        {
            "security.protocol": "SSL",
            "ssl.keystore.key": issued.key,
            "ssl.keystore.certificate.chain": issued.certificate,
        }
    )
    for shown in (repr(client), repr(listener), str(client), f"{client.sasl}"):
        assert "hunter" not in shown
        assert "PRIVATE KEY" not in shown
    assert "someone" in repr(client)


def test_a_tls_client_checks_the_host_unless_told_otherwise() -> None:
    context = ClientSecurity.from_properties({"security.protocol": "SSL"}).ssl_context()
    assert context is not None
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED
    relaxed = ClientSecurity.from_properties(
        {"security.protocol": "ssl", "ssl.endpoint.identification.algorithm": ""}
    ).ssl_context()
    assert relaxed is not None
    assert not relaxed.check_hostname
    assert relaxed.verify_mode is ssl.CERT_REQUIRED


@pytest.mark.parametrize(
    ("props", "says"),
    [
        ({"security.protocol": "TLS"}, "security.protocol=TLS"),
        ({"security.protocol": "SASL_SSL"}, "sasl.mechanism=.not given."),
        ({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "GSSAPI"}, "GSSAPI"),
        (SCRAM, "username and password"),
        ({**SCRAM, "sasl.jaas.config": 'x required username="u";'}, "username and password"),
        ({"security.protocol": "SSL", "ssl.truststore.location": "/no/such/file"}, "/no/such/file"),
        ({"security.protocol": "SSL", "ssl.keystore.key": "k"}, "belong together"),
        ({"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "dns"}, "dns"),
        ({"security.protocol": "SSL", "ssl.truststore.certificates": "nonsense"}, "cannot be used"),
    ],
)
def test_client_mistakes(props: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidSecurityConfig, match=says) as caught:
        ClientSecurity.from_properties(props)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "kind", "says"),
    [
        (b"\xfe\xed\xfe\xed\x00\x00", "", "keytool -importkeystore"),
        (b"\xfe\xed\xfe\xed\x00\x00", "JKS", "keytool -importkeystore"),
        (b"\x30\x82\x01", "", "openssl pkcs12"),
        (b"\x30\x82\x01", "PKCS12", "openssl pkcs12"),
        (b"hello", "PEM", "no PEM block"),
    ],
)
def test_a_store_that_is_not_pem_says_how_to_convert_it(
    tmp_path: Path, content: bytes, kind: str, says: str
) -> None:
    store = tmp_path / "store"
    store.write_bytes(content)
    props = {"security.protocol": "SSL", "ssl.truststore.location": str(store)}
    if kind:
        props["ssl.truststore.type"] = kind
    with pytest.raises(InvalidSecurityConfig, match=says):
        ClientSecurity.from_properties(props)


def test_a_wrong_key_password_is_an_error_and_no_prompt() -> None:
    issued = AUTHORITY.issue("client", key_password="right")
    for password in ({}, {"ssl.key.password": "wrong"}):
        with pytest.raises(InvalidSecurityConfig):
            ClientSecurity.from_properties(
                {
                    "security.protocol": "SSL",
                    "ssl.keystore.key": issued.key,
                    "ssl.keystore.certificate.chain": issued.certificate,
                    **password,
                }
            )


@pytest.mark.parametrize(
    ("props", "says"),
    [
        ({"security.protocol": "SSL"}, "ssl.keystore.location"),
        ({"security.protocol": "SSL", "ssl.client.auth": "maybe"}, "maybe"),
        ({"security.protocol": "SSL", "ssl.client.auth": "required"}, "truststore"),
    ],
)
def test_listener_mistakes(props: dict[str, str], says: str) -> None:
    issued = AUTHORITY.issue()
    own = {"ssl.keystore.key": issued.key, "ssl.keystore.certificate.chain": issued.certificate}
    with pytest.raises(InvalidSecurityConfig, match=says):
        ListenerSecurity.from_properties({**props, **(own if "ssl.client.auth" in props else {})})


def _handshake(client: ssl.SSLContext, server: ssl.SSLContext) -> None:
    """In memory; ssl.SSLError if one of them refuses."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname="127.0.0.1"),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(10):
        for end in list(ends):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            ends.remove(end)
    assert not ends


@pytest.mark.parametrize("mutual", [False, True])
def test_the_certificate_of_an_issuing_authority_is_enough_in_a_truststore(mutual: bool) -> None:
    """Each certificate of it is one to trust, as in Java; what the root has issued beside it is not."""
    root = Authority("root")
    issuing, other = Authority("issuing", root), Authority("other", root)

    def properties(of: Authority, trusted: Authority) -> dict[str, str]:
        issued = of.issue()
        return {
            "security.protocol": "SSL",
            "ssl.truststore.certificates": trusted.pem,
            "ssl.keystore.certificate.chain": issued.certificate + of.pem,
            "ssl.keystore.key": issued.key,
        }

    auth = {"ssl.client.auth": "required" if mutual else "none"}
    server = ListenerSecurity.from_properties(properties(issuing, issuing) | auth).ssl_context()
    client = ClientSecurity.from_properties(properties(issuing, issuing)).ssl_context()
    assert client is not None and server is not None
    _handshake(client, server)
    stranger = ListenerSecurity.from_properties(properties(other, issuing) | auth).ssl_context()
    assert stranger is not None
    with pytest.raises(ssl.SSLCertVerificationError):
        _handshake(client, stranger)
