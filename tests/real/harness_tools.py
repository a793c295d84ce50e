"""Kafka's own command-line tools, run as an operator runs them.

Most of their classes lie in kafka-tools, which brokers do without: Maven brings that jar once.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

from lab.clusters.kafka_jars import DEFAULT_VERSION, default_cache, ensure_distribution, run_to_end

CLASSES = {
    "kafka-cluster": "org.apache.kafka.tools.ClusterTool",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-share-consumer": "org.apache.kafka.tools.consumer.ConsoleShareConsumer",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-features": "org.apache.kafka.tools.FeatureCommand",
    "kafka-groups": "org.apache.kafka.tools.GroupsCommand",
    "kafka-leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "kafka-reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
}
_FETCH_TIMEOUT = 600


@dataclass(frozen=True)
class ToolResult:
    """What a tool said, on both streams, and how long it took."""

    exit_code: int
    text: str
    seconds: float


async def kafka_tool(bootstrap: str, tool: str, *arguments: str, timeout: float = 100.0) -> ToolResult:
    """`kafka-....sh --bootstrap-server BOOTSTRAP ARGUMENTS`; AssertionError if it does not end in time."""
    distribution = await ensure_distribution()
    where = ["--bootstrap-server", bootstrap]
    words = [*arguments, *where] if tool == "kafka-cluster" else [*where, *arguments]
    command = distribution.command(CLASSES[tool], *words, heap_mb=256, quick_start=True)
    at = command.index("-cp") + 1
    command[at] = f"{command[at]}:{await _tools_jar()}"
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(timeout):
            output, _ = await process.communicate()
    except TimeoutError:
        raise AssertionError(f"{tool} {' '.join(arguments)} took longer than {timeout:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return ToolResult(process.returncode or 0, output.decode(errors="replace"), time.monotonic() - began)


async def _tools_jar() -> Path:
    directory = default_cache() / "tools"
    jar = directory / f"kafka-tools-{DEFAULT_VERSION}.jar"
    if not jar.exists():
        artifact = f"-Dartifact=org.apache.kafka:kafka-tools:{DEFAULT_VERSION}"
        command = ["mvn", "-q", "-B", "dependency:copy", artifact, f"-DoutputDirectory={directory}"]
        await run_to_end(command, _FETCH_TIMEOUT, "fetching kafka-tools")
    return jar
