"""Which release of Spark's Kafka connector is taken when the one of this Spark is not to be had."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import PySparkException

from validator.read import kafka_source
from validator.read.kafka_source import CONNECTOR_CONF, ConnectorMissing, ensure_connector


class Repository:
    """A Spark session whose repository has some releases."""

    def __init__(self, version: str, *has: str, conf: str | None = None) -> None:
        self.version, self.has, self.asked = version, has, []
        self.conf = SimpleNamespace(get=lambda name, default: conf if name == CONNECTOR_CONF else default)
        self.added: list[str] = []

    def sql(self, text: str) -> None:
        self.asked.append(text)
        if not any(one in text for one in self.has):
            raise PySparkException(f"unresolved dependency: {text}")
        self.added.append(text)


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(kafka_source, "_known", lambda spark: bool(spark.added))
    kafka_source._had.clear()
    yield
    kafka_source._had.clear()


def ensure(spark: Any) -> None:
    ensure_connector(spark)


def test_the_release_of_this_spark_is_taken() -> None:
    spark = Repository("4.0.4", "2.13:4.0.4?", "2.13:4.0.0?")
    ensure(spark)
    assert len(spark.asked) == 1 and "2.13:4.0.4?" in spark.added[0]


def test_the_first_of_its_line_is_taken_otherwise_and_remembered(caplog: pytest.LogCaptureFixture) -> None:
    spark = Repository("4.0.4", "2.13:4.0.0?")
    ensure(spark)
    assert "2.13:4.0.0?" in spark.added[0] and "none to be had" in caplog.text
    spark.added.clear()  # another thread
    ensure(spark)
    assert len(spark.asked) == 3


def test_none_is_said_with_both() -> None:
    with pytest.raises(ConnectorMissing, match=r"4\.0\.4.*4\.0\.0.*Give its jars in"):
        ensure(Repository("4.0.4"))


def test_what_is_configured_is_not_replaced() -> None:
    spark = Repository("4.0.4", "2.13:4.0.0?", conf="/jars/a.jar, /jars/b.jar")
    with pytest.raises(ConnectorMissing, match="/jars/a"):
        ensure(spark)
    spark = Repository("4.0.4", "/jars/", conf="/jars/a.jar, /jars/b.jar")
    ensure(spark)
    assert len(spark.added) == 2
