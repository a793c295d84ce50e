"""Both ends of a control connection prove that they know the shared secret, without sending it.

    connector -> acceptor   {"hello": TAG, "nonce": a}
    acceptor  -> connector  {"hello": TAG, "nonce": b}
    connector -> acceptor   {"proof": HMAC-SHA256(secret, TAG, "connector", a, b)}
    acceptor  -> connector  {"proof": HMAC-SHA256(secret, TAG, "acceptor", a, b)}

The connector proves first, so a stranger learns nothing to try secrets against offline. Each nonce is fresh
from the end that checks: nothing recorded can be played again. The role is in the proof: nothing can be sent back to
who said it. The tag is in it too: a proof made for another purpose or version is none here. An end that refuses says why,
{"refused": text}, before it closes.

This proves the peer when the connection opens, not that later messages are unaltered: over a network that is not
trusted, use TLS as well.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import Final, Protocol

from fleet.channel import ChannelClosed, Message

TAG: Final = "kafka-linker control 1"
CONNECTOR: Final = "connector"
ACCEPTOR: Final = "acceptor"
_NONCE: Final = 32


class NotTrusted(ChannelClosed):
    """The other side did not prove that it knows the shared secret, or does not believe that we do."""


class Talk(Protocol):
    """A connection before it is a channel."""

    @property
    def peer(self) -> str: ...

    def send(self, message: Message) -> None: ...

    async def receive(self) -> Message: ...


def proof(secret: bytes, role: str, of_connector: bytes, of_acceptor: bytes) -> str:
    """Hexadecimal. Nonces have one length, and no tag or role holds a zero byte: fields cannot be shifted."""
    said = b"\0".join((TAG.encode(), role.encode(), of_connector + of_acceptor))
    return hmac.new(secret, said, hashlib.sha256).hexdigest()


async def connecting(talk: Talk, secret: bytes) -> None:
    """The end that opened the connection. NotTrusted; ChannelClosed as `receive` raises it."""
    mine = secrets.token_bytes(_NONCE)
    talk.send({"hello": TAG, "nonce": mine.hex()})
    theirs = _nonce(talk, await talk.receive())
    talk.send({"proof": proof(secret, CONNECTOR, mine, theirs)})
    _check(talk, await talk.receive(), proof(secret, ACCEPTOR, mine, theirs))


async def accepting(talk: Talk, secret: bytes) -> None:
    """The end that was connected to."""
    try:
        theirs = _nonce(talk, await talk.receive())
        mine = secrets.token_bytes(_NONCE)
        talk.send({"hello": TAG, "nonce": mine.hex()})
        _check(talk, await talk.receive(), proof(secret, CONNECTOR, theirs, mine))
    except NotTrusted as error:
        talk.send({"refused": error.why if isinstance(error, _Refusal) else "not trusted"})
        raise
    talk.send({"proof": proof(secret, ACCEPTOR, theirs, mine)})


class _Refusal(NotTrusted):
    """Our refusal, with the text for the other side."""

    def __init__(self, talk: Talk, ours: str, why: str) -> None:
        super().__init__(f"{talk.peer} {ours}")
        self.why = why


def _nonce(talk: Talk, message: Message) -> bytes:
    _refused(talk, message)
    if message.get("hello") != TAG:
        raise _Refusal(talk, f"does not speak {TAG!r}", f"{TAG!r} is spoken here")
    text = message.get("nonce")
    try:
        nonce = bytes.fromhex(text) if isinstance(text, str) else b""
    except ValueError:
        nonce = b""
    if len(nonce) != _NONCE:
        raise _Refusal(talk, "sent no nonce", f"a nonce has {_NONCE} bytes")
    return nonce


def _check(talk: Talk, message: Message, expected: str) -> None:
    _refused(talk, message)
    found = message.get("proof")
    # bytes, because text that is not ASCII would make compare_digest raise
    if not isinstance(found, str) or not hmac.compare_digest(
        found.encode("utf-8", "replace"), expected.encode()
    ):
        raise _Refusal(
            talk,
            "does not know the shared secret (control.secret must be the same on every sidecar)",
            "the shared secret is another one (control.secret must be the same on every sidecar)",
        )


def _refused(talk: Talk, message: Message) -> None:
    if "refused" in message:
        # A stranger's words: short and without control characters.
        raise NotTrusted(f"{talk.peer} refused this sidecar: {ascii(message['refused'])[:200]}")
