"""The Spark session of a validator process: embedded by default, any master on request.

Spark's properties go to the JVM in a file that only we can read, not on its command line. The clusters' own secrets are in
no property at all: they travel in pickled tasks (source.py). On masters with other machines those are as safe as Spark's
own traffic: docs/validation-by-batches.md says what to set.

Lives here: starting, checking and ending Spark. Not here: what is run in it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import shutil
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from validator.messages import Configure
from validator.read import shipping
from wire.client.properties import PropertyError, parse_address
from wire.errors import LinkerError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START_SECONDS = 240.0
"""Until the JVM is up and the master has answered; Spark's own patience with a standalone master is 60 s."""
FIRST_TASK_SECONDS = 240.0
"""Until the first executor has run a task: without one Spark would wait forever."""
CONNECT_SECONDS = 5.0

COMMON = {
    "spark.app.name": "kafka-linker-validator",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "WARN",
    "spark.sql.adaptive.enabled": "false",  # the number of tasks is chosen, not guessed
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "16384",
    "spark.python.worker.reuse": "true",
    "spark.cleaner.periodicGC.interval": "5min",
    "spark.io.compression.codec": "zstd",  # not lz4-java 1.8.0, which comes with Spark 4.0: CVE-2025-12183
    # names whose values Spark blanks out wherever it shows properties
    "spark.redaction.regex": "(?i)secret|password|token|access[.]?key|jaas|credential|keystore[.]key",
}
LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    # Every user of this machine can connect to its ports. Requests without the secret get no answer: the
    # clusters' passwords are in the tasks, which are blocks.
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
}
log = logging.getLogger("validator")

_LOCAL_MASTER = re.compile(r"local(?:\[(\*|\d+)\])?")
_Result = TypeVar("_Result")


class SparkFailed(LinkerError):
    """Spark does not start or cannot be used; one line says why. `address`: the master's, if it is about that."""

    def __init__(self, message: str, address: str | None = None) -> None:
        super().__init__(message)
        self.address = address


class Session:
    """One Spark session and how it was asked for."""

    def __init__(self, configure: Configure) -> None:
        self._configure = configure
        self._work_dir = Path(configure.work_dir)
        self._spark: SparkSession | None = None
        #: Of this Spark alone; it is told in the file of properties.
        self._secret = secrets.token_urlsafe(32)

    @property
    def master(self) -> str:
        """As configured."""
        return self._configure.master

    @property
    def local(self) -> bool:
        return self.master.startswith("local")

    @property
    def spark(self) -> SparkSession:
        if self._spark is None:
            raise SparkFailed("Spark was not started")
        return self._spark

    def start(self) -> SparkSession:
        """Start Spark and run one task on it. Raises SparkFailed within START_SECONDS + FIRST_TASK_SECONDS."""
        self._work_dir.mkdir(parents=True, exist_ok=True)
        self._work_dir.chmod(0o700)  # Spark keeps large pickled commands in files
        _check_master(self.master)
        self._write_properties()
        with self._environment():
            self._spark = _in_time(_create, START_SECONDS, f"master {self.master} gave no answer")
        self._ship(self._spark)
        return self._spark

    def ui(self) -> str | None:
        """Where Spark's UI listens; None if it is off."""
        return self.spark.sparkContext.uiWebUrl

    def stop(self) -> None:
        """End Spark and its JVM."""
        from pyspark import SparkContext

        spark, self._spark = self._spark, None
        if spark is None:
            return
        spark.stop()
        gateway, SparkContext._gateway = SparkContext._gateway, None  # noqa: SLF001
        SparkContext._jvm = None  # noqa: SLF001
        if gateway is not None:
            process = getattr(gateway, "proc", None)
            gateway.shutdown()
            if process is not None:
                process.stdin.close()
                with contextlib.suppress(Exception):
                    process.wait(10)
        shutil.rmtree(self._work_dir / "spark-local", ignore_errors=True)

    # --- properties -----------------------------------------------------------------------------------------

    def properties(self) -> dict[str, str]:
        """All Spark properties: ours, what was configured over them, and what has to be."""
        made = dict(COMMON)
        if self.local:
            made |= LOCAL
            made["spark.authenticate.secret"] = self._secret
        made["spark.pyspark.python"] = self._configure.python or sys.executable
        made["spark.pyspark.driver.python"] = sys.executable
        made |= self._configure.conf
        made["spark.master"] = _with_retries(self.master)
        if self.local:
            made.setdefault("spark.local.dir", str(self._work_dir / "spark-local"))
        made.setdefault("spark.sql.warehouse.dir", str(self._work_dir / "warehouse"))
        return made

    def _write_properties(self) -> None:
        path = self._work_dir / "spark.properties"
        lines = [f"{_escape(name)}={_escape(value)}\n" for name, value in self.properties().items()]
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            os.fchmod(descriptor, 0o600)
            file.writelines(lines)

    @contextlib.contextmanager
    def _environment(self) -> Iterator[None]:
        """Sets what PySpark takes from the environment only, while the JVM is started."""
        wanted = {
            "PYSPARK_SUBMIT_ARGS": f'--properties-file "{self._work_dir / "spark.properties"}" pyspark-shell',
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        }
        wanted["PYSPARK_PYTHON"] = self.properties()["spark.pyspark.python"]
        if self.local:
            wanted["SPARK_LOCAL_IP"] = "127.0.0.1"  # also where the UI listens, if it is turned on
        before = {name: os.environ.get(name) for name in wanted}
        os.environ.update(wanted)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value

    # --- executors ------------------------------------------------------------------------------------------

    def _ship(self, spark: SparkSession) -> None:
        """Our packages to the executors; one of them shows that it can use them."""
        context = spark.sparkContext
        context.addPyFile(str(shipping.build_zip(self._work_dir)))
        if self.local:
            return
        group = "first task"

        def first() -> dict[str, str]:
            context.setJobGroup(group, "is there an executor, and can it import what it needs", True)
            found: dict[str, str] = context.parallelize([0], 1).map(_where).first()
            return found

        try:
            found = _in_time(first, FIRST_TASK_SECONDS, f"no executor of master {self.master} has run a task")
        except SparkFailed:
            context.cancelJobGroup(group)
            raise
        log.info("executors of %s import validator from %s", self.master, found["validator"])
        if found["missing"]:
            raise SparkFailed(
                f"the executors lack {found['missing'].replace(',', ', ')}: install them where"
                f" {self._configure.python or sys.executable} runs, or ship an environment with spark.archives"
            )


def _where(_: object) -> dict[str, str]:
    return shipping.where_am_i()


def _create() -> SparkSession:
    from pyspark.sql import SparkSession

    return SparkSession.builder.getOrCreate()


def _with_retries(master: str) -> str:
    """A local master gives up at the first failed task unless it is told otherwise."""
    found = _LOCAL_MASTER.fullmatch(master)
    return master if found is None else f"local[{found.group(1) or 1},3]"


def _check_master(master: str) -> None:
    """A standalone master is asked for at once: Spark itself would take a minute to say that nobody is there."""
    if not master.startswith("spark://"):
        return
    refused = []
    for address in master.removeprefix("spark://").split(","):
        try:
            host, port = parse_address(address.strip())
            socket.create_connection((host, port), CONNECT_SECONDS).close()
            return
        except (OSError, PropertyError) as error:
            refused.append(f"{address}: {error}")
    raise SparkFailed(f"no Spark master answers: {'; '.join(refused)}", master.removeprefix("spark://"))


def _in_time(work: Callable[[], _Result], seconds: float, late: str) -> _Result:
    """The result of `work`, which cannot be interrupted, or SparkFailed when it takes too long or fails."""
    outcome: list[_Result] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(work())
        except BaseException as error:  # handed to the caller
            failure.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if outcome:
        return outcome[0]
    if failure:
        raise SparkFailed(f"Spark failed: {reason_of(failure[0])}") from failure[0]
    raise SparkFailed(f"{late} within {seconds:g} s")


def reason_of(error: BaseException) -> str:
    """The one line of a Java or Python error that says what is wrong."""
    text = str(error)
    java = getattr(error, "java_exception", None)
    if java is not None:
        with contextlib.suppress(Exception):
            text = str(java.toString())
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [line for line in lines if "Error: " in line or "Exception: " in line]
    return (told[0] if told else lines[0] if lines else type(error).__name__)[:500]


def _escape(text: str) -> str:
    """For a Java properties file."""
    out = []
    for char in text:
        if char in "\\=:#! \t\n\r\f" or not 0x20 <= ord(char) < 0x7F:
            out.append({"\n": "\\n", "\t": "\\t", "\r": "\\r", "\f": "\\f"}.get(char) or _escaped(char))
        else:
            out.append(char)
    return "".join(out)


def _escaped(char: str) -> str:
    if 0x20 <= ord(char) < 0x7F:
        return f"\\{char}"
    units = char.encode("utf-16-be")
    return "".join(f"\\u{units[i] << 8 | units[i + 1]:04x}" for i in range(0, len(units), 2))
