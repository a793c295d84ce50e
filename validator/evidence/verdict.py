"""What the evidence says in one word, and why: equal, different, or not proved. Unknown is never rounded to equal."""

from __future__ import annotations

from enum import StrEnum

from validator.evidence.model import Evidence, PartitionEvidence, ReplicaEvidence


class Verdict(StrEnum):
    EQUAL = "EQUAL"  # every replica holds what the source holds, up to the end it had to have
    DIFFERENT = "DIFFERENT"  # at least one replica holds something else
    NOT_PROVED = "NOT_PROVED"  # no difference was found, but not everything was compared


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
    if None not in digests and digests[0] != digests[1] and not any(replica.lawful.values()):
        return Verdict.DIFFERENT, "the digests differ"
    if replica.through is None:
        return Verdict.NOT_PROVED, "nothing was compared"
    if partition.end is not None and replica.through < partition.end:
        return Verdict.NOT_PROVED, f"compared up to {replica.through}, the end is {partition.end}"
    if None in digests:
        return Verdict.NOT_PROVED, "a digest is missing"
    return Verdict.EQUAL, None


def partition_verdict(partition: PartitionEvidence) -> tuple[Verdict, str | None]:
    """The worst of its replicas, with the broker named; without replicas nothing is proved."""
    if not partition.replicas:
        return Verdict.NOT_PROVED, "no replica was compared"
    found: tuple[Verdict, str | None] = (Verdict.EQUAL, None)
    for replica in partition.replicas:
        verdict, reason = replica_verdict(partition, replica)
        why = f"broker {replica.broker_id}: {reason}"
        if verdict is Verdict.DIFFERENT:
            return verdict, why
        if verdict is Verdict.NOT_PROVED and found[0] is Verdict.EQUAL:
            found = verdict, why
    return found


def verdict_of(evidence: Evidence) -> tuple[Verdict, str | None]:
    """The worst of all partitions, the first of them named; without partitions nothing is proved."""
    if not evidence.partitions:
        return Verdict.NOT_PROVED, "no partition was compared"
    found: tuple[Verdict, str | None] = (Verdict.EQUAL, None)
    for partition in evidence.partitions:
        verdict, reason = partition_verdict(partition)
        why = f"{partition.topic}-{partition.partition}, {reason}"
        if verdict is Verdict.DIFFERENT:
            return verdict, why
        if verdict is Verdict.NOT_PROVED and found[0] is Verdict.EQUAL:
            found = verdict, why
    return found
