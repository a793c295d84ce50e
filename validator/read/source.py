"""`spark.read.format("kafka-batches")`: one row per record batch of a named replica, as a PySpark 4 Python data source.

PySpark 4.0 offers a Python data source little, which decides how this one is used: a reader has `partitions` and `read`, and
no hook for filters or columns. So *offsets* are pushed down as options and *columns* by the schema the reader is given
(`.schema(schema_of("base_offset", "crc"))`): nothing else is built, and the CRC is computed only if `crc_computed` is asked
for. Rows leave Python as Arrow batches.

Options: `cluster` (a name given to `register`), `topic`, `partitions` (`0,3,7-9`; all of them), `replica` (a broker id; the
leader), `startOffset`, `endOffset` (exclusive; the log's own), `rangeBytes`. How a cluster is reached, passwords included,
is no option: Spark shows options in plans and logs. It is bound to the registered class and travels in pickled tasks only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from validator.compare.columns import ARROW_TYPES, PUBLIC
from validator.read.endpoint import ClusterEndpoint
from validator.read.ranges import RANGE_BYTES, PartitionBounds, ReplicaBounds, Task, make_ranges, make_tasks
from validator.read.reader import read_arrow
from validator.read.shipping import forget_zip_directories
from validator.read.spans import LEADER
from wire.errors import LinkerError
from wire.frames.list_offsets import EARLIEST, LATEST
from wire.frames.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMAT = "kafka-batches"
_SPARK_TYPES = {pa.string(): StringType(), pa.int32(): IntegerType(), pa.int64(): LongType()}


class OptionError(LinkerError):
    """An option of the reader is missing or makes no sense."""


def schema_of(*names: str) -> StructType:
    """A schema with these columns; without names all that make sense to a person."""
    try:
        return StructType([StructField(name, _SPARK_TYPES[ARROW_TYPES[name]]) for name in names or PUBLIC])
    except KeyError as error:
        raise OptionError(f"{FORMAT} has no column {error}; it has {', '.join(ARROW_TYPES)}") from None


def register(
    spark: SparkSession, clusters: Mapping[str, ClusterEndpoint], tasks: Sequence[Task] | None = None
) -> None:
    """Make the format known to this session, for these clusters. With `tasks` a read takes just those spans, from the
    clusters named `source` and `target`, and needs no option."""
    # a class made here is pickled with its attributes; one of a module would only be pickled by name
    bound = type("BoundKafkaBatches", (KafkaBatches,), {"clusters": dict(clusters), "tasks": tasks})
    spark.dataSource.register(bound)


class KafkaBatches(DataSource):
    """The format; see the module."""

    clusters: ClassVar[Mapping[str, ClusterEndpoint]] = {}
    tasks: ClassVar[Sequence[Task] | None] = None

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return schema_of()

    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(self.clusters, self.tasks, dict(self.options), schema.fieldNames())


class _TaskPartition(InputPartition):
    """The task of one Spark partition."""

    def __init__(self, cluster: str, task: Task) -> None:
        self.cluster = cluster
        self.task = task

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.cluster}, {len(self.task.spans)} spans)"


class BatchReader(DataSourceReader):
    """Plans the tasks in the driver and reads them in the executors."""

    def __init__(
        self,
        clusters: Mapping[str, ClusterEndpoint],
        tasks: Sequence[Task] | None,
        options: Mapping[str, str],
        columns: Sequence[str],
    ) -> None:
        self._clusters = clusters
        self._tasks = tasks
        self._options = options
        self._columns = list(columns)
        for name in columns:
            schema_of(name)

    def partitions(self) -> list[InputPartition]:
        """One per task; raises OptionError, SideFailed."""
        if self._tasks is not None:
            return [_TaskPartition("source" if task.source else "target", task) for task in self._tasks]
        name = self._option("cluster")
        if name not in self._clusters:
            raise OptionError(f"no cluster {name!r} was registered, only {', '.join(self._clusters)}")
        tasks = asyncio.run(_plan(self._clusters[name], self._options))
        return [_TaskPartition(name, task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Arrow batches with exactly the columns of the schema."""
        if not isinstance(partition, _TaskPartition):
            return iter(())  # Spark's stand-in for "no partitions": nothing is there to be read
        return _read(self._clusters[partition.cluster], partition.task, self._columns)

    def _option(self, name: str) -> str:
        value = self._options.get(name) or self._options.get(name.lower())
        if not value:
            raise OptionError(f"the option {name!r} of {FORMAT} is missing")
        return value


def _read(endpoint: ClusterEndpoint, task: Task, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    yield from read_arrow(endpoint, task.spans, columns)
    forget_zip_directories()


async def _plan(endpoint: ClusterEndpoint, options: Mapping[str, str]) -> list[Task]:
    """Tasks for a read by options."""
    given = {name.lower(): value for name, value in options.items()}
    topic = given.get("topic")
    if not topic:
        raise OptionError(f"the option 'topic' of {FORMAT} is missing")
    replica = int(given.get("replica", LEADER))
    async with endpoint.cluster() as cluster:
        await cluster.refresh([topic])
        known = cluster.topics.get(topic)
        if known is None or known.error or not known.partitions:
            raise OptionError(f"the {endpoint.side} cluster has no topic {topic}")
        wanted = _indexes(given["partitions"]) if "partitions" in given else sorted(known.partitions)
        for index in wanted:
            if index not in known.partitions:
                raise OptionError(f"the {endpoint.side} cluster has no partition {topic}-{index}")
        tps = [TopicPartition(topic, index) for index in wanted]
        starts = await cluster.list_offsets(dict.fromkeys(tps, EARLIEST))
        ends = await cluster.list_offsets(dict.fromkeys(tps, LATEST))
    bounds = []
    for tp in tps:
        for answer in (starts[tp], ends[tp]):
            if answer.error:
                raise OptionError(f"{tp.topic}-{tp.partition}: no offsets, error {answer.error}")
        start = max(starts[tp].offset, int(given.get("startoffset", 0)))
        end = min(ends[tp].offset, int(given.get("endoffset", 1 << 62)))
        itself = ReplicaBounds(1, replica, start, starts[tp].offset, ends[tp].offset)
        bounds.append(PartitionBounds(tp.topic, tp.partition, start, max(start, end), (itself,)))
    ranges = make_ranges(bounds, range_bytes=int(given.get("rangebytes", RANGE_BYTES)))
    # only one side is read: the replica's own spans, from whichever broker that is
    tasks = make_tasks(ranges, {})
    return [task for task in tasks if not task.source]


def _indexes(text: str) -> list[int]:
    """`0,3,7-9`; raises OptionError."""
    indexes: set[int] = set()
    try:
        for part in text.split(","):
            low, _, high = part.strip().partition("-")
            indexes |= set(range(int(low), int(high or low) + 1))
    except ValueError:
        raise OptionError(f"partitions {text!r} is not like 0,3,7-9") from None
    return sorted(indexes)
