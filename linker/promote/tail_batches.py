"""Compares the last batches of the copies while the fence is held (linker.promote.ports.TailCheck).

validator/compare/tail.py and validator/compare/tail_range.py read and compare the batches.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from linker.membership import TargetCluster
from linker.promote.ports import FenceProof
from validator.compare.tail import compare_tails, read_tails
from validator.compare.tail_range import compare_rests, read_rests
from wire.client.cluster import Cluster
from wire.errors import LinkerError
from wire.frames.types import TopicPartition
from wire.together import together_by_key

# The fence is held meanwhile: as much as is read beside the last batches without anybody noticing.
_RESTS_BYTES = 4 << 20
_RESTS_TIMEOUT = 0.1

log = logging.getLogger(__name__)


class TailBatches:
    """linker.promote.ports.TailCheck: each replica is asked itself for its last batch, and for the batches behind its
    watermark where those are few."""

    def __init__(
        self,
        source: Cluster,
        target: TargetCluster,
        log_start: Callable[[TopicPartition], int | None],
        targets: Callable[[TopicPartition], Sequence[int]],
        watermark: Callable[[TopicPartition, int], int | None] = lambda _tp, _broker: None,
        compacted: Callable[[str], bool] = lambda _topic: False,
        told: Callable[[TopicPartition, int, FenceProof], None] = lambda _tp, _broker, _proof: None,
        reader: Callable[[TopicPartition], int | None] = lambda _tp: None,
    ) -> None:
        """`watermark` of a replica, None where nothing is proved; `told` hears of every replica that was compared;
        `reader`: whom to read from instead of the source's leader, which keeps no log."""
        self._reader = reader
        self._source = source
        self._target = target
        self._log_start = log_start
        self._targets = targets
        self._watermark = watermark
        self._compacted = compacted
        self._told = told

    async def check(
        self, ends: Mapping[TopicPartition, int], *, timeout: float
    ) -> Mapping[TopicPartition, str]:
        at_source: dict[int, dict[TopicPartition, int]] = {}
        at_target: dict[int, dict[TopicPartition, int]] = {}
        differing: dict[TopicPartition, str] = {}
        unequal: set[tuple[TopicPartition, int]] = set()
        whole: set[tuple[TopicPartition, int]] = set()
        for tp, end in ends.items():
            leader = self._read_from(tp)
            start = self._log_start(tp)
            if leader is None or start is None:
                differing[tp] = "its source leader is not known"
                continue
            if end <= start:
                continue  # nothing in it
            at_source.setdefault(leader, {})[tp] = end
            for broker in self._targets(tp):
                at_target.setdefault(broker, {})[tp] = end
        rests = asyncio.ensure_future(self._compare_rests(ends, unequal, whole, min(timeout, _RESTS_TIMEOUT)))
        try:
            compared = await self._compare_tails(at_source, at_target, differing, unequal, timeout)
            differing |= await rests
        finally:
            rests.cancel()
            await asyncio.gather(rests, return_exceptions=True)
        for tp, broker in compared:
            key = (tp, broker)
            proof = FenceProof(self._watermark(tp, broker), ends[tp], key in whole, key not in unequal)
            self._told(tp, broker, proof)
        return differing

    def _read_from(self, tp: TopicPartition) -> int | None:
        reader = self._reader(tp)
        leader = self._source.leader(tp)
        return reader if reader is not None or leader is None else leader.id

    async def _compare_rests(
        self,
        ends: Mapping[TopicPartition, int],
        unequal: set[tuple[TopicPartition, int]],
        whole: set[tuple[TopicPartition, int]],
        timeout: float,
    ) -> Mapping[TopicPartition, str]:
        """Compare the batches behind the watermarks; those that cannot be read in time are left to the run after the
        hand-over. `whole` gets the replicas of which all of them were compared."""
        at_source: dict[int, dict[TopicPartition, tuple[int, int]]] = {}
        at_target: dict[int, dict[TopicPartition, tuple[int, int]]] = {}
        for tp, end in ends.items():
            leader, brokers = self._read_from(tp), self._targets(tp)
            marks = [self._watermark(tp, broker) for broker in brokers]
            known = [mark for mark in marks if mark is not None]
            # A cleaner may lawfully have been at work on either side.
            if leader is None or not known or len(known) < len(marks) or self._compacted(tp.topic):
                continue
            start = max(min(known), self._log_start(tp) or 0)
            at_source.setdefault(leader, {})[tp] = (start, end)
            for broker in brokers:
                at_target.setdefault(broker, {})[tp] = (start, end)
        if not at_source:
            return {}
        differing: dict[TopicPartition, str] = {}
        try:
            async with asyncio.timeout(timeout):
                readings = await together_by_key(
                    {
                        ("source", node): read_rests(
                            self._source, node, spans, max_bytes=_RESTS_BYTES, timeout=timeout
                        )
                        for node, spans in at_source.items()
                    }
                    | {
                        ("target", broker): read_rests(
                            self._target.cluster, broker, spans, max_bytes=_RESTS_BYTES, timeout=timeout
                        )
                        for broker, spans in at_target.items()
                    }
                )
        except (LinkerError, TimeoutError) as error:
            log.info(
                "the batches behind the watermarks were not compared inside the fence: %s",
                str(error) or f"not read within {timeout:g} s",
            )
            return {}
        source = {
            tp: rest for (side, _), read in readings.items() if side == "source" for tp, rest in read.items()
        }
        for (side, broker), read in readings.items():
            if side == "target":
                found = compare_rests(source, read, broker)
                differing |= found
                unequal |= {(tp, broker) for tp in found}
                whole |= {(tp, broker) for tp in source.keys() & read.keys()}
        return differing

    async def _compare_tails(
        self,
        at_source: Mapping[int, Mapping[TopicPartition, int]],
        at_target: Mapping[int, Mapping[TopicPartition, int]],
        differing: dict[TopicPartition, str],
        unequal: set[tuple[TopicPartition, int]],
        timeout: float,
    ) -> list[tuple[TopicPartition, int]]:
        """Compare the replicas of which both sides have shown a last batch, or that there is none; a log that was
        emptied shows neither."""
        readings = await together_by_key(
            {
                ("source", node): read_tails(self._source, node, ends, timeout=timeout)
                for node, ends in at_source.items()
            }
            | {
                ("target", broker): read_tails(self._target.cluster, broker, ends, timeout=timeout)
                for broker, ends in at_target.items()
            }
        )
        source = {
            tp: tail for (side, _), read in readings.items() if side == "source" for tp, tail in read.items()
        }
        for (side, broker), read in readings.items():
            if side == "target":
                for mismatch in compare_tails(source, read, broker):
                    differing[mismatch.topic_partition] = str(mismatch)
                    unequal.add((mismatch.topic_partition, broker))
        return [
            (tp, broker)
            for (side, broker), read in readings.items()
            if side == "target"
            for tp in sorted(source.keys() & read.keys())
        ]
