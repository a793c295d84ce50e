"""Logins of clients from before SaslAuthenticate: after SaslHandshake v0 their tokens come as they are, in frames without a
header, and so do the broker's (sarama before 1.41 by default, kaf, and whoever is as old).

Towards the broker they are put into SaslAuthenticate, which says what a broker would only show by closing the connection.
Not here: whether somebody is logged in (``login.py``).
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Final

from router.client_session import ClientSession
from router.login import KNOWN
from wire.errors import BrokerError, WireError
from wire.schema import codec
from wire.server.listener import Exchange

log = logging.getLogger(__name__)

_VERSION: Final = slice(2, 4)  # in a request's header
_WITH_TOKENS_IN_REQUESTS: Final = (1).to_bytes(2, "big")
_CLIENT_ID: Final = "kafka-linker-login"


def handshake(session: ClientSession, exchange: Exchange, mechanism: str) -> None:
    """SaslHandshake v0, which differs from v1 in what follows it."""
    if session.authenticated or mechanism not in KNOWN:
        # Of another mechanism nobody here can tell where its tokens end and requests begin.
        reason = "after the login" if session.authenticated else f"for {mechanism}"
        log.warning(
            "client %s at %s is closed: SaslHandshake v0 is not served %s; set the client's Kafka version to 1.0 or later",
            exchange.header.client_id,
            exchange.connection.peer,
            reason,
        )
        exchange.fail(WireError(f"SaslHandshake v0 {reason}", peer=exchange.connection.peer))
        return
    frame = bytearray(exchange.frame)
    frame[_VERSION] = _WITH_TOKENS_IN_REQUESTS

    def answered(reply: memoryview) -> None:
        if bytes(reply[4:6]) == b"\0\0":
            session.login.handshake_accepted(mechanism)
            session.connection.take_bare(partial(_token, session))
        exchange.reply([len(reply).to_bytes(4, "big"), reply])

    session.upstream.send(memoryview(frame), answered)


def _token(session: ClientSession, exchange: Exchange) -> None:
    upstream, connection = session.upstream, session.connection
    frame = codec.encode_request(
        "sasl_authenticate",
        0,
        {"auth_bytes": bytes(exchange.frame)},
        correlation_id=upstream.next_correlation_id(),
        client_id=_CLIENT_ID,
    )

    def answered(reply: memoryview) -> None:
        answer = codec.decode_response("sasl_authenticate", 0, reply)
        if code := int(answer.error_code):
            # As a broker does it: there is no answer that such a client would understand.
            exchange.fail(BrokerError(code, message=answer.error_message, peer=connection.peer))
            return
        session.login.token_accepted(answer.auth_bytes)
        if session.login.done:
            connection.take_bare(None)
            session.note_login()
        token = bytes(answer.auth_bytes)
        exchange.reply([len(token).to_bytes(4, "big"), token])

    upstream.send(memoryview(frame), answered)
