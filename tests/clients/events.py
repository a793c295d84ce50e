"""What befalls the target while clients write: a roll of its brokers, the death of who leads. The same without a link."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Collection

from confluent_kafka.admin import AdminClient

from tests.clients.judge import Window
from tests.clients.program import ProgramError
from tests.clients.stage import Stage

IN_SYNC_TIMEOUT = 90.0
LOOK_SECONDS = 0.5
LINK_BROKER = 900  # SidecarSpec's


async def roll(stage: Stage) -> Window:
    """Every broker of the target once, in good order; the next one when the last one has all its replicas in sync."""
    begin = time.time()
    for node in stage.target.brokers:
        await node.restart()
        await _in_sync(stage)
    return Window(begin, time.time())


async def kill(stage: Stage, topics: Collection[str]) -> Window:
    """SIGKILL for who leads these topics, and a start at once: the sidecar; without a link the broker that leads most."""
    begin = time.time()
    if stage.sidecar is not None:
        await stage.sidecar.kill()
        await stage.sidecar.start()
    else:
        node = stage.target.nodes[await asyncio.to_thread(_leader, stage.target.bootstrap, topics)]
        await node.kill()
        await node.start()
        await _in_sync(stage)
    return Window(begin, time.time())


async def _in_sync(stage: Stage) -> None:
    deadline = time.monotonic() + IN_SYNC_TIMEOUT
    while late := await asyncio.to_thread(_late, stage.target.bootstrap):
        if time.monotonic() > deadline:
            raise ProgramError(f"not in sync {IN_SYNC_TIMEOUT:.0f} s after a restart: {late[:5]}")
        await asyncio.sleep(LOOK_SECONDS)


def _late(bootstrap: str) -> list[str]:
    """Partitions without a leader, or with replicas out of sync; those that the sidecar leads have no other by design."""
    topics = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=10).topics
    return [
        f"{name}-{index}"
        for name, topic in topics.items()
        for index, one in topic.partitions.items()
        if one.leader != LINK_BROKER and (one.leader < 0 or len(one.isrs) < len(one.replicas))
    ]


def _leader(bootstrap: str, topics: Collection[str]) -> int:
    listed = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=10).topics
    counts = Counter(one.leader for name in topics for one in listed[name].partitions.values())
    return int(counts.most_common(1)[0][0])
