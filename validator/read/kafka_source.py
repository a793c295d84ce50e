"""Spark's own Kafka connector (spark-sql-kafka): how it comes into a running session, and what it is told to read.

The connector is not part of PySpark. `ensure_connector` adds it to a session that has not got it: from the jars that
CONNECTOR_CONF names, else by Ivy from Maven Central or whatever `spark.jars.repositories` and `spark.jars.ivySettings` name.
Secrets go to the connector as options: Kafka's own configuration hides them in logs, and a relation shows offsets only.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody who writes PySpark calls it

from validator.read.endpoint import CLIENT_ID, ClusterEndpoint
from wire.client.topic_names import TopicNames
from wire.errors import LinkerError

CONNECTOR_CONF = "spark.linker.kafka.connector"
"""Comma-separated jars (paths, http, hdfs, ivy://) that hold the connector and what it needs: spark-sql-kafka-0-10,
spark-token-provider-kafka-0-10, kafka-clients, commons-pool2."""
PROVIDER = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
RECORDS_PER_TASK = 2_000_000
POLL_TIMEOUT_MS = 30_000
NAMED_REPLICA = "linker.replica="
"""Before the promote the link broker redirects a consumer of this rack and a broker id to that broker (router)."""


# Dependencies of the connector that every Spark has; 60 MB of them would else be sent to every executor.
_IN_SPARK = (
    "org.apache.hadoop:hadoop-client-api",
    "org.apache.hadoop:hadoop-client-runtime",
    "org.lz4:lz4-java",
    "org.scala-lang.modules:scala-parallel-collections_2.13",
    "org.slf4j:slf4j-api",
    "org.xerial.snappy:snappy-java",
    "com.google.code.findbugs:jsr305",
)


class ConnectorMissing(LinkerError):
    """Spark has no Kafka connector and could not get one; says what to do."""


@dataclass(frozen=True, slots=True)
class ReadRange:
    """Offsets [start, end) of one partition."""

    topic: str
    partition: int
    start: int
    end: int


#: The packages that this process could get: other threads need not try the rest.
_had: list[str] = []
log = logging.getLogger("validator")


def connector_jars(spark: SparkSession) -> list[list[str]]:
    """The packages to add to a session, the first that can be had: CONNECTOR_CONF alone; or the release that belongs to this
    Spark, then the first one of its line, which mirrors of Maven Central have more often."""
    named = spark.conf.get(CONNECTOR_CONF, None)
    if named:
        return [[jar.strip() for jar in named.split(",") if jar.strip()]]
    if _had:
        return [_had]
    first = ".".join([*str(spark.version).split(".")[:2], "0"])
    return [[_release(version)] for version in dict.fromkeys((str(spark.version), first))]


def _release(version: str) -> str:
    without = ",".join(_IN_SPARK)
    return f"ivy://org.apache.spark:spark-sql-kafka-0-10_2.13:{version}?transitive=true&exclude={without}"


def ensure_connector(spark: SparkSession) -> None:
    """Make `format("kafka")` known to this session and this thread. Raises ConnectorMissing.

    Blocking; seconds if it has to be downloaded. Session jars are known to the thread that added them only (they hang on the
    JVM thread's class loader), so this is called by every thread that reads.
    """
    if _known(spark):
        return
    failed: list[str] = []
    for jars in connector_jars(spark):
        named = ", ".join(jars)
        try:
            _add(spark, jars)
        except (Py4JJavaError, PySparkException) as error:
            failed.append(f"{named}: {str(error).strip().splitlines()[0]}")
            continue
        if not _known(spark):
            raise ConnectorMissing(f"{named} do not hold Spark's Kafka connector ({PROVIDER})")
        _had[:] = jars
        if failed:
            log.warning(
                "Spark's Kafka connector is %s, because there was none to be had from %s", named, failed[0]
            )
        return
    raise ConnectorMissing(
        f"Spark's Kafka connector could not be added from {'; '.join(failed)}. Give its jars in"
        f" {CONNECTOR_CONF}, or a repository in spark.jars.repositories or spark.jars.ivySettings"
    )


def _add(spark: SparkSession, jars: list[str]) -> None:
    for jar in jars:
        if "'" in jar or "\\" in jar:
            raise ConnectorMissing(f"{CONNECTOR_CONF}: no quotes or backslashes are possible in {jar!r}")
        spark.sql(f"ADD JAR '{jar}'")


def _known(spark: SparkSession) -> bool:
    loader = spark._jsparkSession.sharedState().jarClassLoader()  # noqa: SLF001 - there is no other way to the JVM
    jvm: Any = spark._jvm  # noqa: SLF001
    jvm.java.lang.Thread.currentThread().setContextClassLoader(loader)
    try:
        loader.loadClass(PROVIDER)
    except Py4JJavaError:
        return False
    return True


def client_options(side: ClusterEndpoint, *, replica: int | None = None) -> dict[str, str]:
    """The connector's options for a side; `replica` names the broker whose copy is wanted.

    read_uncommitted, so that records of aborted transactions count on both sides; what is not there is an error and never
    skipped (`failOnDataLoss`): the caller plans again with the offsets that are there now.
    """
    options = {f"kafka.{name}": value for name, value in side.properties.items() if name not in _NOT_OURS}
    options |= {
        "kafka.bootstrap.servers": ",".join(side.bootstrap),
        "kafka.isolation.level": "read_uncommitted",
        "kafka.client.id": CLIENT_ID,
        "includeHeaders": "true",
        "failOnDataLoss": "true",
        "kafkaConsumer.pollTimeoutMs": str(POLL_TIMEOUT_MS),
        "maxRecordsPerPartition": str(RECORDS_PER_TASK),
    }
    if replica is not None:
        options["kafka.client.rack"] = f"{NAMED_REPLICA}{replica}"
    return options


# The connector refuses these or sets them itself.
_NOT_OURS = frozenset(
    {
        "auto.offset.reset",
        "bootstrap.servers",
        "client.id",
        "client.rack",
        "enable.auto.commit",
        "group.id",
        "interceptor.classes",
        "isolation.level",
        "key.deserializer",
        "value.deserializer",
    }
)


def read(
    spark: SparkSession, options: Mapping[str, str], ranges: Sequence[ReadRange], topic_prefix: str = ""
) -> DataFrame:
    """The connector's rows of the ranges, none of which may be empty: topic, partition, offset, timestamp, timestampType,
    key, value, headers. Topics have the prefix for us, and not in the cluster."""
    assign: dict[str, list[int]] = {}
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    names = TopicNames(topic_prefix)
    for one in ranges:
        topic = names.there(one.topic)
        assign.setdefault(topic, []).append(one.partition)
        starts.setdefault(topic, {})[str(one.partition)] = one.start
        ends.setdefault(topic, {})[str(one.partition)] = one.end
    reader: Any = spark.read.format("kafka").options(**options)
    frame: DataFrame = (
        reader.option("assign", json.dumps(assign))
        .option("startingOffsets", json.dumps(starts))
        .option("endingOffsets", json.dumps(ends))
        .load()
    )
    return frame.withColumn("topic", F.concat(F.lit(topic_prefix), "topic")) if topic_prefix else frame
