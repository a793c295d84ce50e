"""One pass through link, move and promote with one producer of each library, judged library by library."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import kafka

from linker.demo.checker import check
from linker.demo.history import History
from linker.demo.inspection import final_logs, placements
from linker.demo.kafka_cluster import KafkaCluster, KafkaClusterSpec
from linker.demo.kafka_dist import DEFAULT_VERSION, ensure_distribution
from linker.demo.live_producers import (
    AiokafkaProducer,
    KafkaPythonProducer,
    LibrdkafkaProducer,
    LiveProducer,
)
from linker.demo.sidecar_process import SidecarProcess, SidecarSpec
from linker.demo.source_data import SourceFiller, SourceTopic

LINK = "matrix"
RATE = 200.0
VERSIONS = {
    "aiokafka": aiokafka.__version__,
    "librdkafka": confluent_kafka.libversion()[0],
    "kafka-python": kafka.__version__,
}


async def matrix(out: Path) -> int:
    out.mkdir(parents=True, exist_ok=True)
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    await ensure_distribution(progress=print)
    with tempfile.TemporaryDirectory(prefix="linker-clients-") as scratch:
        directory = Path(scratch)
        async with AsyncExitStack() as stack:
            source, target = await asyncio.gather(
                stack.enter_async_context(KafkaCluster(KafkaClusterSpec(name="source"), directory)),
                stack.enter_async_context(
                    KafkaCluster(KafkaClusterSpec(name="target", brokers=3, controllers=1), directory)
                ),
            )
            sidecar = await stack.enter_async_context(
                SidecarProcess(SidecarSpec(target_bootstrap=target.bootstrap), directory / "sidecar")
            )
            rows = {
                kind.library: await _pass(kind, source, target, sidecar)
                for kind in (LibrdkafkaProducer, AiokafkaProducer, KafkaPythonProducer)
            }
    report = {"kafka": DEFAULT_VERSION, "clients": rows, "ok": all(row["ok"] for row in rows.values())}
    (out / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    for library, row in rows.items():
        print(
            f"{library} {row['version']}: "
            + ", ".join(f"{key} {row[key]}" for key in row if key != "version")
        )
    return 0 if report["ok"] else 1


async def _pass(
    kind: type[LiveProducer], source: KafkaCluster, target: KafkaCluster, sidecar: SidecarProcess
) -> dict[str, Any]:
    topic = SourceTopic(f"written-by-{kind.library}", 6, SourceFiller.history, live=True)
    link = f"{LINK}-{kind.library}"
    history = History()
    filler = SourceFiller(source.bootstrap, scale=0.1)
    await asyncio.to_thread(filler.create, [topic], 1)
    await asyncio.to_thread(filler.fill, [topic])
    producer = kind(kind.library, topic.name, topic.partitions, RATE, history)  # type: ignore[call-arg]
    await producer.start(source.bootstrap)
    try:
        await sidecar.linker("link", "create", link, "--bootstrap-servers", source.bootstrap)
        await sidecar.linker("mirror", "create", topic.name, "--link", link, "--replication-factor", "3")
        async with asyncio.timeout(120):
            while True:
                mirrors = (await sidecar.linker("mirror", "list", "--link", link, "-o", "json")).json()
                if mirrors[0]["state"] == "ACTIVE" and (mirrors[0]["lag"] or 0) < RATE:
                    break
                await asyncio.sleep(0.2)
        await producer.move(target.bootstrap)
        await asyncio.sleep(5)
        begin = history.mark("promote")
        await sidecar.linker("mirror", "promote", topic.name, "--link", link)
        end = history.mark("promoted")
        await asyncio.sleep(5)
    finally:
        await producer.stop()
    placed = await asyncio.to_thread(placements, target.bootstrap, [topic])
    logs = await asyncio.to_thread(final_logs, target, [topic], placed)
    verdict = check(history, logs, promote=(begin, end), drained=False)
    return {
        "version": VERSIONS[kind.library],
        "ok": verdict.ok and verdict.unknown == 0,
        "acked": verdict.acked,
        "errors": len(verdict.client_errors),
        "unknown": verdict.unknown,
        "lost": len(verdict.lost),
        "duplicated": len(verdict.duplicated),
        "reordered": len(verdict.reordered),
        "promote_gap_ms": verdict.promote_pause_ms,
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.clients", description=__doc__)
    parser.add_argument("--out", default="build/clients")
    return asyncio.run(matrix(Path(parser.parse_args().out)))


if __name__ == "__main__":
    sys.exit(main())
