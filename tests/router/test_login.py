"""Logins as far as the real broker's answers tell: what is served, and how much may be sent, before one is done."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from router.login import Login, LoginState
from router.ports import RouterLimits
from tests.router.rig import Producer, Rig, eventually, session_of
from wire.client.connection import Connection
from wire.errors import ConnectionLost
from wire.schema import codec
from wire.server.listener import ListenerLimits
from wire.transport.gathering import gathered_writes

GOOD = b"n,,auth=Bearer secret"
BAD = b"n,,auth=Bearer guessed"
STRANGERS_MAY_SEND = ListenerLimits().max_frame_before_login
MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "OAUTHBEARER", "UNHEARD-OF"]


class Rigged(Rig):
    def __init__(self, **options: Any) -> None:
        super().__init__(protocol="SASL_PLAINTEXT", sasl_users={"alice": "secret"}, **options)
        self.target.sasl_mechanisms = MECHANISMS

    async def __aenter__(self) -> Rigged:
        await super().__aenter__()
        # Exists at the target, and is no mirror: writing to it is refused here, without asking anybody.
        self.image.topics_by_name["payroll"] = self.image.topics_by_name["orders"]
        return self

    async def handshake(self, mechanism: str) -> Connection:
        connection = await self.client()
        await connection.call("sasl_handshake", {"mechanism": mechanism}, timeout=5, version=1)
        return connection

    @property
    def largest(self) -> int:
        (connection,) = self.listener.connections
        return connection._reader._max_frame


async def token(connection: Connection, auth_bytes: bytes, version: int = 2) -> bytes:
    fields = {"auth_bytes": auth_bytes}
    answer = await connection.call("sasl_authenticate", fields, timeout=5, version=version)
    assert int(answer.error_code) == 0
    return bytes(answer.auth_bytes)


async def write(rig: Rig, connection: Connection, topic: str = "orders") -> int:
    return (await asyncio.wait_for(Producer(connection, rig, version=12).send(0, topic=topic), 25))[0].error


# What the answers mean


def steps(mechanism: str, *answers: bytes) -> list[LoginState]:
    login = Login(needed=True)
    login.handshake_accepted(mechanism)
    states = [login.state]
    for answer in answers:
        login.token_accepted(answer)
        states.append(login.state)
    return states


STRANGER, UNPROVEN, DONE = LoginState.STRANGER, LoginState.UNPROVEN, LoginState.DONE


@pytest.mark.parametrize(
    ("mechanism", "answers", "states"),
    [
        ("PLAIN", [b""], [STRANGER, DONE]),
        ("SCRAM-SHA-512", [b"r=,s=,i=", b"v="], [STRANGER, STRANGER, DONE]),
        ("OAUTHBEARER", [b""], [STRANGER, DONE]),
        ("OAUTHBEARER", [b'{"status":"invalid_token"}', b""], [STRANGER, STRANGER, DONE]),
        ("GSSAPI", [b"token", b""], [STRANGER, UNPROVEN, UNPROVEN]),
        ("SCRAM-SHA-1", [b"", b""], [STRANGER, UNPROVEN, UNPROVEN]),
    ],
)
def test_what_an_accepted_token_means(mechanism: str, answers: list[bytes], states: list[LoginState]) -> None:
    assert steps(mechanism, *answers) == states


def test_only_what_follows_an_accepted_token_proves_a_login() -> None:
    login = Login(needed=True)
    login.token_accepted(b"")  # nothing was agreed on
    login.served()  # ApiVersions, which anybody may ask for
    assert login.state is STRANGER
    login.handshake_accepted("GSSAPI")
    login.served()
    assert login.state is STRANGER
    login.token_accepted(b"token")
    login.served()
    assert login.state is DONE
    login.handshake_accepted("SCRAM-SHA-256")  # renewed
    assert login.state is DONE


def test_another_handshake_begins_anew() -> None:
    login = Login(needed=True)
    login.handshake_accepted("GSSAPI")
    login.token_accepted(b"")
    login.handshake_accepted("SCRAM-SHA-256")
    assert login.state is STRANGER
    login.served()
    login.token_accepted(b"")
    assert login.state is STRANGER


# Through sockets


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_a_refused_token_is_no_login(version: int) -> None:
    async with Rigged() as rig:
        connection = await rig.handshake("OAUTHBEARER")
        assert await token(connection, BAD, version) == b'{"status":"invalid_token"}'
        (server,) = rig.listener.connections
        assert not session_of(server).authenticated
        assert rig.largest == STRANGERS_MAY_SEND
        for topic in ("payroll", "no-such-topic"):
            other = await rig.handshake("OAUTHBEARER")
            await token(other, BAD, version)
            with pytest.raises(ConnectionLost):
                await write(rig, other, topic)
        assert await token(connection, GOOD, version) == b"", "the exchange is not over for the broker"
        assert await write(rig, connection) == 0


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_a_good_token_is_a_login(version: int) -> None:
    async with Rigged() as rig:
        connection = await rig.handshake("OAUTHBEARER")
        assert await token(connection, GOOD, version) == b""
        assert rig.largest == ListenerLimits().max_frame
        assert await write(rig, connection) == 0
        assert rig.target.counts["describe_cluster"] == 0, "nobody has to be asked"


async def test_a_second_handshake_cannot_make_a_challenge_a_login() -> None:
    """It is sent before the answer to the token comes, by which time its mechanism is the latest that was named."""
    async with Rigged() as rig:
        connection = await rig.handshake("OAUTHBEARER")
        (server,) = rig.listener.connections
        session = session_of(server)
        with gathered_writes():
            for api, fields in (
                ("sasl_authenticate", {"auth_bytes": BAD}),
                ("sasl_handshake", {"mechanism": "PLAIN"}),
            ):
                number = connection.next_correlation_id()
                frame = codec.encode_request(api, 1, fields, correlation_id=number, client_id="app")
                connection.channel.send(number, [len(frame).to_bytes(4, "big"), frame], lambda _: None)
        await asyncio.wait_for(connection.closed_event.wait(), 25)
        assert not session.authenticated


async def test_a_mechanism_that_is_not_known_is_served_when_the_broker_serves_it() -> None:
    async with Rigged() as rig:
        connection = await rig.handshake("UNHEARD-OF")
        assert await token(connection, b"first") == b""
        assert await token(connection, b"last") == b"welcome"
        (server,) = rig.listener.connections
        assert not session_of(server).authenticated
        assert rig.largest == STRANGERS_MAY_SEND
        producer = Producer(connection, rig, version=12)
        answers = await asyncio.wait_for(asyncio.gather(*[producer.send(0) for _ in range(5)]), 25)
        assert [answer.error for (answer,) in answers] == [0] * 5
        assert [answer.base_offset for (answer,) in answers] == list(range(5))
        assert rig.target.counts["describe_cluster"] == 1
        assert rig.largest == ListenerLimits().max_frame


async def test_api_versions_after_the_login_proves_it_too() -> None:
    """Java's client asks for them again, before it may have a large batch to send."""
    async with Rigged() as rig:
        connection = await rig.handshake("UNHEARD-OF")
        await token(connection, b"first")
        await token(connection, b"last")
        await connection.api_versions()
        assert rig.largest == ListenerLimits().max_frame
        assert await write(rig, connection) == 0
        assert rig.target.counts["describe_cluster"] == 0


@pytest.mark.parametrize("topic", ["orders", "payroll", "no-such-topic"])
async def test_half_a_login_of_a_mechanism_that_is_not_known_is_none(topic: str) -> None:
    async with Rigged() as rig:
        connection = await rig.handshake("UNHEARD-OF")
        await token(connection, b"first")
        with pytest.raises(ConnectionLost):
            await write(rig, connection, topic)
        assert rig.source.counts["produce"] == 0
        connection = await rig.handshake("UNHEARD-OF")
        await token(connection, b"first")
        (server,) = rig.listener.connections
        session = session_of(server)
        answer = await connection.call("api_versions", {}, timeout=5)
        assert int(answer.error_code) == 34
        assert not session.authenticated


async def test_a_broker_that_does_not_show_whether_the_login_is_done_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("router.passthrough._PATIENCE", 60.0)
    async with Rigged(limits=RouterLimits(upstream_timeout=0.2)) as rig:
        connection = await rig.handshake("UNHEARD-OF")
        await token(connection, b"first")
        await token(connection, b"last")
        rig.target.inject("describe_cluster", drop=True)
        with pytest.raises(ConnectionLost):
            await write(rig, connection, "payroll")
        await eventually(lambda: not rig.listener.connections)


async def test_a_client_that_leaves_while_its_login_is_being_proved() -> None:
    async with Rigged(limits=RouterLimits(upstream_timeout=0.2)) as rig:
        connection = await rig.handshake("UNHEARD-OF")
        await token(connection, b"first")
        await token(connection, b"last")
        rig.target.inject("describe_cluster", delay_answer=0.1)
        Producer(connection, rig, version=12).send(0)
        await eventually(lambda: rig.target.counts["describe_cluster"] == 1)
        connection.close()
        await eventually(lambda: not rig.listener.connections)
        await asyncio.sleep(0.3)
        assert rig.source.counts["produce"] == 0


async def test_who_is_logged_in_stays_so_while_the_login_is_renewed() -> None:
    async with Rigged() as rig:
        connection = await rig.handshake("PLAIN")
        assert await token(connection, b"\0alice\0secret") == b""
        assert await write(rig, connection) == 0
        await connection.call("sasl_handshake", {"mechanism": "PLAIN"}, timeout=5, version=1)
        await token(connection, b"\0alice\0secret")
        assert await write(rig, connection) == 0
