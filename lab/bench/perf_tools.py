"""Kafka's own `kafka-consumer-perf-test` and `kafka-producer-perf-test`: how fast one client of Kafka's reads and writes.

Their classes lie in kafka-tools, which brokers do without; Maven brings that jar when it is asked for the first time.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from lab.bench.cluster import BenchError
from lab.clusters.kafka_jars import DEFAULT_VERSION, KafkaDistribution, run_to_end

MAVEN_TIMEOUT = 300.0
RUN_TIMEOUT = 600.0
MIB = 1 << 20
# 1000000 records sent, 157000.1 records/sec (149.75 MB/sec), 170.25 ms avg latency, ...
_PRODUCED = re.compile(r"^(\d+) records sent, [\d.]+ records/sec \(([\d.]+) MB/sec\)", re.MULTILINE)


async def read_topic(
    distribution: KafkaDistribution, jars: Path, bootstrap: str, topic: str, records: int
) -> float:
    """Bytes per second that one consumer reads, as the tool says: without the JVM's start, joining the group left out."""
    text = await _run(
        distribution,
        jars,
        "ConsumerPerformance",
        *("--bootstrap-server", bootstrap, "--topic", topic, "--messages", str(records)),
        *("--timeout", "60000", "--hide-header"),
    )
    for line in text.splitlines():
        # start, end, MB consumed, MB/s, records, records/s, rebalance ms, fetch ms, fetch MB/s, fetch records/s
        fields = [field.strip() for field in line.split(",")]
        if len(fields) == 10 and fields[8].replace(".", "", 1).isdigit():
            return float(fields[8]) * MIB
    raise BenchError(f"kafka-consumer-perf-test said nothing that can be read: {text.strip()[-500:]}")


async def write_topic(
    distribution: KafkaDistribution,
    jars: Path,
    bootstrap: str,
    topic: str,
    records: int,
    payloads: Path,
    properties: Mapping[str, str],
) -> float:
    """Bytes per second that one producer writes and has acknowledged, as the tool says: without the JVM's start. Each record
    is a line of the file `payloads`, any one of them.
    """
    text = await _run(
        distribution,
        jars,
        "ProducerPerformance",
        *("--topic", topic, "--num-records", str(records), "--payload-file", str(payloads)),
        *("--throughput", "-1", "--producer-props", f"bootstrap.servers={bootstrap}"),
        *(f"{name}={value}" for name, value in properties.items()),
    )
    # The last line is of the whole run; those before it are of a few seconds each.
    if (found := _PRODUCED.findall(text)) and int(found[-1][0]) == records:
        return float(found[-1][1]) * MIB
    raise BenchError(f"kafka-producer-perf-test said nothing that can be read: {text.strip()[-500:]}")


async def _run(distribution: KafkaDistribution, jars: Path, tool: str, *arguments: str) -> str:
    tools = await _tools(jars)
    command = distribution.command(
        f"org.apache.kafka.tools.{tool}", *arguments, heap_mb=512, quick_start=False
    )
    at = command.index("-cp") + 1
    command[at] = f"{command[at]}:{tools}"
    return await run_to_end(command, RUN_TIMEOUT, tool)


async def _tools(directory: Path) -> Path:
    jar = directory / f"kafka-tools-{DEFAULT_VERSION}.jar"
    if not jar.exists():
        maven = shutil.which("mvn")
        if maven is None:
            raise BenchError("mvn was not found: it is needed to fetch Kafka's own performance tools")
        artifact = f"org.apache.kafka:kafka-tools:{DEFAULT_VERSION}"
        command = [maven, "-q", "-B", "dependency:copy", f"-Dartifact={artifact}"]
        await run_to_end([*command, f"-DoutputDirectory={directory}"], MAVEN_TIMEOUT, "fetching kafka-tools")
    return jar
