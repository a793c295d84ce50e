"""The evidence as one HTML page: the verdict first, then how it came about, then every replica.

The page loads nothing and runs only its own script, which sorts and filters the table; the policy in its head says so to the
browser, so that even a name that slipped through the escaping could not. Pure: evidence in, text out.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from validator.compare.facts import BatchFacts
from validator.evidence import charts, series, text
from validator.evidence.model import Evidence
from validator.evidence.verdict import Verdict, missing_records, replica_verdict, verdict_of

MAX_ROWS = 6000
"""Rows of the table of replicas: a browser still sorts that many at once. Those that are not equal come first."""
MAX_FINDING_ROWS = 500
HEADLINES = {
    Verdict.EQUAL: "Both logs are equal",
    Verdict.EQUAL_FROM: "Both logs are equal from where the mirror began",
    Verdict.CLEANED: "Equal but for what log cleaners took",
    Verdict.STARTS_LATE: "Replicas start later than the source",
    Verdict.DIFFERENT: "The logs differ",
    Verdict.NOT_PROVED: "Equality is not proved",
}
_WORDS = {
    Verdict.EQUAL: "equal",
    Verdict.EQUAL_FROM: "equal from the mirror's start",
    Verdict.CLEANED: "equal but for compaction",
    Verdict.NOT_PROVED: "not proved",
    Verdict.STARTS_LATE: "starts late",
    Verdict.DIFFERENT: "different",
}
_ORDER = {verdict: place for place, verdict in enumerate(Verdict)}
_NUMBERS = ("validated from", "through", "end at the source", "replica's end", "batches", "records", "bytes")
_COLUMNS = (
    *(("partition", ""), ("broker", "n"), ("result", "")),
    *((name, "n") for name in _NUMBERS),
    *(("digests", ""), ("lawful", "")),
)
_HERE = Path(__file__).parent
STYLE, SCRIPT = ((_HERE / name).read_text("utf-8") for name in ("page.css", "page.js"))


def render(evidence: Evidence) -> str:
    """The whole page. About 700 bytes per replica; rows beyond MAX_ROWS are left to the JSON and Parquet files."""
    verdict, reason = verdict_of(evidence)
    parts = evidence.partitions
    judged = [(part, one, *replica_verdict(part, one)) for part in parts for one in part.replicas]
    findings = [(part, one, finding) for part, one, *_ in judged for finding in one.findings]
    total = sum(max(one.findings_count, len(one.findings)) for _, one, *_ in judged)
    lawful: Counter[str] = Counter()
    for _, one, *_ in judged:
        lawful.update(one.lawful)
    mark = next((phase.at_ms for phase in evidence.phases if phase.name == "FENCED"), None)
    return _TEMPLATE.render(
        evidence=evidence,
        verdict=verdict,
        reason=reason,
        headline=HEADLINES[verdict],
        missing=missing_records(evidence),
        handed_over=all(part.end is not None for part in parts),
        tiles=(
            (f"{sum(found is Verdict.EQUAL for *_, found, _ in judged):,} of {len(judged):,}", "replicas proved equal"),
            (text.number(len(parts)), "partitions"),
            (text.number(total), "differences"),
            (text.number(missing_records(evidence)), "records missing before a late start"),
            (text.number(sum(one.batches for _, one, *_ in judged)), "batches compared"),
            (text.number(sum(one.records for _, one, *_ in judged)), "records in them"),
            (text.size(sum(one.bytes for _, one, *_ in judged)), "read from replicas"),
        ),
        findings=findings[:MAX_FINDING_ROWS],
        total=total,
        promote=_promote(evidence),
        bars=charts.phase_bars([(phase.name, phase.at_ms, phase.ms) for phase in evidence.phases]),
        configs=_configs(evidence),
        fenced=mark is not None,
        charts=_charts(evidence, mark),
        lawful=[(kind, text.number(count)) for kind, count in sorted(lawful.items()) if count],
        replicas=sorted(
            ((_ORDER[found], found, why, part, one) for part, one, found, why in judged),
            key=lambda row: (row[0], row[3].topic, row[3].partition, row[4].broker_id),
        ),
    )  # fmt: skip


def _promote(evidence: Evidence) -> list[tuple[str, str | None]]:
    outcome = (evidence.outcome, evidence.reason and f"({evidence.reason})")
    return [
        ("link", evidence.link),
        ("promote", evidence.promote),
        ("outcome", " ".join(part for part in outcome if part) or None),
        ("asked for by", evidence.requested_by),
        ("accepted missing", str(evidence.accepted_missing) if evidence.accepted_missing else None),
        ("done by", evidence.sidecar),
        ("from", text.moment(evidence.started_ms)),
        ("to", text.moment(evidence.finished_ms)),
        ("compared", f"{evidence.mode}; validation was {evidence.policy}"),
        *sorted(evidence.versions.items()),
        ("Spark master", evidence.spark_master),
    ]


def _configs(evidence: Evidence) -> list[tuple[tuple[tuple[str, str | None], ...], list[str]]]:
    """The overrides that each topic has from the promote on; topics with the same ones share a line."""
    alike: dict[tuple[tuple[str, str | None], ...], list[str]] = {}
    for topic in evidence.topics:
        if topic.configs:
            alike.setdefault(tuple(sorted(topic.configs.items())), []).append(topic.topic)
    return list(alike.items())


def _charts(evidence: Evidence, mark: int | None) -> list[tuple[str, str]]:
    parts = evidence.partitions
    validated = charts.line_chart(
        series.validated(parts),
        label="Validated offsets over time",
        unit=text.short,
        mark_ms=mark,
        width=charts.WIDE,
    )
    lag = charts.line_chart(
        series.lag(parts), label="Lag over time by partition", unit=text.short, mark_ms=mark
    )
    mirrored = charts.line_chart(
        series.throughput(parts),
        label="Throughput over time by partition",
        unit=text.rate,
        mark_ms=mark,
        none="A rate needs two looks at a partition that are half a second apart; there were none.",
    )
    return [
        ("Validated offsets, all partitions together", validated),
        ("Lag of the slowest replica, by partition, in offsets", lag),
        ("Mirrored per second, by partition", mirrored),
    ]


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
    return (
        f"offsets {facts.base_offset} to {facts.last_offset}, {facts.records} records, {facts.size} bytes, "
        f"{facts.codec}, {crc}{producer}, attributes {facts.attributes:#06x}, newest {text.moment(facts.max_timestamp)}"
    )


_ENVIRONMENT = Environment(
    loader=FileSystemLoader(_HERE),
    autoescape=True,
    undefined=StrictUndefined,
    # HTML is let through, and is made by the template itself, or marked as safe there.
    finalize=lambda value: value if hasattr(value, "__html__") else text.visible(str(value)),
    trim_blocks=True,
)
_ENVIRONMENT.filters |= {
    "batch": _batch,
    "duration": text.duration,
    "moment": text.moment,
    "number": text.number,
    "size": text.size,
}
_ENVIRONMENT.globals |= {
    "columns": _COLUMNS,
    "max_rows": MAX_ROWS,
    "script": SCRIPT,
    "script_hash": base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode(),
    "style": STYLE,
    "unknown": text.UNKNOWN,
    "words": _WORDS,
}
_TEMPLATE = _ENVIRONMENT.get_template("page.html.jinja")
