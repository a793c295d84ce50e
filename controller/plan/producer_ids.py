"""Producer ids: how far the target's allocator has to be moved, and whether forwarding is safe. Pure.

Clients of the target get their ids from the target's allocator, but until promote their batches land in the
source's partitions. An id that the source has given, or will give, to another producer would make the
source drop records as duplicates and still acknowledge them. So every id the target hands out must be above
all the source will hand out while the link lives: the target's ids start at a floor with a margin above the
source's, and the distance is watched.

An allocator hands blocks of 1000 to brokers, which hand out single ids. InitProducerId on a source broker
shows an id of that broker's current block; the source's next block starts at or above the end of the
highest block seen. Blocks that the target's real brokers hold from before the floor are used up by asking
them for ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from controller.errors import Refused

BLOCK = 1000
DEFAULT_MARGIN = 1_000_000
#: A look at the source takes an id of each of its brokers, so it is taken as seldom as is safe: a source that hands out
#: no more than this in a second cannot come near unnoticed.
IDS_PER_SECOND = 1000
#: Closer than this forwarding ends: 100 s of such a source, for the shortest pause between looks, their answers, and until
#: every sidecar has heard of them.
RESERVE = 100 * IDS_PER_SECOND
_SHORTEST_PAUSE, _LONGEST_PAUSE = 30.0, 600.0
#: A source that is further ahead than that is refused: each block is a request to the target's controller and a record of
#: its metadata log. A number out of thin air, of a hostile or a damaged source, would keep both busy for ever.
MOST_BLOCKS = 1_000_000
MAX_PRODUCER_ID = 2**63 - 1
_MOST_RUNS = 4


class ProducerIdPlan(NamedTuple):
    """The steps to take before forwarding may be enabled."""

    floor: int  # every id handed out at the target has to be >= this
    blocks: int  # AllocateProducerIds calls still needed at the target's controller
    drain: Mapping[int, int]  # target broker -> ids below the floor it may still hold


class ForwardingVerdict(NamedTuple):
    allowed: bool
    reason: str | None
    distance: int  # ids the source may still hand out before it reaches the target's


def block_end(producer_id: int) -> int:
    """The first id after the block that an id is from."""
    return (producer_id // BLOCK + 1) * BLOCK


def lasts(distance: int) -> float:
    """Seconds for which it is safe to go by a look at the source that found it so far away."""
    return distance / IDS_PER_SECOND


def pause(distance: int) -> float:
    """Seconds until the link controller looks at the source again: while its last look still holds for everybody."""
    return min(max(lasts(distance) / 2, _SHORTEST_PAUSE), _LONGEST_PAUSE)


def source_end(samples: Mapping[int, int]) -> int:
    """Below this is everything the source has handed to its brokers, as far as its brokers' samples show."""
    if not samples:
        raise Refused("no producer id was sampled: every source broker has to be asked")
    if min(samples.values()) < 0:
        raise Refused(f"a source broker answered producer id {min(samples.values())}")
    return max(block_end(producer_id) for producer_id in samples.values())


def plan(
    source: int,
    target_next: int,
    target_samples: Mapping[int, int],
    *,
    margin: int = DEFAULT_MARGIN,
    floor: int | None = None,
    most_blocks: int = MOST_BLOCKS,
) -> ProducerIdPlan:
    """`source` is its `source_end`, `target_next` the metadata image's next_producer_id; `target_samples` the last id of
    each real broker.

    A floor that was reached once stays: ids above it are in clients' hands. Refused: more than `most_blocks` beside those of
    the margin.
    """
    needed = source + margin if floor is None else floor
    if needed > MAX_PRODUCER_ID - margin:
        raise Refused(f"producer ids are used up: the floor would be {needed}")
    # Rounded up to whole blocks, because a block is handed out whole.
    needed = -(-needed // BLOCK) * BLOCK
    blocks = max(0, -(-(needed - target_next) // BLOCK))
    if blocks - margin // BLOCK > most_blocks:
        raise Refused(
            f"the source hands out producer ids up to {source}, the target stands at {target_next}: to move it past them "
            f"would take {blocks} blocks of {BLOCK}, more than {most_blocks}. If the source is well, and so far ahead, give "
            "the link the option producer_id_blocks"
        )
    drain = {
        broker: block_end(sample) - 1 - sample
        for broker, sample in sorted(target_samples.items())
        if block_end(sample) <= needed and block_end(sample) - 1 > sample
    }
    return ProducerIdPlan(needed, blocks, drain)


class Runs:
    """The ids of blocks that were taken and thrown away, as runs without a gap."""

    def __init__(self) -> None:
        self._end_of: dict[int, int] = {}  # by first id
        self._first_of: dict[int, int] = {}  # by end

    def add(self, first: int, length: int) -> None:
        end = first + length
        first = self._first_of.pop(first, first)
        end = self._end_of.pop(end, end)
        self._end_of[first], self._first_of[end] = end, first

    def longest(self) -> tuple[tuple[int, int], ...]:
        """(first, end) of the longest, in order."""
        runs = sorted(self._end_of.items(), key=lambda run: run[0] - run[1])
        return tuple(sorted(runs[:_MOST_RUNS]))


class IdsTold(NamedTuple):
    """A link of another sidecar: it keeps the ids of its target apart from those of its source."""

    source: str  # the source's cluster id
    floor: int | None  # the target's ids begin there; None: not decided yet
    unused: tuple[tuple[int, int], ...] = ()


def tell(links: Iterable[IdsTold]) -> str:
    """For other sidecars: `source:floor:first-end/first-end`, a link each."""
    return ",".join(
        f"{one.source}:{'?' if one.floor is None else one.floor}:"
        + "/".join(f"{first}-{end}" for first, end in one.unused)
        for one in links
    )


def told(value: str) -> list[IdsTold]:
    """The links of a sidecar of the source; Refused if that cannot be."""
    try:
        return [_told(one) for one in value.split(",")] if value else []
    except ValueError:
        raise Refused(f"a sidecar of the source tells producer ids that cannot be: {value[:200]!r}") from None


def _told(one: str) -> IdsTold:
    source, floor, unused = one.rsplit(":", 2)
    runs = [tuple(map(_id, run.split("-"))) for run in unused.split("/")] if unused else []
    if len(runs) > _MOST_RUNS:
        raise ValueError(one)
    return IdsTold(source, None if floor == "?" else _id(floor), tuple((first, end) for first, end in runs))


def _id(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise ValueError(text)
    return int(text)


def ceiling(links: Sequence[IdsTold], floor: int, target_next: int) -> int | None:
    """Where the source's ids go on above those of the target, if nobody at the source has an id from between `floor` and
    there: a link in the other direction moved them. None: that is not so."""
    return next(
        (end for link in links for first, end in link.unused if first <= floor and target_next <= end), None
    )


def outgrown(target_next: int, ceiling: int) -> str | None:
    """Why nothing may be forwarded any more to a source whose ids go on from this ceiling."""
    if ceiling - target_next >= RESERVE:
        return None
    return (
        f"the target's producer ids (up to {target_next}) have come too close to those of the source (from {ceiling}, since "
        "a link in the other direction moved them): promote now, or move producers back to the source"
    )


def low(distance: int, margin: int) -> bool:
    """Time to warn."""
    return distance < max(margin // 2, 2 * RESERVE)


def too_close(source: int, floor: int) -> str | None:
    """Why nothing may be forwarded to a source whose `source_end` this is any more."""
    if floor - source >= RESERVE:
        return None
    return (
        f"the source's producer ids (up to {source}) have come too close to those handed out at the target (from {floor}): "
        "promote now, or move producers back to the source"
    )


def judge(source: int, target_next: int, target_samples: Mapping[int, int], floor: int) -> ForwardingVerdict:
    """May producers at the target be forwarded to the source now, whose `source_end` this is?"""
    distance = floor - source
    reason = too_close(source, floor)
    if reason is not None:
        return ForwardingVerdict(False, reason, distance)
    if target_next < floor:
        reason = f"the target would hand out producer ids from {target_next}, they have to start at {floor}"
        return ForwardingVerdict(False, reason, distance)
    if not target_samples:
        return ForwardingVerdict(False, "no broker of the target was asked for a producer id yet", distance)
    below = {broker: sample for broker, sample in sorted(target_samples.items()) if sample < floor}
    if below:
        broker, sample = next(iter(below.items()))
        reason = f"broker {broker} of the target still hands out producer id {sample}, below {floor}"
        return ForwardingVerdict(False, reason, distance)
    return ForwardingVerdict(True, None, distance)
