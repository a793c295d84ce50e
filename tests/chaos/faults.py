"""The faults: each hits one process, waits, and sets it right again. Which, when and how long comes from the run's seed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from linker.demo.kafka_cluster import KafkaCluster
from linker.demo.sidecar_process import SidecarProcess

LONG = 12.0  # longer than the target's broker session


class Fault(NamedTuple):
    """A name for the report, and what it does."""

    name: str
    strike: Callable[[], Awaitable[None]]


def choose(rng: random.Random, source: KafkaCluster, target: KafkaCluster, sidecar: SidecarProcess) -> Fault:
    """One fault with everything that is random about it already decided."""
    kind = rng.choice(_KINDS)
    seconds = rng.choice([0.0, 0.5, 2.0, rng.uniform(0.0, 6.0), LONG])
    target_broker = rng.choice(target.brokers)
    source_broker = rng.choice(source.brokers)

    async def kill_sidecar() -> None:
        await sidecar.kill()
        await asyncio.sleep(seconds)
        await sidecar.start(timeout=120)

    async def pause_sidecar() -> None:
        sidecar.pause()
        try:
            await asyncio.sleep(min(seconds, 6.0))
        finally:
            sidecar.resume()

    async def kill_target_broker() -> None:
        await target_broker.kill()
        await asyncio.sleep(min(seconds, 3.0))
        await target_broker.start(timeout=120)

    async def pause_target_broker() -> None:
        target_broker.pause()
        try:
            await asyncio.sleep(seconds)
        finally:
            target_broker.resume()

    async def pause_controller() -> None:
        controller = target.controllers[0]
        controller.pause()
        try:
            await asyncio.sleep(min(seconds, 4.0))
        finally:
            controller.resume()

    async def restart_controller() -> None:
        await target.controllers[0].kill()
        await asyncio.sleep(min(seconds, 2.0))
        await target.controllers[0].start(timeout=120)

    async def restart_source_broker() -> None:
        await source_broker.stop(timeout=120)
        await asyncio.sleep(min(seconds, 2.0))
        await source_broker.start(timeout=120)

    async def nothing() -> None:
        await asyncio.sleep(seconds)

    strikes = {
        "kill -9 the sidecar": kill_sidecar,
        "stop and continue the sidecar": pause_sidecar,
        "kill -9 a target broker": kill_target_broker,
        "stop and continue a target broker": pause_target_broker,
        "stop and continue the target's controller": pause_controller,
        "kill -9 the target's controller": restart_controller,
        "restart a source broker": restart_source_broker,
        "nothing": nothing,
    }
    return Fault(f"{kind}, {seconds:.1f} s", strikes[kind])


_KINDS = (
    "kill -9 the sidecar",
    "kill -9 the sidecar",
    "kill -9 the sidecar",
    "stop and continue the sidecar",
    "kill -9 a target broker",
    "stop and continue a target broker",
    "stop and continue the target's controller",
    "kill -9 the target's controller",
    "restart a source broker",
    "nothing",
)
