"""The way in: what a client sends until it is known to be logged in. A real broker decides; it is listened to here.

Lives here: ApiVersions, SaslHandshake, SaslAuthenticate, and the proof of a login whose mechanism is not known. Their
meaning: login.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from router import api_versions, bare_tokens
from router.client_session import ClientSession
from wire.errors import BrokerError, MalformedFrame, RequestTimedOut
from wire.frames.primitives import PARSE_ERRORS, read_string
from wire.frames.types import Buffer
from wire.schema import codec
from wire.server.listener import Exchange

SASL_AUTHENTICATE: Final = 36
_CLIENT_ID: Final = "kafka-linker-login"


def ask_api_versions(session: ClientSession, exchange: Exchange) -> None:
    version = exchange.header.api_version
    if not api_versions.known(version):
        frame = api_versions.unknown_version(exchange.header.correlation_id)
        exchange.reply([len(frame).to_bytes(4, "big"), frame])
        return

    def answered(reply: memoryview) -> None:
        frame = api_versions.restrict(version, reply)
        if not session.authenticated and _without_error(frame):
            session.login.served()
            session.note_login()
        exchange.reply([len(frame).to_bytes(4, "big"), frame])

    session.upstream.send(exchange.frame, answered)


def _without_error(frame: Buffer) -> bool:
    """Of answers that begin with their error code, behind a header without tagged fields."""
    return bytes(frame[4:6]) == b"\0\0"


def sasl_handshake(session: ClientSession, exchange: Exchange) -> None:
    try:
        mechanism, _ = read_string(exchange.frame, exchange.body_offset)
    except PARSE_ERRORS:
        raise MalformedFrame("SaslHandshake without a mechanism", peer=exchange.connection.peer) from None
    if exchange.header.api_version < 1:
        bare_tokens.handshake(session, exchange, mechanism or "")
        return

    def answered(reply: memoryview) -> None:
        if mechanism is not None and _without_error(reply):
            session.login.handshake_accepted(mechanism)
        exchange.reply([len(reply).to_bytes(4, "big"), reply])

    session.upstream.send(exchange.frame, answered)


def sasl_authenticate(session: ClientSession, exchange: Exchange) -> None:
    version = exchange.header.api_version
    if version > api_versions.SERVED[SASL_AUTHENTICATE][1]:
        raise MalformedFrame(f"SaslAuthenticate v{version} was not offered", peer=exchange.connection.peer)

    def answered(reply: memoryview) -> None:
        answer = codec.decode_response("sasl_authenticate", version, reply)
        if int(answer.error_code) == 0:
            session.login.token_accepted(answer.auth_bytes)
            session.note_login()
        exchange.reply([len(reply).to_bytes(4, "big"), reply])

    session.upstream.send(exchange.frame, answered)


def prove(session: ClientSession, exchange: Exchange, serve: Callable[[Exchange], None]) -> None:
    """The first request after a login whose mechanism is not known here: before it is looked at, the broker is asked
    something that it answers to nobody in the middle of an exchange. The client's next requests wait."""
    connection, upstream = session.connection, session.upstream
    connection.pause_reading()
    patience = session.hub.limits.upstream_timeout
    late = asyncio.get_running_loop().call_later(
        patience,
        upstream.give_up,
        RequestTimedOut(
            f"the real broker did not show within {patience:g} s that the login is done", sent=True
        ),
    )
    connection.add_close_callback(late.cancel)

    def answered(reply: memoryview) -> None:
        late.cancel()
        error = int(codec.decode_response("describe_cluster", 0, reply).error_code)
        if error:
            upstream.give_up(
                BrokerError(error, message="request before authentication", peer=connection.peer)
            )
            return
        session.login.served()
        session.note_login()
        serve(exchange)
        connection.resume_reading()

    frame = codec.encode_request(
        "describe_cluster", 0, {}, correlation_id=upstream.next_correlation_id(), client_id=_CLIENT_ID
    )
    upstream.send(memoryview(frame), answered)
