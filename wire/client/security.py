"""TLS and SASL settings of connections and listeners, from Kafka's own property names. PEM only.

TLS contexts are built and credentials are kept only here.
"""

from __future__ import annotations

import re
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from wire.errors import InvalidSecurityConfig

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")

_JAAS_OPTION = re.compile(
    r"""([A-Za-z][\w.]*)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;"']+))"""
)
_JKS_MAGIC = b"\xfe\xed\xfe\xed"


@dataclass(frozen=True, slots=True)
class SaslCredentials:
    """The credentials of a client. The password is never shown."""

    mechanism: str
    username: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class TlsMaterial:
    """Certificates and keys as PEM text. The key is never shown."""

    trust: str | None = None
    chain: str | None = field(default=None, repr=False)
    key: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)

    @classmethod
    def from_properties(cls, props: Mapping[str, str]) -> TlsMaterial:
        trust = _pem(props, "ssl.truststore.certificates", "ssl.truststore")
        chain = props.get("ssl.keystore.certificate.chain")
        key = props.get("ssl.keystore.key")
        if (chain is None) != (key is None):
            raise InvalidSecurityConfig("ssl.keystore.certificate.chain and ssl.keystore.key belong together")
        if chain is None:
            # one PEM file with the private key and its chain, as Kafka wants it
            chain = key = _pem(props, None, "ssl.keystore")
        return cls(trust, chain, key, props.get("ssl.key.password"))

    def load_into(self, context: ssl.SSLContext) -> None:
        try:
            if self.trust is not None:
                context.load_verify_locations(cadata=self.trust)
                # Each certificate of a truststore is one to trust, as in Java: that of an issuing CA, without its root, too.
                context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            if self.chain is not None and self.key is not None:
                self._load_chain(context)
        except (ssl.SSLError, ValueError) as error:
            raise InvalidSecurityConfig(f"the TLS certificates cannot be used: {error}") from error

    def _load_chain(self, context: ssl.SSLContext) -> None:
        # Python's ssl reads keys only from files; this one is private (0600) and gone before we return.
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
            file.write(f"{self.chain}\n" if self.chain == self.key else f"{self.key}\n{self.chain}\n")
            file.flush()
            # An empty callback result instead of None: OpenSSL would otherwise ask on the terminal.
            context.load_cert_chain(file.name, password=self.key_password or "")


@dataclass(frozen=True, slots=True)
class ClientSecurity:
    """How we connect to a cluster."""

    protocol: str = "PLAINTEXT"
    sasl: SaslCredentials | None = None
    tls: TlsMaterial | None = None
    _context: ssl.SSLContext | None = field(default=None, repr=False, compare=False)

    @classmethod
    def plaintext(cls) -> ClientSecurity:
        return cls()

    @classmethod
    def from_properties(cls, props: Mapping[str, str]) -> ClientSecurity:
        """From Kafka's client properties; other properties are ignored."""
        protocol = _protocol(props.get("security.protocol", "PLAINTEXT"))
        sasl = _sasl(props) if protocol.startswith("SASL") else None
        if not protocol.endswith("SSL"):
            return cls(protocol, sasl)
        tls = TlsMaterial.from_properties(props)
        algorithm = props.get("ssl.endpoint.identification.algorithm", "https").strip().lower()
        if algorithm not in ("https", ""):
            raise InvalidSecurityConfig(
                f"ssl.endpoint.identification.algorithm={algorithm}: only https or empty is known"
            )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # verifies peer and host name
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if tls.trust is None:
            context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        context.check_hostname = algorithm == "https"
        tls.load_into(context)
        return cls(protocol, sasl, tls, context)

    def ssl_context(self) -> ssl.SSLContext | None:
        """None when the connection is not encrypted."""
        return self._context


@dataclass(frozen=True, slots=True)
class ListenerSecurity:
    """How clients and brokers connect to us. Where it is by SASL, the router lets a real broker authenticate them."""

    protocol: str = "PLAINTEXT"
    tls: TlsMaterial | None = None
    _context: ssl.SSLContext | None = field(default=None, repr=False, compare=False)

    @classmethod
    def from_properties(cls, props: Mapping[str, str]) -> ListenerSecurity:
        """From Kafka's broker-side ssl.* names and security.protocol."""
        protocol = _protocol(props.get("security.protocol", "PLAINTEXT"))
        if not protocol.endswith("SSL"):
            return cls(protocol)
        tls = TlsMaterial.from_properties(props)
        if tls.chain is None:
            raise InvalidSecurityConfig(
                f"a {protocol} listener needs ssl.keystore.location, or "
                "ssl.keystore.key with ssl.keystore.certificate.chain"
            )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        tls.load_into(context)
        auth = props.get("ssl.client.auth", "none").strip().lower()
        if auth not in ("none", "requested", "required"):
            raise InvalidSecurityConfig(f"ssl.client.auth={auth}: none, requested or required is known")
        if auth != "none" and tls.trust is None:
            raise InvalidSecurityConfig(f"ssl.client.auth={auth} needs ssl.truststore.location")
        context.verify_mode = {
            "none": ssl.CERT_NONE,
            "requested": ssl.CERT_OPTIONAL,
            "required": ssl.CERT_REQUIRED,
        }[auth]
        return cls(protocol, tls, context)

    def ssl_context(self) -> ssl.SSLContext | None:
        return self._context


def _protocol(value: str) -> str:
    protocol = value.strip().upper()
    if protocol not in PROTOCOLS:
        raise InvalidSecurityConfig(f"security.protocol={value}: one of {', '.join(PROTOCOLS)} is known")
    return protocol


def _sasl(props: Mapping[str, str]) -> SaslCredentials:
    # Kafka's default is GSSAPI, which is not supported, so the mechanism has to be given.
    mechanism = props.get("sasl.mechanism", "").strip().upper()
    if mechanism not in MECHANISMS:
        raise InvalidSecurityConfig(
            f"sasl.mechanism={mechanism or '(not given)'}: one of {', '.join(MECHANISMS)} is known"
        )
    username = props.get("sasl.username")
    password = props.get("sasl.password")
    jaas = props.get("sasl.jaas.config")
    if jaas is not None:
        options = parse_jaas(jaas)
        username, password = options.get("username", username), options.get("password", password)
    if username is None or password is None:
        raise InvalidSecurityConfig(
            f"{mechanism} needs username and password in sasl.jaas.config, or sasl.username and sasl.password"
        )
    return SaslCredentials(mechanism, username, password)


def parse_jaas(text: str) -> dict[str, str]:
    """The options of a one-module JAAS line, such as `...PlainLoginModule required username="u"
    password="p";`.
    """
    options = {}
    for name, double, single, bare in _JAAS_OPTION.findall(text):
        options[name] = re.sub(r"\\(.)", r"\1", double or single) if double or single else bare
    return options


def _pem(props: Mapping[str, str], inline: str | None, store: str) -> str | None:
    """PEM text given inline or in the file that `<store>.location` names."""
    if inline is not None and (text := props.get(inline)):
        return text
    location = props.get(f"{store}.location")
    if not location:
        return None
    name = f"{store}.location={location}"
    try:
        raw = Path(location).read_bytes()
    except OSError as error:
        raise InvalidSecurityConfig(f"{name}: {error.strerror or error}") from error
    kind = props.get(f"{store}.type", "").strip().upper()
    if b"-----BEGIN " not in raw or kind in ("JKS", "PKCS12"):
        raise InvalidSecurityConfig(_not_pem(name, location, kind, raw))
    return raw.decode("utf-8", errors="strict")


def _not_pem(name: str, location: str, kind: str, raw: bytes) -> str:
    if kind == "JKS" or (not kind and raw.startswith(_JKS_MAGIC)):
        return (
            f"{name} is a JKS store and only PEM is read; convert it: "
            f"keytool -importkeystore -srckeystore {location} -destkeystore store.p12 "
            "-deststoretype PKCS12 && "
            "openssl pkcs12 -in store.p12 -nodes -out store.pem"
        )
    if kind == "PKCS12" or raw[:1] == b"\x30":
        return (
            f"{name} is a PKCS12 store and only PEM is read; convert it: "
            f"openssl pkcs12 -in {location} -nodes -out store.pem"
        )
    return f"{name} holds no PEM block"
