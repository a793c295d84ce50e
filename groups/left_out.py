"""The part of a group's commits that the target cannot have: partitions that are no more, texts that are too long. All
others are committed without waiting for these, and a person is told which they are.

A committed offset matters more than the text beside it, so a text that the target refuses stays behind and its offset does
not. A shortened text would be worse than none: consumers that keep something in it could not read it.
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

NOT_MIRRORED = "the mirror has no such partition"
NO_PARTITION = "the topic has no such partition any more"
NOT_ON_TARGET = "the target has no such partition"
BY_FORCE = "the target refused it, and the group was to be promoted by force"
_MOST = 5
#: Refusals of one partition that no repetition of the same commit helps.
_LASTING = frozenset({OFFSET_METADATA_TOO_LARGE, INVALID_COMMIT_OFFSET_SIZE, UNKNOWN_TOPIC_OR_PARTITION})


@dataclass(slots=True)
class LeftOut:
    """Of one group, as this process has found it."""

    #: Partitions whose commits are not brought over, and why not.
    partitions: dict[TopicPartition, str] = field(default_factory=dict)
    #: Texts that the target has refused. Another text of the same partition is tried again.
    texts: dict[TopicPartition, str] = field(default_factory=dict)
    #: Partitions that the last attempt at an opening was refused for.
    _refused: frozenset[TopicPartition] = frozenset()

    def fitting(self, wanted: Offsets) -> dict[TopicPartition, Committed]:
        """What of it the target can have."""
        return {
            tp: Committed(commit.offset) if self._too_long(tp, commit.metadata) else commit
            for tp, commit in wanted.items()
            if tp not in self.partitions
        }

    def _too_long(self, tp: TopicPartition, text: str) -> bool:
        return text != "" and self.texts.get(tp) == text

    def gone(self, known: Collection[TopicPartition], why: str = NO_PARTITION) -> None:
        """Exactly these are no more: others that were said to be are back."""
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
        """Go on without them. False if there are others among them, which may be taken the next time."""
        if not refused or not _LASTING.issuperset(refused.values()):
            return False
        self.partitions.update(dict.fromkeys(refused, why))
        return True

    def refused_again(self, refused: Mapping[TopicPartition, int]) -> bool:
        """An opening was refused; the second time in a row what the target does not have any more is left out of it."""
        missing = frozenset(tp for tp, code in refused.items() if code == UNKNOWN_TOPIC_OR_PARTITION)
        again, self._refused = missing & self._refused, missing
        self.partitions.update(dict.fromkeys(again, NOT_ON_TARGET))
        return bool(again)

    def of(self, tp: TopicPartition, metadata: str = "") -> str | None:
        """For the line of one partition."""
        if (why := self.partitions.get(tp)) is not None:
            return f"left out: {why}"
        if self._too_long(tp, metadata):
            return f"without its text, which is too long for the target ({len(metadata):,} characters)"
        return None

    def said(self, committed: Offsets) -> str | None:
        """In one sentence, of what the group has committed now; None if nothing is left out."""
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


def _named(tps: Iterable[TopicPartition]) -> str:
    found = list(tps)
    shown = ", ".join(f"{tp.topic}-{tp.partition}" for tp in found[:_MOST])
    return shown + (f" and {len(found) - _MOST} more" if len(found) > _MOST else "")
