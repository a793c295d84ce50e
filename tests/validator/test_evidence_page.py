"""The page: what it says, that hostile texts stay texts, that it loads nothing, and that thousands of partitions fit."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from tests.validator.evidence_examples import DIGEST, OTHER, evidence, finding, partition, replica
from validator.compare.facts import BatchFacts, Finding, FindingKind
from validator.evidence.model import ClusterFacts, Evidence, PhaseTime, RunFacts, Sample, TopicEvidence
from validator.evidence.page import MAX_ROWS, SCRIPT, render
from validator.mode import Mode

HOSTILE = "\"><script>alert(1)</script><img src=x onerror=alert(2)>\u202e\x1b[31m\x00&amp;'</style></svg>"
VOID = {"meta", "br", "input", "line", "path", "rect", "i"}


class Parsed(HTMLParser):
    """All tags with their attributes, and the text of rows and of the verdict."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text: dict[str, list[str]] = {}
        self.rows: list[list[str]] = []
        self._in_replicas = False
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "table":
            self._in_replicas = dict(attrs).get("id") == "replicas"
        if self._in_replicas and tag == "tr":
            self.rows.append([])
        if self._in_replicas and tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.text.setdefault(self.open[-1], []).append(data)
        if self._in_replicas and "table" in self.open and self.rows and self.rows[-1]:
            self.rows[-1][-1] += data


def everything(text: str) -> Evidence:
    """Evidence in which every text is the given one."""
    facts = BatchFacts(
        base_offset=0, last_offset=1, records=2, size=99, crc=1, crc_computed=2, attributes=0, codec=text,
        producer_id=1, producer_epoch=0, base_sequence=0, max_timestamp=-1,
    )  # fmt: skip
    one = replica(
        findings=(Finding(kind=FindingKind.CORRUPT, offset=1, detail=text, source=facts, replica=facts),),
        findings_count=1,
        lawful={text: 3},
    )
    samples = tuple(
        Sample(at_ms=at, source_end=at, lag=at, bytes_per_second=at, validated={1: at}) for at in (1, 2, 9)
    )
    cluster = ClusterFacts(name=text, bootstrap=(text,), cluster_id=text, version=text)
    return evidence(
        partition(one, topic=text, samples=samples),
        link=text, promote=text, outcome=text, reason=text, source=cluster, target=cluster, requested_by=text,
        sidecar=text, phases=(PhaseTime(name=text, at_ms=5, ms=2),), versions={text: text}, spark_master=text,
        topics=(TopicEvidence(topic=text, configs={text: text}),), notes=(text,),
        runs=(RunFacts(id=text, mode=Mode.BATCHES, at_ms=1, seconds=1.5, failed=text),),
    )  # fmt: skip


def test_hostile_texts_stay_texts() -> None:
    page = render(everything(HOSTILE))
    parsed = Parsed(page)
    assert parsed.open == []
    harmless = Parsed(render(everything("x")))
    assert [tag for tag, _ in parsed.tags] == [tag for tag, _ in harmless.tags]
    for (tag, attrs), (_, expected) in zip(parsed.tags, harmless.tags, strict=True):
        assert attrs.keys() == expected.keys(), tag
    assert parsed.text["script"] == [SCRIPT]
    assert not re.search(r"[\x00-\x08\x0b-\x1f\u202e]", page)
    assert "\\u202e" in page
    assert page.count(SCRIPT) == 1


def test_the_configs_of_topics_are_told_and_those_that_are_alike_share_a_line() -> None:
    configs: dict[str, str | None] = {"retention.ms": "-1", "unclean.leader.election.enable": None}
    topics = (
        *(TopicEvidence(topic=f"t{index}", configs=configs) for index in range(7)),
        TopicEvidence(topic="other", configs={"retention.ms": HOSTILE}),
    )
    page = render(evidence(topics=topics))
    assert (
        "t0, t1, t2, t3, t4 and 2 more: retention.ms=-1, unclean.leader.election.enable by the target's"
        in page
    )
    assert HOSTILE not in page


def test_a_long_text_is_cut() -> None:
    assert len(render(everything("z" * 100_000))) < 60_000


def test_nothing_is_loaded_and_only_the_own_script_may_run() -> None:
    page = render(everything("plain"))
    assert not re.search(r"https?:|url\(|@import|//[a-z]", page)
    parsed = Parsed(page)
    for _, attrs in parsed.tags:
        assert not {"src", "href", "srcset", "data", "action"} & attrs.keys()
        assert not [name for name in attrs if name.startswith("on") or name == "style"]
    [policy] = [attrs["content"] for _, attrs in parsed.tags if "http-equiv" in attrs]
    hashed = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    assert policy is not None
    assert "default-src 'none'" in policy
    assert f"script-src 'sha256-{hashed}'" in policy


@pytest.mark.parametrize(
    ("whole", "headline", "why"),
    [
        (evidence(partition(replica())), "Both logs are equal", "up to the last offset before the hand-over"),
        (evidence(partition(replica(), end=None)), "Both logs are equal", "as far as it was compared"),
        (
            evidence(partition(replica(through=7))),
            "Equality is not proved",
            "compared up to 7, the end is 100",
        ),
        (evidence(partition(replica(digest=OTHER))), "The logs differ", "the digests differ"),
        (evidence(), "Equality is not proved", "no partition was compared"),
    ],
)
def test_the_verdict_is_what_one_reads_first(whole: Evidence, headline: str, why: str) -> None:
    page = render(whole)
    parsed = Parsed(page)
    assert parsed.text["strong"] == [headline]
    assert parsed.text["title"][0].startswith(headline)
    assert why in "".join(parsed.text["p"])
    assert page.index("<strong>") < page.index("<h2>")


def test_every_replica_has_its_offsets_and_digests_and_what_is_not_equal_comes_first() -> None:
    whole = evidence(
        partition(replica(1), replica(2), topic="a"),
        partition(replica(1, through=40), replica(2, digest=OTHER, findings_count=3), topic="b", index=1),
    )
    head, *rows = Parsed(render(whole)).rows
    assert head[0] == "partition"
    assert [(row[0], row[1]) for row in rows] == [("b-1", "2"), ("b-1", "1"), ("a-0", "1"), ("a-0", "2")]
    assert [row[2] for row in rows[:2]] == [
        "different3 findings",
        "not provedcompared up to 40, the end is 100",
    ]
    assert rows[0][10] == f"{DIGEST}source{OTHER}replica"
    assert rows[3][3:11] == ["0", "100", "100", "100", "10", "100", "4.88 KiB", f"{DIGEST}on both sides"]


def test_findings_are_shown_with_both_sides() -> None:
    page = render(everything("z"))
    assert "crc 00000001, of its bytes 00000002" in page
    assert "What differs" in page
    assert "What differs" not in render(evidence(partition(replica())))
    assert "What differs lawfully" in render(evidence(partition(replica(lawful={"compacted": 5}))))


def test_more_findings_than_are_known_are_said_to_be_more() -> None:
    page = render(evidence(partition(replica(findings=(finding(),), findings_count=1041))))
    assert "1 of 1,041; of each replica the first." in page


def test_thousands_of_partitions_stay_usable() -> None:
    samples = tuple(Sample(at_ms=at, source_end=at, lag=at, validated={1: at}) for at in range(0, 100, 10))
    parts = [
        partition(replica(1), replica(2), replica(3), topic=f"topic-{index}", samples=samples)
        for index in range(3000)
    ]
    late = partition(replica(1, through=1), topic="zzz")
    page = render(evidence(*parts, late))
    rows = Parsed(page).rows
    assert len(rows) == 1 + MAX_ROWS
    assert rows[1][0] == "zzz-0"
    assert "6,000 of 9,001 replicas" in page
    assert len(page) < 6_000_000


def test_without_samples_and_phases_the_page_says_so() -> None:
    page = render(evidence(partition(replica())))
    assert page.count("No samples were taken.") == 2
    assert page.count("A rate needs two looks") == 1
    assert "No promote was under way." in page


@pytest.mark.parametrize("at_ms", [0, 1, 1 << 62])
def test_any_time_can_be_shown(at_ms: int) -> None:
    samples: Any = (Sample(at_ms=at_ms, source_end=1, lag=0, validated={1: 1}),)
    Parsed(render(evidence(partition(replica(), samples=samples), started_ms=at_ms)))
