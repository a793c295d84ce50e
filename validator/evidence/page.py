"""The evidence as one HTML page: the verdict first, then how it came about, then every replica.

The page loads nothing and runs only its own script; the policy in its head says so to the browser, so that even a name that
slipped through the escaping could not. Pure: evidence in, text out.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Iterable

from validator.evidence import charts, series
from validator.evidence.assets import SCRIPT, STYLE
from validator.evidence.model import Evidence
from validator.evidence.table import differences, lawful_differences, replica_table, run_table
from validator.evidence.text import duration, escaped, moment, number, rate, short, size
from validator.evidence.verdict import Verdict, missing_records, replica_verdict, verdict_of

HEADLINES = {
    Verdict.EQUAL: "Both logs are equal",
    Verdict.EQUAL_FROM: "Both logs are equal from where the mirror began",
    Verdict.CLEANED: "Equal but for what log cleaners took",
    Verdict.STARTS_LATE: "Replicas start later than the source",
    Verdict.DIFFERENT: "The logs differ",
    Verdict.NOT_PROVED: "Equality is not proved",
}


def render(evidence: Evidence) -> str:
    """The whole page. About 700 bytes per replica; rows beyond `table.MAX_ROWS` are left to the JSON and Parquet files."""
    verdict, reason = verdict_of(evidence)
    hashed = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{hashed}'; base-uri 'none'; form-action 'none'"
    )
    of = f"link {escaped(evidence.link)}" + (
        f", promote {escaped(evidence.promote)}" if evidence.promote else ""
    )
    return "\n".join(
        (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width,initial-scale=1">',
            '<meta name="referrer" content="no-referrer">',
            f"<title>{HEADLINES[verdict]}: {of}</title><style>{STYLE}</style></head><body><main>",
            f"<h1>Kafka Linker, evidence: {of}</h1>",
            f'<section class="verdict {verdict}"><strong>{HEADLINES[verdict]}</strong>',
            f"<p>{_why(evidence, verdict, reason)}</p></section>",
            _tiles(evidence),
            _notes(evidence),
            differences(evidence),
            _about(evidence),
            _configs(evidence),
            _charts(evidence),
            lawful_differences(evidence),
            replica_table(evidence),
            run_table(evidence),
            _reading(evidence),
            f"</main><script>{SCRIPT}</script></body></html>\n",
        )
    )


def _configs(evidence: Evidence) -> str:
    """The overrides that each topic has from the promote on; topics with the same ones share a line."""
    alike: dict[tuple[tuple[str, str | None], ...], list[str]] = {}
    for topic in evidence.topics:
        if topic.configs:
            alike.setdefault(tuple(sorted(topic.configs.items())), []).append(topic.topic)
    if not alike:
        return ""
    lines = []
    for configs, topics in alike.items():
        shown = ", ".join(
            f"{escaped(name)}={escaped(value)}"
            if value is not None
            else f"{escaped(name)} by the target's default"
            for name, value in configs
        )
        more = f" and {number(len(topics) - 5)} more" if len(topics) > 5 else ""
        lines.append(f"<li>{', '.join(escaped(topic) for topic in topics[:5])}{more}: {shown}</li>")
    left = f"<li>and {number(len(lines) - 50)} more: see the JSON file</li>" if len(lines) > 50 else ""
    return f"<h2>Topic configs from the promote on</h2><ul>{''.join(lines[:50])}{left}</ul>"


def _why(evidence: Evidence, verdict: Verdict, reason: str | None) -> str:
    if verdict is Verdict.STARTS_LATE:
        count = missing_records(evidence)
        accepted = (
            f", of which {number(evidence.accepted_missing)} were accepted"
            if evidence.accepted_missing
            else ""
        )
        return f"{number(count)} records of the source are not at the target{accepted}. First: {escaped(reason)}."
    if verdict is not Verdict.EQUAL:
        return f"{escaped(reason)}."
    handed_over = all(partition.end is not None for partition in evidence.partitions)
    until = "up to the last offset before the hand-over" if handed_over else "as far as it was compared"
    what = "record" if evidence.mode == "records" else "batch"
    return f"Every replica holds every {what} that the source holds, {until}, and no other."


def _tiles(evidence: Evidence) -> str:
    verdicts = Counter(
        replica_verdict(partition, replica)[0]
        for partition in evidence.partitions
        for replica in partition.replicas
    )
    replicas = [replica for partition in evidence.partitions for replica in partition.replicas]
    findings = sum(max(replica.findings_count, len(replica.findings)) for replica in replicas)
    tiles = [
        (f"{verdicts[Verdict.EQUAL]:,} of {len(replicas):,}", "replicas proved equal"),
        (number(len(evidence.partitions)), "partitions"),
        (number(findings), "differences"),
        (number(missing_records(evidence)), "records missing before a late start"),
        (number(sum(replica.batches for replica in replicas)), "batches compared"),
        (number(sum(replica.records for replica in replicas)), "records in them"),
        (size(sum(replica.bytes for replica in replicas)), "read from replicas"),
    ]
    return (
        '<section class="tiles">'
        + "".join(f'<div class="tile"><b>{value}</b><span>{name}</span></div>' for value, name in tiles)
        + "</section>"
    )


def _notes(evidence: Evidence) -> str:
    if not evidence.notes:
        return ""
    return "<h2>Notes</h2><ul>" + "".join(f"<li>{escaped(note)}</li>" for note in evidence.notes) + "</ul>"


def _about(evidence: Evidence) -> str:
    outcome = " ".join(
        part for part in (evidence.outcome, evidence.reason and f"({evidence.reason})") if part
    )
    promote = _list(
        (
            ("link", evidence.link),
            ("promote", evidence.promote),
            ("outcome", outcome or None),
            ("asked for by", evidence.requested_by),
            ("accepted missing", str(evidence.accepted_missing) if evidence.accepted_missing else None),
            ("done by", evidence.sidecar),
            ("from", moment(evidence.started_ms)),
            ("to", moment(evidence.finished_ms)),
            ("compared", f"{evidence.mode}; validation was {evidence.policy}"),
            *((f"{name}", version) for name, version in sorted(evidence.versions.items())),
            ("Spark master", evidence.spark_master),
        )
    )
    clusters = "".join(
        f"<h3>{side}</h3>"
        + _list(
            (
                ("name", cluster.name),
                ("bootstrap", ", ".join(cluster.bootstrap) or None),
                ("cluster id", cluster.cluster_id),
                ("Kafka", cluster.version),
            )
        )
        + ("<p></p>" if side == "Source" else "")
        for side, cluster in (("Source", evidence.source), ("Target", evidence.target))
    )
    bars = charts.phase_bars([(phase.name, phase.at_ms, phase.ms) for phase in evidence.phases])
    total = sum(phase.ms for phase in evidence.phases)
    heading = f"Phases, {duration(total)} together" if evidence.phases else "Phases"
    return (
        f'<h2>The promote</h2><div class="pair"><div class="card">{promote}</div><div class="card">{clusters}</div></div>'
        f'<p></p><div class="card"><h3>{heading}</h3>{bars}</div>'
    )


def _list(facts: Iterable[tuple[str, str | None]]) -> str:
    return (
        "<dl>"
        + "".join(
            f"<dt>{escaped(name)}</dt><dd>{escaped(value)}</dd>" for name, value in facts if value is not None
        )
        + "</dl>"
    )


def _charts(evidence: Evidence) -> str:
    parts = evidence.partitions
    mark = next((phase.at_ms for phase in evidence.phases if phase.name == "FENCED"), None)
    drawn = (
        (
            "Validated offsets, all partitions together",
            charts.line_chart(
                series.validated(parts),
                label="Validated offsets over time",
                unit=short,
                mark_ms=mark,
                width=charts.WIDE,
            ),
        ),
        (
            "Lag of the slowest replica, by partition, in offsets",
            charts.line_chart(
                series.lag(parts), label="Lag over time by partition", unit=short, mark_ms=mark
            ),
        ),
        (
            "Mirrored per second, by partition",
            charts.line_chart(
                series.throughput(parts),
                label="Throughput over time by partition",
                unit=rate,
                mark_ms=mark,
                none="A rate needs two looks at a partition that are half a second apart; there were none.",
            ),
        ),
    )
    cards = [f'<div class="card"><h3>{escaped(name)}</h3>{chart}</div>' for name, chart in drawn]
    marked = "; the dotted line is the fence" if mark is not None else ""
    beside = f'<div class="pair">{cards[1]}{cards[2]}</div>'
    return f'<h2>Over time</h2><p class="soft">Times in UTC{marked}.</p>{cards[0]}<p></p>{beside}'


def _reading(evidence: Evidence) -> str:
    unit = "record" if evidence.mode == "records" else "record batch"
    same = "records" if evidence.mode == "records" else "offsets, record counts and checksums of batches"
    digest = (
        f"A digest is the sum of a hash of every {unit} in the validated range, without regard to order, so that "
        f"runs add up. Equal digests mean the same {same} on both sides."
    )
    lawful = (
        "Not different: the leader epoch, which lies outside a batch's checksum, and what the source had deleted before "
        "it could be compared. Only counted: what compaction took. Never called equal: a replica that starts later than "
        "the source."
    )
    lines = (
        digest,
        "Ends are exclusive: validated through 100 means that offset 99 was compared.",
        lawful,
        "The same facts for programs are beside this page, as JSON and as Parquet.",
    )
    return "<h2>How to read this</h2><ul>" + "".join(f"<li>{line}</li>" for line in lines) + "</ul>"
