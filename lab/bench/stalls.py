"""Memory where nothing moves: a source that stalls in the middle of a copy, and thousands of clients that only hold a
connection. (A follower that stalls is in followers.py.)
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable

from lab.bench.cluster import BenchError
from lab.bench.correctness import compare
from lab.bench.growth import GrowthWatch
from lab.bench.memory import MIB, MemoryWatch, open_files
from lab.bench.replication import LARGE, PARTITIONS
from lab.bench.results import CaseResult, Goal, Line
from lab.bench.settings import Settings
from lab.bench.stage import MEMORY_BUDGET, Source, Stage, stage

STALL_AFTER = 0.2  # of the bytes
STALL_SECONDS = 8.0
BOUND = 1.2 * MEMORY_BUDGET / MIB
TOGETHER = 200  # connections that are opened at a time
ANSWER_TIMEOUT = 60.0
API_VERSIONS, METADATA = 18, 3


async def run(source: Source, settings: Settings, say: Callable[[str], None]) -> list[CaseResult]:
    """Two cases, each with a sidecar of its own: what one has used is not given back for the other."""
    total = await LARGE.filled(source, settings)
    async with stage(source, "clients", 1) as on:
        clients = await idle_clients(on, settings, say)
    async with stage(source, "stalls", 1) as on:
        stalled = await stalled_source(on, total, say)
    return [clients, stalled]


async def stalled_source(on: Stage, total: int, say: Callable[[str], None]) -> CaseResult:
    result = CaseResult(
        "stalled_source",
        f"{total / 1e9:.3g} GB; the source's broker is stopped (SIGSTOP) for {STALL_SECONDS:g} s "
        f"after {STALL_AFTER:.0%} of them",
        {"link": []},
    )
    directories = on.target.replica_dirs(LARGE.topic, PARTITIONS, 1)
    watch = GrowthWatch(directories, total, {})
    reached = GrowthWatch(directories, int(total * STALL_AFTER), {}, exact=False)
    leader = on.source.nodes[1]
    async with MemoryWatch(on.sidecar) as memory:
        await on.create_mirror(LARGE.topic, 1)
        await reached.done()
        leader.pause()
        try:
            await asyncio.sleep(STALL_SECONDS)
        finally:
            leader.resume()
        copied = await watch.done()
    result.checked, result.problems = await compare(on, LARGE.topic, PARTITIONS, [1])
    await on.delete_mirror(LARGE.topic)
    peak = memory.peak / MIB
    say(f"stalled source: peak {peak:.0f} MiB")
    result.rounds["link"].append({"peak_rss_mib": peak, "seconds": copied.seconds})
    result.figures["peak_rss_mib"] = peak
    result.goals = [Goal("RSS with a stalled source", peak, BOUND, at_least=False, unit="MiB")]
    result.plots = [Line("Resident memory, a stalled source", "MiB", {"sidecar": memory.samples})]
    return result


async def idle_clients(on: Stage, settings: Settings, say: Callable[[str], None]) -> CaseResult:
    result = CaseResult(
        "idle_clients",
        f"{settings.clients:,} connections to the sidecar that asked for ApiVersions and Metadata and then send nothing; "
        "each has a connection of its own to a real broker",
        {"link": []},
    )
    port = int(on.sidecar.address().rpartition(":")[2])
    writers: list[asyncio.StreamWriter] = []
    before = on.sidecar.resident_bytes() / MIB
    async with MemoryWatch(on.sidecar) as memory:
        try:
            while len(writers) < settings.clients:
                count = min(TOGETHER, settings.clients - len(writers))
                writers += await asyncio.gather(*(_client(port) for _ in range(count)))
            await asyncio.sleep(settings.window_seconds)
            cpu = on.sidecar.cpu_seconds()
            await asyncio.sleep(settings.window_seconds)
            idle = 100 * (on.sidecar.cpu_seconds() - cpu) / settings.window_seconds
            files = open_files(on.sidecar)
        finally:
            for writer in writers:
                writer.close()
    peak = memory.peak / MIB
    say(f"{settings.clients} clients: {before:.0f} MiB before, peak {peak:.0f} MiB, {files} files")
    result.rounds["link"].append(
        {"rss_before_mib": before, "peak_rss_mib": peak, "open_files": files, "idle_cpu_percent": idle}
    )
    result.figures = {
        "peak_rss_mib": peak,
        "kib_per_client": 1024 * (peak - before) / settings.clients,
        "idle_cpu_percent": idle,
    }
    result.goals = [Goal("RSS, idle clients", peak, BOUND, at_least=False, unit="MiB")]
    result.plots = [
        Line(f"Resident memory, {settings.clients:,} idle clients", "MiB", {"sidecar": memory.samples})
    ]
    return result


async def _client(port: int) -> asyncio.StreamWriter:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    # ApiVersions v0; Metadata v1 of no topics
    for number, (api, version, body) in enumerate(((API_VERSIONS, 0, b""), (METADATA, 1, b"\0\0\0\0"))):
        head = struct.pack(">hhih", api, version, number, 4) + b"idle"
        writer.write(struct.pack(">i", len(head) + len(body)) + head + body)
        async with asyncio.timeout(ANSWER_TIMEOUT):
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            answer = await reader.readexactly(size)
        if struct.unpack_from(">i", answer)[0] != number:
            raise BenchError(f"an idle client got another answer than its own: {answer[:16].hex()}")
    return writer
