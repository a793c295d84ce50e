"""A fleet as its operator drives it, through whichever sidecar is not the link controller."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from admin.client import AdminError
from admin.models import SidecarStatus
from lab.clusters.kafka_cluster import KafkaCluster, KafkaClusterSpec
from lab.clusters.ports import PortReservation
from lab.clusters.sidecar_process import SidecarProcess, SidecarSpec

PARTITIONS = 4


async def until(what: str, look: Callable[[], Awaitable[Any]], timeout: float = 20.0) -> Any:
    """What `look` returns as soon as it is true."""
    deadline = time.monotonic() + timeout
    while True:
        found = await look()
        if found:
            return found
        assert time.monotonic() < deadline, f"not in time: {what}"
        await asyncio.sleep(0.2)


def sidecar(
    target: KafkaCluster, broker_id: int, directory: Path, control: PortReservation
) -> SidecarProcess:
    spec = SidecarSpec(
        target_bootstrap=target.bootstrap,
        broker_id=broker_id,
        sidecar={"control.listener": f"127.0.0.1:{control.port}", "control.secret": "0123456789abcdef0"},
        store={"type": "topic"},
    )
    return SidecarProcess(spec, directory)


async def listed(through: SidecarProcess) -> dict[int, SidecarStatus]:
    with through.client() as client:
        return {one.id: one for one in await asyncio.to_thread(client.list_sidecars)}


@pytest.mark.timeout(150)
async def test_through_another_sidecar_than_the_link_controller(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        source, target = await asyncio.gather(
            stack.enter_async_context(KafkaCluster(KafkaClusterSpec(name="source", brokers=1), tmp_path)),
            stack.enter_async_context(KafkaCluster(KafkaClusterSpec(name="target", brokers=2), tmp_path)),
        )
        new = NewTopic("orders", num_partitions=PARTITIONS, replication_factor=1)
        admin = AdminClient({"bootstrap.servers": source.bootstrap})
        await asyncio.to_thread(admin.create_topics([new])["orders"].result)
        cars: dict[int, SidecarProcess] = {}
        for broker_id in (900, 901):
            control = PortReservation()
            stack.callback(control.release)
            cars[broker_id] = sidecar(target, broker_id, tmp_path / f"s{broker_id}", control)
            stack.push_async_callback(cars[broker_id].close)
            cars[broker_id].launch()
        await asyncio.gather(*(car.wait_ready() for car in cars.values()))
        await _drive(cars, source, target, tmp_path, stack)


async def _drive(
    cars: dict[int, SidecarProcess],
    source: KafkaCluster,
    target: KafkaCluster,
    directory: Path,
    stack: AsyncExitStack,
) -> None:
    with cars[900].client() as client:
        head = (await asyncio.to_thread(client.describe_controller)).id
    other = next(broker_id for broker_id in cars if broker_id != head)
    ask = cars[other].linker

    # Changes and readings go to the link controller by themselves.
    await ask("link", "create", "old", "--bootstrap-servers", source.bootstrap)
    await ask("mirror", "create", "orders", "--link", "old", "--replication-factor", "2")

    async def active() -> bool:
        with cars[other].client() as client:
            (mirror,) = await asyncio.to_thread(client.list_mirrors, "old")
        return mirror.state == "ACTIVE" and mirror.lag == 0

    await until("the mirror is active", active)

    async def leading(wanted: dict[int, int]) -> bool:
        return {one.id: one.leading_partitions for one in (await listed(cars[other])).values()} == wanted

    await until("leadership is even", lambda: leading({head: 2, other: 2}))
    assert "IN ISR" in (await ask("sidecar", "list")).output
    for one in (await listed(cars[other])).values():
        assert one.state == "RUNNING"
        assert one.isr_partitions == PARTITIONS
        assert one.lease_ms is not None and 0 < one.lease_ms <= 10_300  # and a reserve for clocks that drift
        assert one.last_heard_ms is not None and one.last_heard_ms < 3000
        assert one.heartbeat_age_ms is not None
        assert one.controller == (one.id == head)
    about = (await ask("controller", "describe", "-o", "json")).json()
    assert (about["id"], about["store"], about["sidecars_alive"], about["sidecars"]) == (head, "topic", 2, 2)
    assert [member["id"] for member in about["members"]] == [900, 901]
    with cars[other].client() as client:
        fleet = (await asyncio.to_thread(client.status)).fleet
        described = await asyncio.to_thread(client.describe_mirror, "old", "orders")
    assert fleet is not None
    assert (fleet.sidecars_alive, fleet.sidecars, fleet.controller) == (2, 2, head)
    for partition in described.partition_status:
        assert partition.leader in cars
        assert sorted(partition.isr) == [900, 901]
        assert partition.controller_epoch == about["controller_epoch"]
        assert partition.version is not None and partition.version >= 1

    # A second process with one broker id ends by itself, with the reason.
    control = PortReservation()
    stack.callback(control.release)
    double = sidecar(target, other, directory / "double", control)
    stack.push_async_callback(double.close)
    double.launch()
    assert await double.ended(20) == 1
    assert f"another sidecar with broker.id {other} is running" in double.log.read_text()

    # Drained, and back.
    with cars[other].client() as client:
        plan = await asyncio.to_thread(client.drain_sidecar, head, dry_run=True)
    assert plan.actions[0].detail == "2 partitions get another leader"
    assert await leading({head: 2, other: 2})
    await ask("sidecar", "drain", str(head), "--timeout", "30")
    now = await listed(cars[other])
    assert (now[head].state, now[head].leading_partitions) == ("DRAINING", 0)
    assert now[head].isr_partitions == PARTITIONS
    refused = await cars[other].run("sidecar", "drain", str(other))
    assert refused.exit_code == 1
    assert (
        f"no other sidecar could lead in the place of sidecar {other}: {head} is DRAINING" in refused.errors
    )
    await ask("sidecar", "drain", str(head), "--undo")
    await until("leadership is even again", lambda: leading({head: 2, other: 2}))
    with cars[other].client() as client, pytest.raises(AdminError, match="is not dead"):
        await asyncio.to_thread(client.leave_sidecar, head, dead=True)

    # The link controller leaves: its seat goes first, then everything else.
    begun = time.monotonic()
    await ask("sidecar", "leave", str(head), "--timeout", "60")
    assert time.monotonic() - begun < 9, "its lease was given back, nobody waited for its end"
    assert await cars[head].ended(10) == 0
    assert list(await listed(cars[other])) == [other]
    with cars[other].client() as client:
        assert (await asyncio.to_thread(client.describe_controller)).id == other
        # Two partitions have just changed their leader: their followers say how far they are with their next fetch.
        await until("the mirror is active with what is left", active)
        with pytest.raises(
            AdminError, match=f"leads or hosts {PARTITIONS} partitions and no other sidecar could"
        ):
            await asyncio.to_thread(client.leave_sidecar, other)

    # What is left is whole: a promote goes through.
    await ask("mirror", "promote", "--all", "--link", "old")
    await ask("sidecar", "leave", str(other))
    assert await cars[other].ended(15) == 0
