"""The evidence's verdict in one word, and why. Unknown is never rounded to equal, and equal is said only of logs whose
start, end and every batch agree; what is nearly so has a word of its own."""

from __future__ import annotations

from enum import StrEnum

from validator.evidence.model import Evidence, PartitionEvidence, ReplicaEvidence

CLEANED = ("compacted_on_replica", "compacted_at_source", "rewritten")
"""Counted by a comparison by batches where a log cleaner may have been at work: it cannot tell which records went."""
EXPIRED = "expired_on_replica"
"""Counted by versions that took a replica's own retention for an excuse, without saying of how many records."""
GONE_BEFORE = ("expired_at_source_offsets", EXPIRED)
"""Records before the compared range: both digests are of those in it."""


class Verdict(StrEnum):
    """The worst first."""

    DIFFERENT = "DIFFERENT"  # at least one replica holds something else
    # A replica lacks records of the source before its log start; behind it nothing differs.
    STARTS_LATE = "STARTS_LATE"
    NOT_PROVED = "NOT_PROVED"  # no difference was found, but not everything was compared
    # Equal but for what log cleaners took on either side: which records that was is not proved.
    CLEANED = "CLEANED"
    EQUAL_FROM = "EQUAL_FROM"  # equal from where the mirror began; the source goes further back
    EQUAL = "EQUAL"  # every replica holds what the source holds, from its start up to the end it had to have


_ORDER = list(Verdict)


def worse(one: Verdict, other: Verdict) -> bool:
    return _ORDER.index(one) < _ORDER.index(other)


def replica_verdict(partition: PartitionEvidence, replica: ReplicaEvidence) -> tuple[Verdict, str | None]:
    """Verdict of one replica, and the reason unless it is EQUAL.

    A partition without an `end` (no hand-over) can only be EQUAL up to `through`, which is said by the caller.
    """
    if replica.findings_count or replica.findings:
        count = max(replica.findings_count, len(replica.findings))
        first = f", first at offset {replica.findings[0].offset}" if replica.findings else ""
        return Verdict.DIFFERENT, f"{count} finding{'s' if count > 1 else ''}{first}"
    if replica.tail_equal is False:
        return Verdict.DIFFERENT, "the last batch differed inside the fence"
    digests = (replica.source_digest, replica.digest)
    cleaned = sum(replica.lawful.get(kind, 0) for kind in CLEANED)
    excused = any(count for kind, count in replica.lawful.items() if kind not in GONE_BEFORE)
    if None not in digests and digests[0] != digests[1] and not excused:
        return Verdict.DIFFERENT, "the digests differ"
    missing = replica.missing
    if missing is not None and missing.batches + missing.records:
        most = "" if missing.exact else "at most "
        return Verdict.STARTS_LATE, (
            f"starts at offset {missing.end}: {most}{missing.records} records that the source has from offset"
            f" {missing.start} on are not there ({missing.why}); {_proved(partition, replica)}"
        )
    if replica.through is None:
        return Verdict.NOT_PROVED, "nothing was compared"
    if partition.end is not None and replica.through < partition.end:
        return Verdict.NOT_PROVED, f"compared up to {replica.through}, the end is {partition.end}"
    if partition.end is not None and replica.end is not None and replica.end < partition.end:
        # It was compared that far once, and has lost something since.
        return (
            Verdict.NOT_PROVED,
            f"it ended at {replica.end} when it was read last, the end is {partition.end}",
        )
    if None in digests:
        return Verdict.NOT_PROVED, "a digest is missing"
    if replica.lawful.get(EXPIRED) and replica.log_start is None:
        return Verdict.NOT_PROVED, (
            f"an earlier version counted {replica.lawful[EXPIRED]} batches as expired on the replica, and not their records"
        )
    if cleaned or digests[0] != digests[1]:
        return Verdict.CLEANED, (
            f"{cleaned} batches are not alike where a log cleaner may have been at work; linker validate --mode records"
            " tells whether the right records are gone"
        )
    if partition.start > 0 and (partition.source_start is None or partition.source_start < partition.start):
        back = "" if partition.source_start is None else f"; the source goes back to {partition.source_start}"
        return Verdict.EQUAL_FROM, f"equal from offset {partition.start}, where the mirror began{back}"
    return Verdict.EQUAL, None


def _proved(partition: PartitionEvidence, replica: ReplicaEvidence) -> str:
    if replica.through is None or replica.through <= replica.proved_from:
        return "nothing of it was compared"
    end = "" if partition.end is None or replica.through >= partition.end else f", the end is {partition.end}"
    return f"equal from offset {replica.proved_from} up to {replica.through}{end}"


def partition_verdict(partition: PartitionEvidence) -> tuple[Verdict, str | None]:
    """The worst of its replicas, with the broker named; without replicas nothing is proved."""
    if not partition.replicas:
        return Verdict.NOT_PROVED, "no replica was compared"
    found: tuple[Verdict, str | None] = (Verdict.EQUAL, None)
    for replica in partition.replicas:
        verdict, reason = replica_verdict(partition, replica)
        if worse(verdict, found[0]):
            found = verdict, f"broker {replica.broker_id}: {reason}"
    return found


def verdict_of(evidence: Evidence) -> tuple[Verdict, str | None]:
    """The worst of all partitions, the first of them named; without partitions nothing is proved."""
    if not evidence.partitions:
        return Verdict.NOT_PROVED, "no partition was compared"
    found: tuple[Verdict, str | None] = (Verdict.EQUAL, None)
    for partition in evidence.partitions:
        verdict, reason = partition_verdict(partition)
        if worse(verdict, found[0]):
            found = verdict, f"{partition.topic}-{partition.partition}, {reason}"
    return found


def missing_records(evidence: Evidence) -> int:
    """Of all partitions, of each the replica that lacks most: as a promote counts them."""
    return sum(
        max((one.missing.records for one in partition.replicas if one.missing is not None), default=0)
        for partition in evidence.partitions
    )
