"""Commits that the target cannot have: the partition is gone, or the text beside the offset is too long.

All others are committed without waiting for these, and the operator is told which they are. A committed offset matters
more than its text, so a refused text is dropped and its offset kept. A shortened text would be worse than none:
consumers that keep data in it could not read it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from controller.judge.group_offsets import Committed, Offsets
from wire.frames.error_codes import (
    INVALID_COMMIT_OFFSET_SIZE,
    OFFSET_METADATA_TOO_LARGE,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from wire.frames.types import TopicPartition
from wire.shown_id import listed

NOT_MIRRORED = "the mirror has no such partition"
NO_PARTITION = "the topic has no such partition any more"
NOT_ON_TARGET = "the target has no such partition"
BY_FORCE = "the target refused it, and the group was to be promoted by force"
_MOST = 5
#: Refusals of one partition that no repetition of the same commit helps.
_LASTING = frozenset({OFFSET_METADATA_TOO_LARGE, INVALID_COMMIT_OFFSET_SIZE, UNKNOWN_TOPIC_OR_PARTITION})


@dataclass(slots=True)
class LeftOut:
    """The left-out commits of one group, as far as this process knows them."""

    #: Partitions whose commits are not brought over, and why not.
    partitions: dict[TopicPartition, str] = field(default_factory=dict)
    #: Texts that the target has refused. Another text of the same partition is tried again.
    texts: dict[TopicPartition, str] = field(default_factory=dict)
    #: Partitions that the last attempt at an opening was refused for.
    _refused: frozenset[TopicPartition] = frozenset()

    def fitting(self, wanted: Offsets) -> dict[TopicPartition, Committed]:
        """The commits that the target can have."""
        return {
            tp: Committed(commit.offset) if self._too_long(tp, commit.metadata) else commit
            for tp, commit in wanted.items()
            if tp not in self.partitions
        }

    def _too_long(self, tp: TopicPartition, text: str) -> bool:
        return text != "" and self.texts.get(tp) == text

    def gone(self, known: Collection[TopicPartition], why: str = NO_PARTITION) -> None:
        """Set the partitions that are gone; others that were reported gone before are back."""
        for tp in [tp for tp, said in self.partitions.items() if said == why and tp not in known]:
            del self.partitions[tp]
        for tp in known:
            self.partitions.setdefault(tp, why)

    def learn_texts(self, tried: Offsets, refused: Mapping[TopicPartition, int]) -> bool:
        """Whether something can be committed without its text after this refusal."""
        found = {
            tp: tried[tp].metadata
            for tp, code in refused.items()
            if code in (OFFSET_METADATA_TOO_LARGE, INVALID_COMMIT_OFFSET_SIZE)
            and tp in tried
            and tried[tp].metadata
        }
        self.texts.update(found)
        return bool(found)

    def give_up(self, refused: Mapping[TopicPartition, int], why: str = BY_FORCE) -> bool:
        """Go on without them. False if there are other partitions among them, which may be accepted the next time."""
        if not refused or not _LASTING.issuperset(refused.values()):
            return False
        self.partitions.update(dict.fromkeys(refused, why))
        return True

    def refused_again(self, refused: Mapping[TopicPartition, int]) -> bool:
        """Record the refusal of an opening; on the second in a row, partitions that the target no longer has are left
        out."""
        missing = frozenset(tp for tp, code in refused.items() if code == UNKNOWN_TOPIC_OR_PARTITION)
        again, self._refused = missing & self._refused, missing
        self.partitions.update(dict.fromkeys(again, NOT_ON_TARGET))
        return bool(again)

    def of(self, tp: TopicPartition, metadata: str = "") -> str | None:
        """The text for the line of one partition."""
        if (why := self.partitions.get(tp)) is not None:
            return f"left out: {why}"
        if self._too_long(tp, metadata):
            return f"without its text, which is too long for the target ({len(metadata):,} characters)"
        return None

    def said(self, committed: Offsets) -> str | None:
        """One sentence about those of the group's present commits that are left out; None if there are none."""
        parts = []
        by_reason: dict[str, list[TopicPartition]] = {}
        for tp, why in sorted(self.partitions.items()):
            if tp in committed:
                by_reason.setdefault(why, []).append(tp)
        parts += [f"its commits for {_named(tps)} are left out: {why}" for why, tps in by_reason.items()]
        texts = sorted(tp for tp, commit in committed.items() if self._too_long(tp, commit.metadata))
        if texts:
            parts.append(
                f"the offsets of {_named(texts)} are committed without their texts, which are longer than the target takes "
                "(offset.metadata.max.bytes of its brokers)"
            )
        return "; ".join(parts) or None


def not_as_at_source(
    source: Offsets, wanted: Offsets, target: Offsets, topics: Collection[str], late: Collection[str]
) -> str | None:
    """One sentence about offsets with which members skip records that the source may still have; None if there are none.
    `late`: topics whose mirrors do not begin at the source's first record."""
    skipped = {
        tp: step
        for tp, commit in wanted.items()
        if tp.topic in late and (step := commit.offset - source[tp].offset) > 0
    }
    kept = sorted(tp for tp in target if tp.topic in topics and tp not in source and target[tp].offset > 0)
    said = []
    if skipped:
        few = listed((f"{step} of {tp}" for tp, step in sorted(skipped.items())), _MOST, last=" and of ")
        said.append(f"the mirror begins behind its commits: {few} that it has not read are not at the target")
    if kept:
        offsets = ", ".join(str(target[tp].offset) for tp in kept[:_MOST])
        said.append(f"the source has no commit for {_named(kept)} any more, the target keeps {offsets}")
    return "; ".join(said) or None


def _named(tps: Iterable[TopicPartition]) -> str:
    return listed(map(str, tps), _MOST)
