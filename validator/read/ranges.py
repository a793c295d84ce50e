"""Which offsets of which replica are compared with the source's, and how they are cut into spans, tasks and groups.

Pure: takes what survey.py found out. For each replica there is one stretch [begin, until) in which it and the source
must hold the same; what the source alone has to show lies beside it: the offsets before a late start (how many records lie
there?) and the first batch behind an early end. All stretches of a partition are cut at the same offsets, so that a range is
compared as a whole.

- A range is a piece of a partition, about RANGE_BYTES on each side; a huge partition is many of them.
- A joint task reads all sides of many ranges, until some TASK_BYTES or TASK_SPANS: many small partitions are few tasks.
- A task reads many spans from one broker, likewise: for ranges whose sides have to be sorted first, and for the data source.
- A group of ranges is one Spark job; its results are told before the next one begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from validator.compare.verdict import RangeSpec
from validator.read.spans import LEADER, SOURCE, Span

RANGE_BYTES = 64 << 20
TASK_BYTES = 64 << 20
TASK_SPANS = 256
TASKS_PER_WORKER = 4
GROUP_BYTES = 4 << 30
GROUP_SPANS = 8192


@dataclass(frozen=True, slots=True)
class ReplicaBounds:
    """One replica as it was found; `begin` is where it has to hold what the source has, `expected` where its log would start
    if nothing was missing: before `begin` if a part was compared earlier. `counted`: it is known how much lies between
    `expected` and a later log start."""

    slot: int
    broker_id: int
    begin: int
    log_start: int
    high_watermark: int
    expected: int = -1  # -1: it is `begin`
    counted: bool = False

    @property
    def missing_from(self) -> int:
        return self.begin if self.expected < 0 else min(self.expected, self.begin)

    @property
    def starts_late(self) -> bool:
        return self.log_start > self.missing_from

    def ends_before_begin(self, end: int) -> bool:
        """Whether it holds nothing where the comparison up to `end` has to begin: it has lost what was proved, or the source
        has dropped what it did not copy in time. No range shows that, since the first one lies behind its end."""
        return self.high_watermark < min(self.begin, end)


@dataclass(frozen=True, slots=True)
class PartitionBounds:
    """A partition whose source holds [log_start, end) of what has to be compared. Each of its replicas reaches the offset
    where its comparison begins (`ends_before_begin`)."""

    topic: str
    partition: int
    log_start: int
    end: int
    replicas: tuple[ReplicaBounds, ...]
    bytes_per_offset: float = 1024.0
    compacted: bool = False


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets of one partition, and the slots of those who have to hold them."""

    spec: RangeSpec
    bounds: PartitionBounds
    bytes: int  # of one side, estimated
    first: bool = False  # nothing before it is compared: a batch that it begins inside of is its own

    @property
    def sides(self) -> int:
        return 1 + len(self.spec.slots)

    def spans(self) -> Iterator[Span]:
        """The spans to read for it, from each side."""
        bounds, spec = self.bounds, self.spec
        nodes = {SOURCE: (LEADER, bounds.log_start)}
        nodes |= {replica.slot: (replica.broker_id, replica.log_start) for replica in bounds.replicas}
        for slot in (SOURCE, *spec.slots):
            node, log_start = nodes[slot]
            yield Span(
                range_id=spec.range_id,
                topic=bounds.topic,
                partition=bounds.partition,
                slot=slot,
                node=node,
                start=spec.start,
                end=spec.end,
                read_from=max(spec.start - 1, log_start),
                first=self.first,
            )


@dataclass(slots=True)
class Task:
    """Spans of one cluster that are read over one connection, one broker after the other."""

    source: bool
    spans: list[Span] = field(default_factory=list)
    bytes: int = 0


def make_ranges(partitions: Sequence[PartitionBounds], *, range_bytes: int = RANGE_BYTES) -> list[Range]:
    """All ranges of a run in the order in which they are compared: partition by partition, offsets upwards."""
    ranges: list[Range] = []
    for bounds in partitions:
        begun = False
        for start, end, slots in _stretches(bounds):
            size = int((end - start) * bounds.bytes_per_offset)
            pieces = min(max(1, -(-size // range_bytes)), end - start)
            edges = [start + (end - start) * i // pieces for i in range(pieces + 1)]
            for low, high in pairwise(edges):
                spec = RangeSpec(len(ranges), low, high, slots, bounds.compacted)
                alone = not slots and any(low == one.missing_from for one in bounds.replicas)
                first = (bool(slots) and not begun) or alone
                ranges.append(Range(spec, bounds, max(1, size // pieces), first=first))
                begun = begun or bool(slots)
    return ranges


def _stretches(bounds: PartitionBounds) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """(start, end, slots) with the same replicas in each. Without slots: the source alone is looked at."""
    edges: set[int] = set()
    for replica in bounds.replicas:
        until = min(replica.high_watermark, bounds.end)
        from_ = max(replica.begin, replica.log_start)
        if replica.starts_late and not replica.counted:
            edges |= {replica.missing_from, min(replica.log_start, bounds.end)}
        edges |= {min(from_, until), until}
        if until < bounds.end:
            edges.add(max(until, replica.begin) + 1)
    ordered = sorted(edges)
    for low, high in pairwise(ordered):
        slots = tuple(r.slot for r in bounds.replicas if _holds(r, low, bounds.end))
        if slots or any(_context(r, low, bounds.end) for r in bounds.replicas):
            yield low, high, slots


def _holds(replica: ReplicaBounds, offset: int, end: int) -> bool:
    return max(replica.begin, replica.log_start) <= offset < min(replica.high_watermark, end)


def _context(replica: ReplicaBounds, offset: int, end: int) -> bool:
    """Whether the source's batches there explain where this replica starts or ends."""
    late = replica.missing_from <= offset < min(replica.log_start, end) and not replica.counted
    return late or (replica.high_watermark < end and offset == max(replica.high_watermark, replica.begin))


def make_tasks(
    ranges: Sequence[Range],
    leaders: Mapping[tuple[str, int], int],
    *,
    task_bytes: int = TASK_BYTES,
) -> list[Task]:
    """Tasks that read these ranges. `leaders` (of the source) only decides who shares a task."""
    open_tasks: dict[tuple[bool, int], Task] = {}
    tasks: list[Task] = []
    for one in ranges:
        for span in one.spans():
            source = span.slot == SOURCE
            node = leaders.get((span.topic, span.partition), LEADER) if source else span.node
            task = open_tasks.get((source, node))
            if task is None or task.bytes + one.bytes > task_bytes or len(task.spans) >= TASK_SPANS:
                task = open_tasks[source, node] = Task(source)
                tasks.append(task)
            task.spans.append(span)
            task.bytes += one.bytes
    return tasks


@dataclass(slots=True)
class JointTask:
    """Ranges whose sides are read at the same time and held against each other where they are read."""

    ranges: list[Range] = field(default_factory=list)
    bytes: int = 0  # of one side, estimated


def make_joint_tasks(
    ranges: Sequence[Range],
    leaders: Mapping[tuple[str, int], int],
    *,
    workers: int,
) -> list[JointTask]:
    """Tasks over these ranges, each of which has replicas. All ranges of a task lie on the same brokers, slot by slot: so
    every side is read in one order. A few tasks for each of so many workers, but none of less than TASK_BYTES if
    there is that much, nor of more than four times that: what is read again if one fails."""
    share = sum(one.bytes for one in ranges) // (workers * TASKS_PER_WORKER)
    task_bytes = max(TASK_BYTES, min(share, 4 * TASK_BYTES))
    open_tasks: dict[tuple[int, ...], JointTask] = {}
    tasks: list[JointTask] = []
    for one in ranges:
        nodes = {replica.slot: replica.broker_id for replica in one.bounds.replicas}
        leader = leaders.get((one.bounds.topic, one.bounds.partition), LEADER)
        key = (leader, *(nodes[slot] for slot in one.spec.slots))
        task = open_tasks.get(key)
        if task is None or task.bytes + one.bytes // 2 > task_bytes or len(task.ranges) >= TASK_SPANS:
            task = open_tasks[key] = JointTask()
            tasks.append(task)
        task.ranges.append(one)
        task.bytes += one.bytes
    return tasks


def make_groups(ranges: Sequence[Range], *, group_bytes: int = GROUP_BYTES) -> list[list[Range]]:
    """Ranges that are one job each, so that a run that is cut off has got somewhere."""
    groups: list[list[Range]] = []
    size = spans = 0
    for one in ranges:
        if not groups or size + one.bytes * one.sides > group_bytes or spans + one.sides > GROUP_SPANS:
            groups.append([])
            size = spans = 0
        groups[-1].append(one)
        size += one.bytes * one.sides
        spans += one.sides
    return groups
