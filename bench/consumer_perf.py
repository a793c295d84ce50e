"""Kafka's own `kafka-consumer-perf-test`, as a yardstick: how fast one consumer reads a topic.

Its class lies in kafka-tools, which brokers do without; Maven brings that jar when it is asked for the first time.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from bench.cluster import BenchError
from linker.demo.kafka_dist import DEFAULT_VERSION, KafkaDistribution

MAVEN_TIMEOUT = 300.0
RUN_TIMEOUT = 600.0
MIB = 1 << 20


async def read_topic(
    distribution: KafkaDistribution, jars: Path, bootstrap: str, topic: str, records: int
) -> float:
    """Bytes per second that one consumer reads, as the tool says: without the JVM's start, joining the group left out."""
    tools = await _tools(jars)
    command = distribution.command(
        "org.apache.kafka.tools.ConsumerPerformance",
        *("--bootstrap-server", bootstrap, "--topic", topic, "--messages", str(records)),
        *("--timeout", "60000", "--hide-header"),
        heap_mb=512,
        quick_start=False,
    )
    at = command.index("-cp") + 1
    command[at] = f"{command[at]}:{tools}"
    text = await output(command, RUN_TIMEOUT)
    for line in text.splitlines():
        # start, end, MB consumed, MB/s, records, records/s, rebalance ms, fetch ms, fetch MB/s, fetch records/s
        fields = [field.strip() for field in line.split(",")]
        if len(fields) == 10 and fields[8].replace(".", "", 1).isdigit():
            return float(fields[8]) * MIB
    raise BenchError(f"kafka-consumer-perf-test said nothing that can be read: {text.strip()[-500:]}")


async def _tools(directory: Path) -> Path:
    jar = directory / f"kafka-tools-{DEFAULT_VERSION}.jar"
    if not jar.exists():
        maven = shutil.which("mvn")
        if maven is None:
            raise BenchError("mvn was not found: it is needed to fetch kafka-consumer-perf-test")
        artifact = f"org.apache.kafka:kafka-tools:{DEFAULT_VERSION}"
        command = [maven, "-q", "-B", "dependency:copy", f"-Dartifact={artifact}"]
        await output([*command, f"-DoutputDirectory={directory}"], MAVEN_TIMEOUT)
    return jar


async def output(command: list[str], timeout: float) -> str:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        async with asyncio.timeout(timeout):
            output, _ = await process.communicate()
    except TimeoutError:
        raise BenchError(f"{command[0]} was not done within {timeout:.0f} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    text = output.decode(errors="replace")
    if process.returncode:
        raise BenchError(f"{command[0]} failed: {text.strip()[-500:]}")
    return text
