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
    """Bounds of one connection."""

    max_frame: int = 110 * 1024 * 1024
    #: On SASL listeners, until the handler says that the peer is known: the requests of strangers are kept, too. Kafka's own
    #: bound (sasl.server.max.receive.size) is 512 KiB; Kerberos tokens of users with many groups take tens of KiB.
    max_frame_before_login: int = 64 * 1024
    #: Who has sent no request, or on SASL listeners has not logged in, is gone by then.
    stranger_timeout: float = 30.0
    max_pipelined: int = 32
    write_high_water: int = 4 * 1024 * 1024
    #: Without a whole request for that long a connection with nothing open is closed; half a request does not
    #: count. So is one that is owed more than write_high_water and has read nothing of it for that long.
    idle_timeout: float = 600.0
    tls_handshake_timeout: float = 15.0
    #: Of the whole listener, those in their TLS handshake included; a connection beyond is closed at once.
    max_connections: int = 10_000
    #: Of those, from one address: clients behind one gateway are many, and one host is not to keep out all others.
    max_per_address: int = 5_000
    #: Of those, for the target's brokers, known by the addresses that they have come from as such.
    kept_for_brokers: int = 200
    #: TLS handshakes of the whole listener at one time; who comes then waits to be accepted.
    max_handshakes: int = 256
    #: While somebody waits, a handshake that takes longer is given up for it. A peer needs milliseconds of ours and a
    #: round trip or two; one that says nothing is not to keep others out.
    handshake_patience: float = 2.0
