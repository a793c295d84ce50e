"""Records of compacted partitions that a first look could not explain, looked for in the whole log of the side that lacks
them; what is left, whether its transaction was aborted.

A log cleaner knows more than a range does: later records of a key beyond its end, earlier ones before its start, and the
outcome of transactions (LogCleaner drops aborted records even if they are their key's last).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - as everybody who writes PySpark calls it

from validator import record_frames
from validator.ranges import PartitionBounds
from validator.record_frames import SOURCE

if TYPE_CHECKING:
    from validator.records import _Job

COMMITTED_POLL_MS = 10_000


@dataclass(frozen=True, slots=True)
class Suspect:
    """A record that only one side holds. `other`: the slot that lacks it."""

    part: int
    slot: int
    other: int
    offset: int
    kind: str
    key: int  # its hash

    @property
    def holder(self) -> int:
        """The slot that has it."""
        return SOURCE if self.kind == "record_missing" else self.slot


def second_look(job: _Job, suspects: Sequence[Suspect], *, limit: int) -> dict[Suspect, str | None]:
    """Why each is lawful (superseded, tombstone, aborted), None if it is not. More than `limit` are not looked at."""
    found: dict[Suspect, str | None] = dict.fromkeys(suspects)
    if not suspects or len(suspects) > limit:
        return found
    found |= _by_key(job, suspects)
    left = [suspect for suspect, why in found.items() if why is None]
    if left:
        found |= dict.fromkeys(_aborted(job, left), "aborted")
    return found


def _by_key(job: _Job, suspects: Sequence[Suspect]) -> dict[Suspect, str]:
    bounds = job.bounds_now()
    wanted: dict[int, dict[int, tuple[int, int]]] = {}
    for suspect in suspects:
        now = bounds.get(job.tps[suspect.part])
        for slot in (suspect.other, suspect.holder):
            stretch = None if now is None else _whole(now, slot)
            if stretch is not None:
                wanted.setdefault(slot, {})[suspect.part] = stretch
    rows = job.read(wanted)
    if rows is None:
        return {}
    keys = {(one.part, slot, one.key) for one in suspects for slot in (one.other, one.holder)}
    asked = job.spark.createDataFrame(sorted(keys), "part int, slot int, key long")
    found = record_frames.per_key(rows.join(F.broadcast(asked), ["part", "slot", "key"])).collect()
    held = {(row.part, row.slot, row.key): row for row in found}
    why: dict[Suspect, str] = {}
    for suspect in suspects:
        if any(suspect.part not in wanted.get(slot, {}) for slot in (suspect.other, suspect.holder)):
            continue
        there = held.get((suspect.part, suspect.other, suspect.key))
        here = held.get((suspect.part, suspect.holder, suspect.key))
        if there is not None and there.latest > suspect.offset:
            why[suspect] = "superseded"
        elif there is None and here is not None and here.tombstone:
            why[suspect] = "tombstone"
    return why


def _whole(now: PartitionBounds, slot: int) -> tuple[int, int] | None:
    """All that a side holds at this moment."""
    if slot == SOURCE:
        return now.log_start, now.end
    replica = next((one for one in now.replicas if one.broker_id == slot), None)
    return None if replica is None else (replica.log_start, replica.high_watermark)


def _aborted(job: _Job, suspects: Sequence[Suspect]) -> list[Suspect]:
    """Those that a read_committed reader of the side that has them does not see."""
    wanted: dict[int, dict[int, tuple[int, int]]] = {}
    for suspect in suspects:
        parts = wanted.setdefault(suspect.holder, {})
        low, high = parts.get(suspect.part, (suspect.offset, suspect.offset + 1))
        parts[suspect.part] = min(low, suspect.offset), max(high, suspect.offset + 1)
    committed = {
        "kafka.isolation.level": "read_committed",
        "kafkaConsumer.pollTimeoutMs": str(COMMITTED_POLL_MS),
    }
    rows = job.read(wanted, committed)
    if rows is None:
        return []
    places = {(one.part, one.holder, one.offset) for one in suspects}
    asked = job.spark.createDataFrame(sorted(places), "part int, slot int, offset long")
    try:
        seen = {
            (row.part, row.slot, row.offset)
            for row in rows.join(F.broadcast(asked), ["part", "slot", "offset"])
            .select("part", "slot", "offset")
            .collect()
        }
    except (Py4JJavaError, PySparkException):
        # Beyond an open transaction nothing is committed yet, and no cleaner goes there (UnifiedLog's first unstable
        # offset): what is missing there was not cleaned.
        return []
    return [one for one in suspects if (one.part, one.holder, one.offset) not in seen]
