"""The bounds of a listener and of each of its connections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class ListenerInfo(NamedTuple):
    """A listener's name in the target cluster and the protocol on it."""

    name: str
    security_protocol: str


@dataclass(frozen=True, slots=True)
class ListenerLimits:
    """Bounds of a listener and of each of its connections."""

    max_frame: int = 110 * 1024 * 1024
    #: On SASL listeners, until the peer has logged in, because requests of strangers take memory too. Kafka's own limit
    #: (sasl.server.max.receive.size) is 512 KiB; Kerberos tokens of users with many groups take tens of KiB.
    max_frame_before_login: int = 64 * 1024
    #: A connection without a request, or on SASL listeners without a login, is closed after this time.
    stranger_timeout: float = 30.0
    max_pipelined: int = 32
    write_high_water: int = 4 * 1024 * 1024
    #: A connection with no open request is closed after this time without a whole request. So is a connection that is owed
    #: more than write_high_water and has read nothing of it for as long.
    idle_timeout: float = 600.0
    tls_handshake_timeout: float = 15.0
    #: Of the whole listener, TLS handshakes included. A connection beyond this is closed at once.
    max_connections: int = 10_000
    #: From one address. Many clients may share a gateway, but one host must not keep out all others.
    max_per_address: int = 5_000
    #: Of max_connections, reserved for addresses from which brokers of the target have connected.
    kept_for_brokers: int = 200
    #: Concurrent TLS handshakes of the whole listener. Further peers wait to be accepted.
    max_handshakes: int = 256
    #: While other peers wait, a handshake that takes longer than this is given up. A handshake needs milliseconds here and
    #: a round trip or two, and a silent peer must not keep others out.
    handshake_patience: float = 2.0
