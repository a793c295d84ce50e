"""What is passed through, restricted, or refused before authentication."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from router.api_versions import SERVED, restrict
from router.offsets import OffsetSession
from router.ports import RouterLimits
from tests.router.rig import Producer, Rig, eventually, session_of
from wire.client.connection import Connection
from wire.client.security import ClientSecurity
from wire.errors import ConnectionLost, WireError
from wire.schema import codec

SASL = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "SCRAM-SHA-256",
    "sasl.username": "alice",
    "sasl.password": "secret",
}


async def test_requests_of_others_are_passed_through_in_order() -> None:
    async with Rig() as rig:
        client = await rig.client()
        answers = await asyncio.gather(
            *[client.call("metadata", {"topics": [{"name": "orders"}]}, timeout=5) for _ in range(10)]
        )
        assert {answer.topics[0].name for answer in answers} == {"orders"}
        assert rig.target.counts["metadata"] == 10


async def test_api_versions_are_cut_to_what_we_serve() -> None:
    async with Rig() as rig:
        client = await rig.client()
        for key, (low, high) in SERVED.items():
            offered = client.api_range(codec.api_name(key))
            if offered is not None:
                assert low <= offered[0] <= offered[1] <= high
        assert client.api_range("metadata") == rig.target.api_range("metadata")


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
def test_restrict_never_raises_what_the_real_broker_has(version: int) -> None:
    keys = [
        {"api_key": 0, "min_version": 0, "max_version": 11},
        {"api_key": 1, "min_version": 0, "max_version": 40},
        {"api_key": 17, "min_version": 0, "max_version": 0},
        {"api_key": 3, "min_version": 0, "max_version": 13},
    ]
    frame = codec.encode_response("api_versions", version, 7, {"api_keys": keys})
    answer = codec.decode_response("api_versions", version, restrict(version, memoryview(frame)))
    ranges = {item.api_key: (item.min_version, item.max_version) for item in answer.api_keys}
    assert ranges == {0: (0, 11), 1: (4, 18), 17: (0, 0), 3: (0, 13)}
    # librdkafka up to 2.11 does not compress for a broker that does not name Produce 0, and only logs that.
    assert ranges[0][0] == 0


async def test_a_version_of_api_versions_that_is_not_known_yet() -> None:
    """Clients then ask again, in what is named; a broker newer than this code would have answered it, in its own terms."""
    async with Rig() as rig:
        client = await rig.client()
        frame = bytearray(codec.encode_request("api_versions", 4, {}, correlation_id=99, client_id="app"))
        frame[2:4] = (5).to_bytes(2, "big")
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        client.channel.send(99, [len(frame).to_bytes(4, "big"), bytes(frame)], answered.set_result)
        answer = codec.decode_response("api_versions", 0, await asyncio.wait_for(answered, 25))
        assert int(answer.error_code) == 35
        assert [(key.api_key, key.min_version, key.max_version) for key in answer.api_keys] == [(18, 0, 4)]
        await client.call("api_versions", {}, timeout=5, version=0)


def test_restrict_keeps_an_unsupported_version_answer() -> None:
    keys = [{"api_key": 18, "min_version": 0, "max_version": 4}]
    frame = codec.encode_response("api_versions", 0, 7, {"error_code": 35, "api_keys": keys})
    answer = codec.decode_response("api_versions", 0, restrict(9, memoryview(frame)))
    assert int(answer.error_code) == 35


async def test_a_restart_of_the_upstream_is_nothing_to_a_client_that_waits_for_nothing() -> None:
    """Its next request goes to a broker that is there; what it wrote is not cut off either."""
    async with Rig() as rig:
        client = await rig.client()
        producer = Producer(client, rig, producer_id=5)
        assert (await producer.send(0))[0].error == 0
        rig.source.inject("produce", delay=0.3)
        pending = producer.send(0)
        for broker in rig.target.brokers.values():
            await broker.disconnect_all()
        assert (await pending)[0].error == 0
        answer = await client.call("metadata", {"topics": []}, timeout=5)
        assert len(answer.brokers) >= 2
        assert not client.closed


async def test_death_of_the_upstream_with_an_answer_owed_closes_the_client() -> None:
    async with Rig() as rig:
        client = await rig.client()
        rig.target.inject("metadata", delay=2)
        owed = asyncio.create_task(client.call("metadata", {"topics": []}, timeout=5))
        await eventually(lambda: rig.target.counts["metadata"] == 1)
        for broker in rig.target.brokers.values():
            await broker.disconnect_all()
        with pytest.raises(ConnectionLost):
            await owed
        await asyncio.wait_for(client.closed_event.wait(), 25)


async def test_a_login_ends_with_the_upstream() -> None:
    async with Rig(protocol="SASL_PLAINTEXT", sasl_users={"alice": "secret"}) as rig:
        client = await Connection.open(
            "127.0.0.1",
            rig.listener.port,
            ClientSecurity.from_properties(SASL),
            client_id="app",
            timeout=5,
        )
        for broker in rig.target.brokers.values():
            await broker.disconnect_all()
        await asyncio.wait_for(client.closed_event.wait(), 25)


async def test_no_real_broker_alive_closes_the_client() -> None:
    async with Rig() as rig:
        for broker in rig.target.brokers.values():
            await broker.stop()
        with pytest.raises(ConnectionLost):
            await rig.client()


async def test_one_dead_broker_is_no_obstacle() -> None:
    async with Rig() as rig:
        await rig.target.brokers[1].stop()
        for _ in range(5):
            await rig.client()


async def test_sasl_is_relayed_and_rights_are_the_clients() -> None:
    async with Rig(protocol="SASL_PLAINTEXT", sasl_users={"alice": "secret"}) as rig:
        security = ClientSecurity.from_properties(SASL)
        client = await Connection.open("127.0.0.1", rig.listener.port, security, client_id="app", timeout=5)
        rig.clients.append(client)
        assert (await Producer(client, rig).send(0))[0].error == 0


async def test_wrong_password_is_refused_by_the_real_broker() -> None:
    async with Rig(protocol="SASL_PLAINTEXT", sasl_users={"alice": "other"}) as rig:
        with pytest.raises(WireError):
            await Connection.open(
                "127.0.0.1",
                rig.listener.port,
                ClientSecurity.from_properties(SASL),
                client_id="app",
                timeout=5,
            )


async def test_nothing_is_served_before_authentication() -> None:
    async with Rig(protocol="SASL_PLAINTEXT", sasl_users={"alice": "secret"}) as rig:
        client = await rig.client()  # ApiVersions is allowed
        with pytest.raises(ConnectionLost):
            await client.call("metadata", {"topics": None}, timeout=5)
        client = await rig.client()
        with pytest.raises(ConnectionLost):
            await Producer(client, rig).send(0)


async def test_half_a_sasl_exchange_gives_no_rights() -> None:
    """The first step of SCRAM succeeds for everybody; the real broker then refuses to say what the client
    may do.
    """
    async with Rig(protocol="SASL_PLAINTEXT", sasl_users={"alice": "secret"}) as rig:
        client = await rig.client()
        await client.call("sasl_handshake", {"mechanism": "SCRAM-SHA-256"}, timeout=5, version=1)
        first = b"n,,n=alice,r=abcdefgh"
        answer = await client.call("sasl_authenticate", {"auth_bytes": first}, timeout=5, version=1)
        assert int(answer.error_code) == 0
        (server,) = rig.listener.connections
        assert not session_of(server).authenticated, "and what a stranger may make us parse stays small"
        with pytest.raises(ConnectionLost):
            await Producer(client, rig, version=12).send(0)
        assert rig.source.counts["produce"] == 0


@pytest.mark.parametrize("version", [1, 2])
async def test_txn_markers_are_answered_well_formed(version: int) -> None:
    async with Rig() as rig:
        client = await rig.client()
        marker = {
            "producer_id": 7,
            "producer_epoch": 0,
            "transaction_result": True,
            "topics": [{"name": "orders", "partition_indexes": [0, 1]}],
            "coordinator_epoch": 0,
        }
        correlation_id = client.next_correlation_id()
        frame = codec.encode_request(
            "write_txn_markers", version, {"markers": [marker]}, correlation_id=correlation_id, client_id="b"
        )
        got: list[memoryview] = []
        client.channel.send(
            correlation_id,
            [len(frame).to_bytes(4, "big") + frame],
            lambda reply: got.append(reply),  # type: ignore[arg-type]
        )
        await eventually(lambda: bool(got))
        answer = codec.decode_response("write_txn_markers", version, got[0])
        parts = answer.markers[0].topics[0].partitions
        assert [(part.partition_index, int(part.error_code)) for part in parts] == [(0, 0), (1, 0)]


async def test_rights_are_asked_once_and_again_when_they_are_old() -> None:
    from router.ports import RouterLimits

    async with Rig(limits=RouterLimits(authorization_ttl=0.1)) as rig:
        producer = Producer(await rig.client(), rig)
        await asyncio.gather(*[producer.send(0) for _ in range(5)])
        assert rig.target.counts["metadata"] == 1
        await asyncio.sleep(0.15)
        await asyncio.gather(*[producer.send(0) for _ in range(5)])
        await eventually(lambda: rig.target.counts["metadata"] == 2)


async def test_garbage_on_the_listener_leaves_others_alone() -> None:
    async with Rig() as rig:
        good = await rig.client()
        for junk in (
            b"\0" * 200,
            b"\xff" * 200,
            b"\0\0\0\x0c" + b"\0\x63" * 6,
            b"GET / HTTP/1.1\r\n\r\n" * 5,
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", rig.listener.port)
            writer.write(junk)
            assert await asyncio.wait_for(reader.read(), 25) == b""
            writer.close()
        assert (await Producer(good, rig).send(0))[0].error == 0


async def test_byte_at_a_time() -> None:
    async with Rig() as rig:
        frame = codec.encode_request("metadata", 12, {"topics": []}, correlation_id=5, client_id="slow")
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.listener.port)
        for byte in len(frame).to_bytes(4, "big") + frame:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)
        size = int.from_bytes(await asyncio.wait_for(reader.readexactly(4), 25), "big")
        assert (await reader.readexactly(size))[:4] == (5).to_bytes(4, "big")
        writer.close()


async def test_a_look_up_that_breaks_ends_the_connection_instead_of_holding_it_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def breaks(*args: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(OffsetSession, "_look_up", breaks)
    async with Rig() as rig:
        rig.mirror("orders", 1)
        client = await rig.client()
        topics = [{"name": "orders", "partitions": [{"partition_index": 0, "timestamp": -1}]}]
        with pytest.raises(ConnectionLost, match="closed"):
            await client.call("list_offsets", {"replica_id": -1, "topics": topics}, timeout=5)
        assert len(rig.loop_errors) == 1  # seen, and not swallowed
        rig.loop_errors.clear()


async def test_a_client_whose_deadlines_cannot_be_kept_harms_no_other() -> None:
    class Swept:
        def __init__(self, error: Exception | None) -> None:
            self.error = error
            self.times = 0

        def sweep(self, now: float) -> bool:
            self.times += 1
            if self.error is not None:
                raise self.error
            return self.times < 3

    async with Rig() as rig:
        sessions = [Swept(KeyError("a bug")), *(Swept(None) for _ in range(5)), Swept(KeyError("another"))]
        for session in sessions:
            rig.router.hub.watch(session)
        await eventually(lambda: all(session.times == 3 for session in sessions if session.error is None))
        assert len(rig.loop_errors) == 2
        rig.loop_errors.clear()


async def test_a_broker_that_does_not_say_what_the_client_may_do_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes bytes and answers nothing; every later write of the connection would wait behind that question."""
    monkeypatch.setattr("router.passthrough._PATIENCE", 60.0)
    async with Rig(limits=RouterLimits(upstream_timeout=0.2)) as rig:
        client = await rig.client()
        await client.call("metadata", {"topics": []}, timeout=5)
        rig.target.inject("metadata", drop=True, times=None)
        producer = Producer(client, rig)
        with pytest.raises(ConnectionLost):
            await asyncio.wait_for(producer.send(0), 25)
        rig.target.clear_faults()
        assert (await Producer(await rig.client(), rig).send(0))[0].error == 0


async def test_a_broker_that_is_at_work_for_the_client_has_time() -> None:
    async with Rig(limits=RouterLimits(upstream_timeout=0.1)) as rig:
        client = await rig.client()
        await client.call("metadata", {"topics": []}, timeout=5)
        rig.target.inject("describe_cluster", delay=0.5)
        rig.target.inject("metadata", delay=0.3, times=1)  # one after the other, as on a real one
        slow = asyncio.ensure_future(client.call("describe_cluster", {}, timeout=5))
        assert (await asyncio.wait_for(Producer(client, rig).send(0), 25))[0].error == 0
        await slow


async def test_one_part_of_a_client_that_cannot_end_does_not_keep_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails() -> None:
        raise RecursionError("too deep")

    async with Rig() as rig:
        client = await rig.client()
        await Producer(client, rig).send(0)
        (connection,) = rig.listener.connections
        session = session_of(connection)
        assert session.fetch is not None
        assert (rig.router.hub.consumers, len(rig.router.hub.carrying.clients)) == (1, 1)
        monkeypatch.setattr(session.authorizer, "close", fails)
        monkeypatch.setattr(session.produce, "closed", fails)
        client.close()
        await eventually(lambda: bool(rig.loop_errors))
        assert rig.router.hub.consumers == 0
        (error,) = (context["exception"] for context in rig.loop_errors)
        assert [str(one) for one in error.exceptions] == ["too deep", "too deep"], (
            "and nothing of it is swallowed"
        )
        rig.loop_errors.clear()
