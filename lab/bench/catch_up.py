"""Catching up while clients write: what a gigabyte that is copied costs 20 MB/s of live produce beside it.

The live produce is forwarded by the same sidecar that copies, and the copy gives way to it, as a link does unless it is
told otherwise. Beside it, in turn: the same produce straight to the source while Kafka's own follower copies the same
gigabyte from the same broker; and forwarded again by a link that was told to copy at full speed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from admin.models import LinkOptions, LinkOptionsUpdate, UpdateLinkRequest
from lab.bench.correctness import compare
from lab.bench.load import build_batch
from lab.bench.paced import PacedProducer, out_of_order
from lab.bench.page_cache import give_back
from lab.bench.replication import LARGE, PARTITIONS, link_round, stock_round
from lab.bench.results import CaseResult, Goal, median_of, percentile, strip
from lab.bench.settings import Settings
from lab.bench.stage import Source, Stage, stage
from wire.client.cluster import Cluster
from wire.frames.batch import read_batch_header

LIVE = "live"
DIRECT = "live-direct"  # not mirrored: otherwise the link would copy it while the stock follower is measured
RATE = 20e6
BATCH_BYTES = 64 * 1024


async def run(source: Source, settings: Settings, say: Callable[[str], None]) -> CaseResult:
    total = await LARGE.filled(source, settings)
    batch = build_batch(1000, BATCH_BYTES, int(time.time() * 1000))
    records = read_batch_header(batch, 0).record_count
    result = CaseResult(
        "catch_up",
        f"{RATE / 1e6:.0f} MB/s of produce in {BATCH_BYTES // 1024} kB batches, acks=all; p99 of its latency while "
        f"{total / 1e9:.3g} GB are copied, over the p99 in the seconds before",
        {f"{side}{part}": [] for part in ("", "_warm_up") for side in ("link", "stock", "full_speed")},
    )
    for topic in (LIVE, DIRECT):
        await source.cluster.create_topic(topic, [[1]] * PARTITIONS)
    async with stage(source, "catch-up", 1) as on:
        await on.create_mirror(LIVE, 1)
        await on.wait_active(LIVE)
        sides: tuple[tuple[str, Cluster, str, Callable[[Stage], Awaitable[dict[str, Any]]]], ...] = (
            ("stock", on.source.connected, DIRECT, lambda on: stock_round(on, LARGE, total)),
            ("link", on.target.connected, LIVE, lambda on: link_round(on, LARGE, total)),
            ("full_speed", on.target.connected, LIVE, lambda on: link_round(on, LARGE, total)),
        )
        for number in range(-settings.warm_up, settings.rounds):
            for side, cluster, topic, copy in sides:
                await _give_way(on, give_way=side != "full_speed")
                producer = PacedProducer(cluster, topic, PARTITIONS, batch, RATE)
                one = await _round(producer, on, copy, settings.window_seconds)
                label = "warm-up" if number < 0 else f"round {number + 1}"
                say(
                    f"{label} {side}: p99 {one['alone_p99_ms']:.1f} ms alone, {one['copying_p99_ms']:.1f} ms beside"
                )
                result.rounds[side if number >= 0 else f"{side}_warm_up"].append(one)
                result.problems += [f"{side}: {what}" for what in out_of_order(producer.acked, records)]
                await asyncio.to_thread(give_back, _written(on, topic))
        await on.wait_active(LIVE)
        result.checked, differences = await compare(on, LIVE, PARTITIONS, [1])
        result.problems += differences
    for side, rounds in result.rounds.items():
        if not side.endswith("warm_up"):
            for key in rounds[0]:
                result.figures[f"{side}_{key}"] = median_of(rounds, key)
    slower = result.figures["link_slower"] = (
        result.figures["link_copying_p99_ms"] / result.figures["link_alone_p99_ms"]
    )
    stock = result.figures["stock_slower"] = (
        result.figures["stock_copying_p99_ms"] / result.figures["stock_alone_p99_ms"]
    )
    result.figures["full_speed_slower"] = (
        result.figures["full_speed_copying_p99_ms"] / result.figures["full_speed_alone_p99_ms"]
    )
    result.ratios = {"stock's slow-down / the link's": stock / slower}
    result.goals = [
        Goal("forwarded produce p99, catching up beside / alone", slower, 1.5, at_least=False),
    ]
    result.plots = [
        strip("p99 of live produce, nothing else", "ms", result.rounds, "alone_p99_ms"),
        strip("p99 of live produce, catching up beside", "ms", result.rounds, "copying_p99_ms"),
    ]
    return result


async def _give_way(on: Stage, *, give_way: bool) -> None:
    rate = LinkOptions().replication_bytes_per_second_beside_writes if give_way else 0
    options = LinkOptionsUpdate.model_validate({"replication_bytes_per_second_beside_writes": rate})
    await on.update_link(UpdateLinkRequest(options=options))


def _written(on: Stage, topic: str) -> list[Path]:
    """Where the live produce of a round lies."""
    copies = on.target.replica_dirs(topic, PARTITIONS, 1) if topic == LIVE else []
    return [*on.source.replica_dirs(topic, PARTITIONS, 1), *copies]


async def _round(
    producer: PacedProducer, on: Stage, copy: Callable[[Stage], Awaitable[dict[str, Any]]], seconds: float
) -> dict[str, Any]:
    async with producer.running():
        await asyncio.sleep(seconds / 2)  # its connections are new
        began = time.monotonic()
        await asyncio.sleep(seconds)
        asked = time.monotonic()
        copied = await copy(on)
        # The copying itself: not the time until it began, nor until the copy was deleted again.
        first = copied["first_byte"]
        last = first + copied["seconds"]
    alone, beside = producer.between(began, asked), producer.between(first, last)
    return {
        "alone_p50_ms": percentile(alone, 0.5),
        "alone_p99_ms": percentile(alone, 0.99),
        "copying_p50_ms": percentile(beside, 0.5),
        "copying_p99_ms": percentile(beside, 0.99),
        "copied_mb_per_second": copied["mb_per_second"],
    }
