"""Records of compacted partitions that a first look could not explain, looked for in the whole log of the side that lacks
them: a log cleaner knows more than a range does, later records of a key beyond its end and earlier ones before its start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Row
from pyspark.sql import functions as F  # noqa: N812 - as everybody who writes PySpark calls it

from validator.compare.cleaner_bounds import NO_LIMIT, TOMBSTONE_TOO_YOUNG
from validator.read.ranges import PartitionBounds
from validator.records import frames
from validator.records.frames import SOURCE
from validator.records.logs import RecordLogs


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


def second_look(
    job: RecordLogs, suspects: Sequence[Suspect], expired: Mapping[tuple[int, int], int]
) -> dict[Suspect, str | None]:
    """Why each is lawful (superseded, tombstone), why it is not, None if nothing is known. `expired`: of each (part, slot)
    the newest timestamp that a tombstone can have that its cleaner took."""
    found: dict[Suspect, str | None] = dict.fromkeys(suspects)
    if not suspects:
        return found
    bounds = job.bounds_now()
    wanted: dict[int, dict[int, tuple[int, int]]] = {}
    for suspect in suspects:
        now = bounds.get(job.tps[suspect.part])
        for slot in (suspect.other, suspect.holder):
            stretch = None if now is None else _whole(now, slot)
            if stretch is not None:
                wanted.setdefault(slot, {})[suspect.part] = stretch
    rows = job.read_settled(wanted, job.stable_ends(bounds))
    if rows is None:
        return found
    keys = {(one.part, slot, one.key) for one in suspects for slot in (one.other, one.holder)}
    asked = job.spark.createDataFrame(sorted(keys), "part int, slot int, key long")
    last = frames.per_key(rows.join(F.broadcast(asked), ["part", "slot", "key"])).collect()
    held = {(row.part, row.slot, row.key): row for row in last}
    for suspect in suspects:
        if any(suspect.part not in wanted.get(slot, {}) for slot in (suspect.other, suspect.holder)):
            continue
        there = held.get((suspect.part, suspect.other, suspect.key))
        here = held.get((suspect.part, suspect.holder, suspect.key))
        limit = expired.get((suspect.part, suspect.slot), NO_LIMIT) if suspect.other != SOURCE else NO_LIMIT
        found[suspect] = judged(suspect, there, here, limit)
    return found


def judged(suspect: Suspect, there: Row | None, here: Row | None, expired: int) -> str | None:
    """By the last committed record of its key on the side that lacks it, and on the one that has it."""
    if there is not None and there.latest > suspect.offset:
        return "superseded"
    if there is None and here is not None and here.tombstone:
        return "tombstone" if here.time <= expired else TOMBSTONE_TOO_YOUNG
    return None


def _whole(now: PartitionBounds, slot: int) -> tuple[int, int] | None:
    """All that a side holds at this moment."""
    if slot == SOURCE:
        return now.log_start, now.end
    replica = next((one for one in now.replicas if one.broker_id == slot), None)
    return None if replica is None else (replica.log_start, replica.high_watermark)
