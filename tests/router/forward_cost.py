"""What Python does with a forwarded produce and its answer, without any socket.

    python -m tests.router.forward_cost [IN_FLIGHT[xBATCHES] ...]

A client's connection and the Router's to the source get transports that only count; small requests come in as a read
brings them, `IN_FLIGHT` at a time, and their answers too. Each has a batch of each of `BATCHES` partitions (one, if that
is not told). What the Router asks of others is the sidecar's own: mirrors, links, lease.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import uvloop

from controller.decide.mirrors import Leadership
from controller.state import MirrorTopic
from fetcher.directory import MirrorDirectory
from fleet.lease import Lease
from fleet.stored_controller import StoredController
from linker.fleet.clock import lease_clock
from linker.fleet.ports import RouterLease
from linker.links.mirrors import Mirrors
from linker.links.running import RunningLinks
from linker.links.runtime import LinkRuntime
from tests.controller.established import establish
from tests.controller.memory_store import MemoryStore
from tests.fakes.batches import build_batch
from tests.router.rig import E0, LINK_BROKER, Rig
from wire.client.channel import Channel
from wire.client.connection import Connection
from wire.frames.produce import ProduceResult, encode_produce_request, encode_produce_response
from wire.frames.types import TopicPartition
from wire.server.listener import ServerConnection

VERSION = 9  # of the client's requests
UPSTREAM_VERSION = 13  # topics by id
ROUNDS, REQUESTS = 10, 2000  # the best of the rounds is told
TOPIC = "orders"


class Counted(asyncio.Transport):
    """Takes everything."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0

    def write(self, data: Any) -> None:
        self.writes += 1

    def writelines(self, list_of_data: Any) -> None:
        self.writes += 1

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default


def read(protocol: Any, data: bytes) -> None:
    """As the event loop hands over what it has read."""
    done = 0
    while done < len(data):
        room = protocol.get_buffer(-1)
        taken = min(len(room), len(data) - done)
        room[:taken] = data[done : done + taken]
        protocol.buffer_updated(taken)
        done += taken


def requests(first: int, count: int, batch: memoryview, batches: int) -> bytes:
    parts = [(index, batch) for index in range(batches)]
    made = (
        encode_produce_request(VERSION, number, "load", None, 1, 30_000, [(TOPIC, parts)])
        for number in range(first, first + count)
    )
    return b"".join(bytes(part) for request in made for part in request)


def answers(topic_id: bytes, first: int, count: int, batches: int) -> bytes:
    made = (
        encode_produce_response(
            UPSTREAM_VERSION,
            number,
            [(topic_id, [ProduceResult(index, 0, number, -1, 0) for index in range(batches)])],
        )
        for number in range(first, first + count)
    )
    return b"".join(bytes(part) for answer in made for part in answer)


class Cost(NamedTuple):
    """Of one request and its answer."""

    seconds: float  # of processor
    writes_to_source: float
    writes_to_client: float


async def with_the_sidecars_own(rig: Rig, partitions: int) -> None:
    """In the place of what the rig has for tests."""
    controller = await StoredController.open(MemoryStore(), now=lambda: 7)
    links = RunningLinks(cast(Any, None), lambda: cast(Any, controller))
    runtime: Any = object.__new__(LinkRuntime)
    runtime.source = rig.cluster
    runtime._verified = asyncio.Event()
    runtime._verified.set()
    runtime.producer_ids = SimpleNamespace(allowed=True)
    runtime.read_only = None
    runtime._reverses = None
    links._links["east"] = runtime
    mirrors = Mirrors(lambda: controller.image, rig.image, MirrorDirectory(), links.forwards, LINK_BROKER)
    controller.listeners.add(mirrors.on_records)
    await controller.create_link("east", "cluster", {})
    mirror = rig.directory.mirrors[TOPIC]
    await controller.create_mirror(
        MirrorTopic(
            link="east",
            topic=TOPIC,
            topic_id=mirror.topic_id,
            source_topic_id=mirror.source_topic_id,
            partitions=partitions,
        )
    )
    leadership = Leadership(LINK_BROKER, E0, (LINK_BROKER,))
    for index in range(partitions):
        await establish(
            controller,
            "east",
            TopicPartition(TOPIC, index),
            leadership=leadership,
            session_epoch=E0,
            start_offset=0,
        )
    rig.router.ports.mirrors = mirrors
    rig.router.ports.source = links.source


async def measure(in_flight: int, rounds: int = ROUNDS, *, batches: int = 1) -> Cost:
    lease = Lease()
    lease.renewed(lease_clock(), lease_clock(), float("inf"))
    async with Rig(partitions=batches, source_nodes=1, lease=RouterLease(lease)) as rig:
        await with_the_sidecars_own(rig, batches)
        upstream, downstream = Counted(), Counted()
        opened: asyncio.Future[Channel] = asyncio.get_running_loop().create_future()

        async def open_connection(_node: int, **_options: Any) -> Connection:
            channel = Channel()
            channel.connection_made(upstream)
            connection = Connection(channel, "source", "forward-cost")
            connection._ranges = {0: (3, UPSTREAM_VERSION)}
            opened.set_result(channel)
            return connection

        rig.cluster.open_connection = open_connection  # type: ignore[method-assign]
        client = ServerConnection(rig.listener)
        client.connection_made(downstream)
        batch = memoryview(build_batch(1))
        topic_id = rig.directory.mirrors[TOPIC].source_topic_id
        if topic_id is None:
            raise RuntimeError("the rig's topic has no id")
        read(client, requests(0, 1, batch, batches))
        async with asyncio.timeout(10):
            channel = await opened
            while not upstream.writes:
                await asyncio.sleep(0.01)
        read(channel, answers(topic_id, 1, 1, batches))
        asked, turns = requests(1, in_flight, batch, batches), REQUESTS // in_flight
        answered = [
            answers(topic_id, 2 + turn * in_flight, in_flight, batches) for turn in range(rounds * turns)
        ]
        upstream.writes = downstream.writes = 0
        best = float("inf")
        for number in range(rounds):
            began = time.process_time()
            for turn in range(number * turns, (number + 1) * turns):
                read(client, asked)
                read(channel, answered[turn])
            best = min(best, (time.process_time() - began) / (turns * in_flight))
        done = rounds * turns * in_flight
        left = len(client._open)
        channel.close()
        client.abort()
    if left:
        raise RuntimeError(f"{left} requests were not answered")
    return Cost(best, upstream.writes / done, downstream.writes / done)


def main(arguments: Sequence[str]) -> None:
    for one in arguments or ["1", "8"]:
        in_flight, _, batches = one.partition("x")
        cost = uvloop.run(measure(int(in_flight), batches=int(batches or 1)))
        print(
            f"{in_flight} in flight, {batches or 1} batches each: {cost.seconds * 1e6:.1f} us a request, "
            f"{cost.writes_to_source:.2f} writes to the source and {cost.writes_to_client:.2f} to the client a request"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
