"""The validator process: started when needed, gone when it is not, never trusted, never left behind."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from fleet.stores.base import StoreError
from linker.config.check import ValidationConfig
from linker.validation import needs
from linker.validation import process as process_module
from linker.validation.errors import ValidatorError
from linker.validation.needs import missing_parts
from linker.validation.process import ValidatorProcess
from linker.validation.validator import Validator
from tests.validation.conftest import FakeWorld
from validator import messages as m
from validator.evidence.model import ClusterFacts, Evidence

SIDE = m.Side(name="source", bootstrap=("h:1",), properties={"sasl.jaas.config": "hush"})


def a_run(name: str = "r", partitions: int = 1) -> m.Run:
    return m.Run(
        id=name,
        source=SIDE,
        target=SIDE,
        partitions=tuple(
            m.PartitionPlan(
                topic="t",
                partition=index,
                replicas=(m.ReplicaPlan(broker_id=1), m.ReplicaPlan(broker_id=2)),
            )
            for index in range(partitions)
        ),
    )


class Ears:
    def __init__(self) -> None:
        self.heard: list[m.Progress | m.Checked] = []
        self.first = asyncio.Event()

    async def seen(self, event: m.Progress | m.Checked) -> None:
        self.heard.append(event)
        self.first.set()

    @property
    def results(self) -> list[m.ReplicaResult]:
        return [one for event in self.heard if isinstance(event, m.Checked) for one in event.results]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def gone(pid: int) -> None:
    async with asyncio.timeout(30):
        while alive(pid):
            await asyncio.sleep(0.01)


async def test_a_run_and_its_results(process: ValidatorProcess, fake: FakeWorld, tmp_path: Path) -> None:
    fake.say(ends={"t-0": 40, "t-1": 2})
    ears = Ears()
    assert process.state == "off"
    finished = await process.run(a_run(partitions=2), ears.seen)
    assert (finished.partitions, finished.replicas, finished.mismatches) == (2, 4, 0)
    assert [(one.partition, one.broker_id, one.through) for one in ears.results] == [
        (0, 1, 40),
        (0, 2, 40),
        (1, 1, 2),
        (1, 2, 2),
    ]
    assert process.state == "ready"
    assert process.ready is not None
    assert process.ready.spark == "0-fake"
    pid = process.pid
    assert pid is not None
    await process.run(a_run("again"), ears.seen)
    assert process.pid == pid  # it is kept
    assert process.log_file.read_text() == "the log of Spark\n"
    command = Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
    assert b"hush" not in command
    await process.close()
    assert process.state == "off"
    await gone(pid)


async def test_one_that_does_not_stop_is_killed_with_its_children(
    fake: FakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_module, "CLOSE_GRACE", 0.2)
    child = tmp_path / "child"
    command = [
        sys.executable,
        "-c",
        (
            "import subprocess, sys, runpy, time\n"
            "child = subprocess.Popen(['sleep', '600'])\n"
            f"open({str(child)!r}, 'w').write(str(child.pid))\n"
            f"sys.argv = ['x', {str(fake.directory)!r}, 'linger']\n"
            f"runpy.run_path({fake.command[1]!r}, run_name='__main__')\n"
            "time.sleep(600)\n"
        ),
    ]
    process = ValidatorProcess(ValidationConfig(), tmp_path / "v", command=command, start_timeout=50)
    await process.run(a_run(), Ears().seen)
    pid = process.pid
    assert pid is not None
    await process.close()
    await gone(pid)
    await gone(int(child.read_text()))


async def test_a_jvm_that_outlives_its_driver_is_in_nobodys_way(tmp_path: Path) -> None:
    child = tmp_path / "child"
    command = [
        sys.executable,
        "-c",
        (
            "import os, subprocess\n"
            "child = subprocess.Popen(['sleep', '600'])\n"
            f"open({str(child)!r}, 'w').write(str(child.pid))\n"
            "os._exit(4)\n"
        ),
    ]
    process = ValidatorProcess(ValidationConfig(), tmp_path / "v", command=command, start_timeout=50)
    with pytest.raises(ValidatorError, match=r"has ended \(exit 4\)"):
        await process.run(a_run(), Ears().seen)
    await gone(int(child.read_text()))
    await process.close()


async def test_it_ends_when_it_has_nothing_to_do(fake: FakeWorld, tmp_path: Path) -> None:
    config = ValidationConfig.model_validate({"idle.timeout.ms": 200})
    process = ValidatorProcess(config, tmp_path / "v", command=fake.command, start_timeout=50)
    try:
        await process.run(a_run(), Ears().seen)
        pid = process.pid
        assert pid is not None
        await gone(pid)
        assert process.state == "off"
        await process.run(a_run(), Ears().seen)
        assert process.starts == 2
    finally:
        await process.close()


async def test_a_cancelled_run_leaves_a_process_of_use(process: ValidatorProcess, fake: FakeWorld) -> None:
    fake.say(ends={"t-0": 1, "t-1": 1}, hold=0.2)
    ears = Ears()
    work = asyncio.create_task(process.run(a_run(partitions=50), ears.seen))
    await asyncio.wait_for(ears.first.wait(), 40)
    pid = process.pid
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert ears.results
    fake.say(hold=0)
    await process.run(a_run("next"), ears.seen)
    assert process.pid == pid


@pytest.mark.parametrize("error", [StoreError("it is away"), ValidatorError("reports unasked")])
async def test_a_run_whose_results_cannot_be_noted_is_cancelled(
    process: ValidatorProcess, fake: FakeWorld, error: Exception
) -> None:
    fake.say(hold=0.2)

    async def seen(event: m.Progress | m.Checked) -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        await process.run(a_run(partitions=200), seen)
    assert caught.value is error
    assert m.Cancel(id="r") in fake.asked()
    pid = process.pid
    fake.say(hold=0)
    async with asyncio.timeout(30):  # the rest of the first would take 40 s
        await process.run(a_run("next"), Ears().seen)
    assert process.pid == pid


async def test_a_cancelled_run_that_goes_on_costs_the_process(
    process: ValidatorProcess, fake: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_module, "CANCEL_TIMEOUT", 0.2)
    fake.say(deaf=True)
    work = asyncio.create_task(process.run(a_run(), Ears().seen))
    async with asyncio.timeout(40):
        while not fake.runs():
            await asyncio.sleep(0.01)
    pid = process.pid
    assert pid is not None
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    await gone(pid)
    fake.say(deaf=False)
    await process.run(a_run(), Ears().seen)


@pytest.mark.parametrize(
    ("world", "told"),
    [
        ({"die": True}, r"has ended \(exit 3\); see .*validator.log"),
        ({"garbage": True}, "does not speak this sidecar's language"),
        ({"deaf": True}, "gave no sign for 1 s"),
        (
            {"stuck": True},
            r"the spark: the validator got no further for 1 s: has local\[\*\] any executor",
        ),
        (
            {"fail": {"reason": "connection refused", "side": "source", "address": "h:9092"}},
            "the source h:9092: connection refused",
        ),
    ],
)
async def test_trouble_is_told_and_the_next_run_works(
    fake: FakeWorld, tmp_path: Path, world: dict[str, Any], told: str
) -> None:
    process = ValidatorProcess(
        ValidationConfig(),
        tmp_path / "v",
        command=fake.command,
        start_timeout=50,
        silence=1 if world.get("deaf") else 30,
        standstill=1 if world.get("stuck") else 30,
        first_pause=0.05,
    )
    try:
        fake.say(**world)
        with pytest.raises(ValidatorError, match=told) as caught:
            await process.run(a_run(), Ears().seen)
        assert not caught.value.hopeless
        fake.say(**dict.fromkeys(world, None))
        process._silence = process._standstill = 30
        await process.run(a_run(), Ears().seen)
        assert process.trouble is None
    finally:
        await process.close()


async def test_a_run_that_gets_further_slowly_is_no_standstill(fake: FakeWorld, tmp_path: Path) -> None:
    process = ValidatorProcess(
        ValidationConfig(), tmp_path / "v", command=fake.command, start_timeout=50, standstill=4
    )
    try:
        fake.say(hold=0.4)
        ears = Ears()
        await process.run(a_run(partitions=12), ears.seen)
        assert len(ears.results) == 24
    finally:
        await process.close()


async def test_starts_that_fail_wait_longer_each_time(process: ValidatorProcess, fake: FakeWorld) -> None:
    fake.say(start={"reason": "no such master: spark://nowhere:7077", "side": "spark"})
    took = []
    for _ in range(3):
        with pytest.raises(ValidatorError, match="the spark: no such master"):
            await process.run(a_run(), Ears().seen)
        took.append(process._pause)
        assert process.state == "off"
        assert "nowhere" in (process.trouble or "")
    assert took == [0.05, 0.1, 0.2]


async def test_a_start_that_never_ends(fake: FakeWorld, tmp_path: Path) -> None:
    process = ValidatorProcess(
        ValidationConfig(),
        tmp_path / "v",
        command=[sys.executable, "-c", "import time; time.sleep(60)"],
        start_timeout=0.5,
    )
    with pytest.raises(ValidatorError, match=r"Spark \(local\[\*\]\) was not ready within"):
        await process.run(a_run(), Ears().seen)
    assert process.state == "off"
    await process.close()


async def test_a_line_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(m, "MAX_LINE", 1000)
    process = ValidatorProcess(
        ValidationConfig(),
        tmp_path / "v",
        command=[sys.executable, "-c", "print('x' * 100000, flush=True); input()"],
        start_timeout=50,
    )
    with pytest.raises(ValidatorError, match="a line of more than 1000 bytes"):
        await process.run(a_run(), Ears().seen)
    await process.close()


async def test_the_log_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "MAX_LOG_BYTES", 100_000)
    process = ValidatorProcess(
        ValidationConfig(),
        tmp_path / "v",
        command=[sys.executable, "-c", "import sys; sys.stderr.write('y' * 1_000_000)"],
        start_timeout=50,
    )
    with pytest.raises(ValidatorError, match="has ended"):
        await process.run(a_run(), Ears().seen)
    logs = sorted(process.directory.glob("validator.log*"))
    assert len(logs) == 2
    assert all(log.stat().st_size <= 100_000 for log in logs)
    await process.close()


async def test_a_directory_that_cannot_be_made_is_a_reason_and_may_pass(
    process: ValidatorProcess, fake: FakeWorld
) -> None:
    process.directory.write_text("in the way")
    with pytest.raises(ValidatorError, match="work cannot be made: ") as caught:
        await process.run(a_run(), Ears().seen)
    assert not caught.value.hopeless
    assert process.state == "off"
    process.directory.unlink()
    await process.run(a_run(), Ears().seen)


async def test_a_log_that_cannot_be_opened_is_in_nobodys_way(
    process: ValidatorProcess, fake: FakeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    process.log_file.mkdir(parents=True)
    fake.say(ends={"t-0": 3})
    finished = await process.run(a_run(), Ears().seen)
    assert finished.replicas == 2
    assert "the validator's log cannot be written: Is a directory" in caplog.text


async def test_evidence_is_written(process: ValidatorProcess, tmp_path: Path) -> None:
    cluster = ClusterFacts(name="c")
    written = await process.write_evidence(
        "e", tmp_path, Evidence(link="l", source=cluster, target=cluster, started_ms=1)
    )
    assert Path(written.html).exists()
    assert Path(written.json_path).exists()


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "no java on the sidecar's PATH" in (missing_parts({"PATH": str(tmp_path)}) or "")
    assert f"JAVA_HOME is {tmp_path}" in (missing_parts({"JAVA_HOME": str(tmp_path)}) or "")
    monkeypatch.setattr(needs, "find_spec", lambda name: None)
    assert "PySpark is not installed" in (missing_parts() or "")


@pytest.mark.parametrize(
    ("release", "refused"),
    [
        ('IMPLEMENTOR="x"\nJAVA_VERSION="17.0.15"\n', None),
        ('JAVA_VERSION="21"\n', None),
        ('JAVA_VERSION="1.8.0_392"\n', "is Java 8: the validator needs Java 17 or 21"),
        ('JAVA_VERSION="25.0.1"\n', "is Java 25: the validator needs Java 17 or 21"),
        ("no version\n", None),
        (None, None),
    ],
)
def test_a_java_that_spark_does_not_run_on_is_said(
    release: str | None, refused: str | None, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.touch(mode=0o755)
    if release is not None:
        (home / "release").write_text(release)
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "java").symlink_to(java)  # as Linux distributions do it
    for environment in ({"JAVA_HOME": str(home)}, {"PATH": str(tmp_path / "path")}):
        told = missing_parts(environment)
        assert told is None if refused is None else refused in (told or "")


async def test_what_spark_leaves_where_it_works_is_gone_with_the_next_start(
    process: ValidatorProcess, tmp_path: Path
) -> None:
    await process.run(a_run(), Ears().seen)
    place = Path(os.readlink(f"/proc/{process.pid}/cwd"))
    assert place == tmp_path / "validator" / "work"
    (place / "artifacts" / "spark-1").mkdir(parents=True)
    (place / "hs_err_pid1.log").write_text("SIGSEGV")
    await process.close()
    await process.run(a_run("again"), Ears().seen)
    assert sorted(one.name for one in place.iterdir()) == []
    assert (tmp_path / "validator" / "hs_err.log").read_text() == "SIGSEGV"  # why a JVM crashed is not lost


async def test_a_relative_state_directory_is_the_sidecars(
    fake: FakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    process = ValidatorProcess(ValidationConfig(), Path("state/v"), command=fake.command, start_timeout=50)
    try:
        await process.run(a_run(), Ears().seen)
    finally:
        await process.close()
    places = [one.work_dir for one in fake.asked() if isinstance(one, m.Configure)]
    assert places == [str(tmp_path / "state" / "v" / "work")]
    validator = Validator(ValidationConfig(), process, lambda: SIDE, Path("state/evidence"))
    assert validator.evidence_dir == tmp_path / "state" / "evidence"


async def test_what_is_missing_is_hopeless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "missing_parts", lambda: "there is no java")
    process = ValidatorProcess(ValidationConfig(), tmp_path / "v")
    with pytest.raises(ValidatorError, match="there is no java") as caught:
        await process.run(a_run(), Ears().seen)
    assert caught.value.hopeless
    assert process.trouble == "there is no java"
