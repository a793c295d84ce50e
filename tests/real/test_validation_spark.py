"""The validator process with real Spark: embedded and on a standalone cluster, its secrets, and how it fails.

The clusters it reads are fakes here, which can be slow on purpose; test_validation_files.py has real brokers.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pyspark
import pytest

from lab.clusters.ports import PortReservation
from tests.fakes.cluster import FakeCluster
from tests.validator import logs
from tests.validator.process import (
    ValidatorUnderTest,
    command_line,
    descendants,
    environment,
    validator_process,
)
from tests.validator.without_spark import found, side
from validator.messages import (
    Cancel,
    Configure,
    Failed,
    Finished,
    PartitionPlan,
    ReplicaPlan,
    Run,
    Side,
    Stop,
)

END = logs.BATCHES * logs.RECORDS
PASSWORD = "swordfish-7f3a9b1c"
LOGIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "SCRAM-SHA-256",
    "sasl.jaas.config": (
        "org.apache.kafka.common.security.scram.ScramLoginModule required"
        f' username="validator" password="{PASSWORD}";'
    ),
}


@asynccontextmanager
async def two_clusters(**options: object) -> AsyncIterator[tuple[FakeCluster, FakeCluster]]:
    """A source and a target with one topic of two partitions, the replicas equal."""
    async with FakeCluster(**options) as source, FakeCluster(nodes=2, **options) as target:  # type: ignore[arg-type]
        for cluster in (source, target):
            cluster.add_topic("t", 2)
        for index in (0, 1):
            log = source.partition("t", index).log = logs.make_log()
            target.partition("t", index).log = logs.copy_log(log)
        yield source, target


def run_of(source: FakeCluster, target: FakeCluster, run_id: str = "r", **login: str) -> Run:
    def secured(cluster: FakeCluster, name: str) -> Side:
        return side(cluster, name).model_copy(update={"properties": login})

    plans = tuple(
        PartitionPlan(
            topic="t", partition=index, replicas=(ReplicaPlan(broker_id=1), ReplicaPlan(broker_id=2))
        )
        for index in (0, 1)
    )
    return Run(
        id=run_id, source=secured(source, "a"), target=secured(target, "b"), partitions=plans, wait_s=5
    )


async def until_reading(validator: ValidatorUnderTest, cluster: FakeCluster) -> None:
    """Until tasks have asked for data: survey's questions ask for a byte or a sample."""
    async with asyncio.timeout(400):
        while not any(request.entity.max_bytes > 1 << 20 for request in cluster.received("fetch")):
            assert validator.process.returncode is None
            await asyncio.sleep(0.1)


@pytest.mark.timeout(900)
async def test_embedded_with_passwords_that_show_nowhere(tmp_path: Path):
    """One process, three runs: passwords, a damaged replica, a cancel; then the end of stdin is the end of all of it."""
    events = tmp_path / "events"
    events.mkdir()
    conf = {
        "spark.ui.enabled": "true",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": f"file://{events}",
    }
    conf["spark.app.secret"] = PASSWORD  # a cluster manager's secret, for instance
    users = {"validator": PASSWORD}
    async with two_clusters(sasl_users=users) as (source, target), validator_process(tmp_path) as validator:
        work = tmp_path / "work"
        ready = await validator.ready(Configure(work_dir=str(work), conf=conf))
        assert ready.ui is not None and ready.ui.startswith("http://127.0.0.1:")
        target.inject("fetch", delay=2.0, match=lambda entity: entity.max_bytes > 1 << 20)
        await validator.send(run_of(source, target, **LOGIN))
        await until_reading(validator, target)
        pages = await asyncio.to_thread(scrape, ready.ui)
        processes = [validator.process.pid, *descendants(validator.process.pid)]
        shown = [command_line(pid) + environment(pid) for pid in processes]
        end, results = await validator.end("r")
        assert isinstance(end, Finished), end
        assert (end.mismatches, end.replicas, end.batches) == (0, 4, 4 * logs.BATCHES)
        assert [one.through for one in results] == [END] * 4
        assert len(processes) >= 3 and any("java" in text for text in shown)
        assert any("kafka-linker validation" in text for text in pages.values())

        bad = target.partition("t").replica_logs[2] = logs.copy_log(source.partition("t").log)
        logs.change(bad, 50, logs.flip_bit)
        end, results = await validator.result(run_of(source, target, "second", **LOGIN))
        assert isinstance(end, Finished) and end.mismatches == 1
        assert [found(one) for one in results if one.findings] == [[("corrupt", 50)]]

        refused = target.inject(
            "fetch", error=29, times=None, match=lambda entity: entity.max_bytes > 1 << 20
        )
        end, _ = await validator.result(run_of(source, target, "refused", **LOGIN))
        assert isinstance(end, Failed) and end.side == "target", end
        assert end.address in target.bootstrap_servers.split(",")
        assert "TOPIC_AUTHORIZATION_FAILED" in end.reason and "partition t-" in end.reason
        target.faults.remove(refused)

        target.inject("fetch", delay=60.0, times=None, match=lambda entity: entity.max_bytes > 1 << 20)
        await validator.send(run_of(source, target, "cancelled", **LOGIN))
        before = len(target.received("fetch"))
        async with asyncio.timeout(300):
            while len(target.received("fetch")) < before + 4:
                await asyncio.sleep(0.1)
        began = time.monotonic()
        await validator.send(Cancel(id="cancelled"))
        end, _ = await validator.end("cancelled")
        assert isinstance(end, Failed) and end.cancelled
        assert time.monotonic() - began < 45

        left = descendants(validator.process.pid)
        stdin = validator.process.stdin
        assert stdin is not None
        stdin.close()
        async with asyncio.timeout(90):
            assert await validator.process.wait() == 0
        await gone(left)
        pages |= {str(path): path.read_text(errors="replace") for path in events.rglob("*") if path.is_file()}
        pages["stderr"] = validator.log
        assert any("SparkListenerJobStart" in text for text in pages.values())
    for place, text in [*pages.items(), *((f"process {i}", text) for i, text in enumerate(shown))]:
        assert PASSWORD not in text, place
        assert "ScramLoginModule" not in text, place
    properties = work / "spark.properties"
    assert properties.stat().st_mode & 0o077 == 0 and work.stat().st_mode & 0o077 == 0


def scrape(ui: str) -> dict[str, str]:
    """Everything that Spark's UI and REST API show."""
    pages = {}
    paths = [
        "/jobs/",
        "/stages/",
        "/storage/",
        "/environment/",
        "/executors/",
        "/SQL/",
        "/api/v1/applications",
    ]
    with urllib.request.urlopen(f"{ui}/api/v1/applications", timeout=60) as answer:
        (app,) = json.load(answer)
    api = f"/api/v1/applications/{app['id']}"
    paths += [f"{api}/{name}" for name in ("environment", "jobs", "stages?details=true", "sql?details=true")]
    paths += ["/SQL/execution/?id=0", "/jobs/job/?id=0"]
    for path in paths:
        try:
            with urllib.request.urlopen(ui + path, timeout=60) as answer:
                pages[path] = answer.read().decode()
        except OSError as error:
            pages[path] = str(error)
    return pages


async def gone(pids: list[int]) -> None:
    """Until none of them runs any more."""
    async with asyncio.timeout(60):
        while any(command_line(pid) for pid in pids):
            await asyncio.sleep(0.1)


async def at_work(directory: Path) -> int:
    """The pid of an executor that has a task. One that has not told the driver of itself yet may go, and nobody notices."""
    async with asyncio.timeout(60):
        while True:
            for path in directory.glob("work-*/app-*/*/stderr"):
                log = path.read_text(errors="replace")
                if log.count("Executor: Running task") > log.count("Executor: Finished task"):
                    return int(log.split("Started daemon with process name: ")[1].split("@")[0])
            await asyncio.sleep(0.1)


@asynccontextmanager
async def standalone(
    directory: Path, workers: int = 2
) -> AsyncIterator[tuple[str, list[asyncio.subprocess.Process]]]:
    """A Spark master and workers out of PySpark's own jars; the master's URL and the workers."""
    home = Path(pyspark.__file__).parent
    env = {name: value for name, value in os.environ.items() if name in ("PATH", "JAVA_HOME", "HOME", "LANG")}
    env |= {"SPARK_HOME": str(home), "SPARK_DAEMON_MEMORY": "256m", "SPARK_LOCAL_IP": "127.0.0.1"}
    started: list[asyncio.subprocess.Process] = []

    async def start(name: str, *arguments: str) -> asyncio.subprocess.Process:
        with (directory / f"{name}.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                str(home / "bin" / "spark-class"),
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=env,
                cwd=directory,
                start_new_session=True,
            )
        started.append(process)
        return process

    reservation = PortReservation()
    port = reservation.port
    url = f"spark://127.0.0.1:{port}"
    try:
        await start(
            "master",
            "org.apache.spark.deploy.master.Master",
            *("--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"),
        )
        of_workers = [
            await start(
                f"worker-{number}",
                "org.apache.spark.deploy.worker.Worker",
                *("--host", "127.0.0.1", "--cores", "1", "--memory", "512m", "--webui-port", "0"),
                *("--work-dir", str(directory / f"work-{number}"), url),
            )
            for number in range(workers)
        ]
        log = directory / "master.log"
        async with asyncio.timeout(300):
            while log.read_text(errors="replace").count("Registering worker") < workers:
                await asyncio.sleep(0.2)
        yield url, of_workers
    finally:
        for process in started:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        reservation.release()


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_a_standalone_cluster_gets_our_package_and_loses_an_executor(tmp_path: Path):
    async with (
        two_clusters() as (source, target),
        standalone(tmp_path) as (master, workers),
        validator_process(tmp_path) as validator,
    ):
        conf = {"spark.executor.memory": "450m", "spark.cores.max": "2", "spark.executor.cores": "1"}
        ready = await validator.ready(Configure(work_dir=str(tmp_path / "driver"), master=master, conf=conf))
        assert ready.master == master
        assert "import validator from" in validator.log
        place = validator.log.split("import validator from ")[1].splitlines()[0]
        assert place.startswith(str(tmp_path / "work-")), "an executor's own directory"
        assert "kafka-linker-validator.zip/validator/__init__.py" in place

        for cluster in (source, target):
            cluster.inject("fetch", delay=6.0, times=3, match=lambda entity: entity.max_bytes > 1 << 20)
        await validator.send(run_of(source, target))
        await until_reading(validator, target)
        executors = {
            pid
            for worker in workers
            for pid in descendants(worker.pid)
            if "CoarseGrainedExecutorBackend" in command_line(pid)
        }
        reading = await at_work(tmp_path)
        assert reading in executors, executors
        os.kill(reading, signal.SIGKILL)
        end, results = await validator.end("r")
        assert isinstance(end, Finished), end
        assert (end.mismatches, end.replicas) == (0, 4)
        assert [one.through for one in results] == [END] * 4
        assert "Lost executor" in validator.log
        await validator.send(Stop())
        async with asyncio.timeout(90):
            assert await validator.process.wait() == 0


@pytest.mark.parametrize(
    ("master", "says"),
    [("spark://127.0.0.1:1", "no Spark master answers"), ("sparkle://nowhere", "sparkle")],
)
async def test_a_wrong_master_is_told_within_bounds(tmp_path: Path, master: str, says: str):
    async with validator_process(tmp_path) as validator:
        await validator.send(Configure(work_dir=str(tmp_path / "work"), master=master))
        event = await validator.event()
        assert isinstance(event, Failed) and event.side == "spark" and event.id is None
        assert says in event.reason
        async with asyncio.timeout(30):
            assert await validator.process.wait() == 1


async def test_what_is_no_command_ends_the_process_and_quotes_nothing(tmp_path: Path):
    async with validator_process(tmp_path) as validator:
        stdin = validator.process.stdin
        assert stdin is not None
        stdin.write(b'{"type":"run","id":"r","source":"' + PASSWORD.encode() + b'"}\n')
        event = await validator.event()
        assert isinstance(event, Failed) and PASSWORD not in event.reason + validator.log
        async with asyncio.timeout(30):
            assert await validator.process.wait() == 0
