"""The tables of the page: what differs, every replica with its offsets and digests, the runs. Pure."""

from __future__ import annotations

from collections import Counter

from validator.compare.facts import BatchFacts
from validator.evidence.model import Evidence, PartitionEvidence, ReplicaEvidence
from validator.evidence.text import UNKNOWN, duration, escaped, moment, number, size
from validator.evidence.verdict import Verdict, replica_verdict

MAX_ROWS = 6000
"""Rows of the table of replicas: a browser still sorts that many at once. Those that are not equal come first."""
MAX_FINDING_ROWS = 500
_WORDS = {
    Verdict.EQUAL: "equal",
    Verdict.EQUAL_FROM: "equal from the mirror's start",
    Verdict.CLEANED: "equal but for compaction",
    Verdict.NOT_PROVED: "not proved",
    Verdict.STARTS_LATE: "starts late",
    Verdict.DIFFERENT: "different",
}
_ORDER = {verdict: place for place, verdict in enumerate(Verdict)}
_COLUMNS = (
    ("partition", ""),
    ("broker", "n"),
    ("result", ""),
    ("validated from", "n"),
    ("through", "n"),
    ("end at the source", "n"),
    ("replica's end", "n"),
    ("batches", "n"),
    ("records", "n"),
    ("bytes", "n"),
    ("digests", ""),
    ("lawful", ""),
)


def tag(verdict: Verdict) -> str:
    return f'<span class="tag {verdict}">{_WORDS[verdict]}</span>'


def differences(evidence: Evidence) -> str:
    """Every finding that is known; nothing if there is none."""
    rows = []
    known = 0
    total = 0
    for partition in evidence.partitions:
        for replica in partition.replicas:
            total += max(replica.findings_count, len(replica.findings))
            for finding in replica.findings:
                known += 1
                if known > MAX_FINDING_ROWS:
                    continue
                sides = "".join(
                    f'<div class="facts"><span class="soft">{side}:</span> {_batch(facts)}</div>'
                    for side, facts in (("source", finding.source), ("replica", finding.replica))
                    if finding.source is not None or finding.replica is not None
                )
                rows.append(
                    f'<tr><td class="name">{escaped(partition.topic)}-{partition.partition}</td>'
                    f'<td class="n">{replica.broker_id}</td><td class="n">{number(finding.offset)}</td>'
                    f"<td>{escaped(finding.kind.value)}</td><td>{escaped(finding.detail)}{sides}</td></tr>"
                )
    if not rows:
        return ""
    shown = min(known, MAX_FINDING_ROWS)
    left = f'<p class="soft">{shown:,} of {total:,}; of each replica the first.</p>' if shown < total else ""
    return (
        f'<h2>What differs</h2>{left}<div class="scroll"><table><thead><tr><th>partition</th><th class="n">broker</th>'
        f'<th class="n">offset</th><th>kind</th><th>what</th></tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
    )


def lawful_differences(evidence: Evidence) -> str:
    """The lawful differences of all replicas, by kind; nothing if there are none."""
    lawful: Counter[str] = Counter()
    for partition in evidence.partitions:
        for replica in partition.replicas:
            lawful.update(replica.lawful)
    counted = [(kind, count) for kind, count in sorted(lawful.items()) if count]
    if not counted:
        return ""
    listed = "".join(f"<dt>{escaped(kind)}</dt><dd>{number(count)}</dd>" for kind, count in counted)
    return f'<h2>What differs lawfully</h2><div class="card"><dl>{listed}</dl></div>'


def _batch(facts: BatchFacts | None) -> str:
    if facts is None:
        return "nothing there"
    crc = f"crc {facts.crc:08x}"
    if facts.crc != facts.crc_computed:
        crc += f", of its bytes {facts.crc_computed:08x}"
    producer = ""
    if facts.producer_id >= 0:
        producer = (
            f", producer {facts.producer_id} epoch {facts.producer_epoch} sequence {facts.base_sequence}"
        )
    return escaped(
        f"offsets {facts.base_offset} to {facts.last_offset}, {facts.records} records, {facts.size} bytes, "
        f"{facts.codec}, {crc}{producer}, attributes {facts.attributes:#06x}, newest {moment(facts.max_timestamp)}"
    )


def replica_table(evidence: Evidence) -> str:
    """One row per replica, those that are not equal first."""
    rows: list[tuple[int, str, int, int, Verdict, PartitionEvidence, ReplicaEvidence]] = []
    for partition in evidence.partitions:
        for replica in partition.replicas:
            verdict, _ = replica_verdict(partition, replica)
            rows.append(
                (
                    _ORDER[verdict],
                    partition.topic,
                    partition.partition,
                    replica.broker_id,
                    verdict,
                    partition,
                    replica,
                )
            )
    rows.sort(key=lambda row: row[:4])
    head = "".join(
        f'<th class="{kind}">{name}</th>' if kind else f"<th>{name}</th>" for name, kind in _COLUMNS
    )
    body = "\n".join(_row(verdict, partition, replica) for *_, verdict, partition, replica in rows[:MAX_ROWS])
    left = (
        f'<p class="soft">{MAX_ROWS:,} of {len(rows):,} replicas; the others are in the JSON and Parquet files.</p>'
        if len(rows) > MAX_ROWS
        else ""
    )
    tools = (
        '<div class="tools"><input type="search" id="find" placeholder="topic" aria-label="Show partitions of topic">'
        '<label><input type="checkbox" id="only"> only what is not equal</label><span class="soft" id="count"></span></div>'
    )
    return (
        f'<h2>Every replica</h2>{left}{tools}<div class="scroll"><table id="replicas"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _row(verdict: Verdict, partition: PartitionEvidence, replica: ReplicaEvidence) -> str:
    _, reason = replica_verdict(partition, replica)
    why = f'<div class="soft">{escaped(reason)}</div>' if reason else ""
    tail = '<div class="soft tail">tail equal in the fence</div>' if replica.tail_equal else ""
    lawful = "<br>".join(
        f"{escaped(kind)} {number(count)}" for kind, count in sorted(replica.lawful.items()) if count
    )
    numbers = (
        replica.proved_from,
        replica.through,
        partition.end,
        replica.end,
        replica.batches,
        replica.records,
    )
    cells = "".join(_number(value) for value in numbers)
    return (
        f'<tr data-ok="{int(verdict is Verdict.EQUAL)}">'
        f'<td class="name">{escaped(partition.topic)}-{partition.partition}</td>{_number(replica.broker_id)}'
        f'<td data-v="{_ORDER[verdict]}">{tag(verdict)}{why}{tail}</td>{cells}'
        f'<td class="n" data-v="{replica.bytes}">{size(replica.bytes)}</td>'
        f'<td class="d">{_digests(replica)}</td><td>{lawful}</td></tr>'
    )


def _number(value: int | None) -> str:
    return f'<td class="n" data-v="{"" if value is None else value}">{number(value)}</td>'


def _digests(replica: ReplicaEvidence) -> str:
    source, digest = replica.source_digest, replica.digest
    if source is not None and source == digest:
        return f'<code>{source}</code><div class="soft">on both sides</div>'
    return (
        f'<code>{source or UNKNOWN}</code><div class="soft">source</div>'
        f'<code>{digest or UNKNOWN}</code><div class="soft">replica</div>'
    )


def run_table(evidence: Evidence) -> str:
    """The Spark runs behind the evidence."""
    if not evidence.runs:
        return ""
    rows = "".join(
        f'<tr><td class="name"><code>{escaped(run.id)}</code></td><td>{moment(run.at_ms)}</td><td>{run.mode.value}</td>'
        f'<td class="n">{duration(run.seconds * 1000)}</td>'
        + "".join(f'<td class="n">{number(value)}</td>' for value in (run.replicas, run.batches, run.records))
        + f'<td class="n">{size(run.bytes)}</td><td class="n">{number(run.mismatches)}</td>'
        f"<td>{escaped(run.failed) if run.failed is not None else 'finished'}</td></tr>"
        for run in evidence.runs
    )
    head = (
        '<th>run</th><th>began</th><th>mode</th><th class="n">took</th><th class="n">replicas</th><th class="n">batches</th>'
        '<th class="n">records</th><th class="n">bytes</th><th class="n">mismatches</th><th>result</th>'
    )
    return f'<h2>Spark runs</h2><div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
