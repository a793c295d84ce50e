"""Children and ports: nothing outlives its owner, nothing is given away twice."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from lab.clusters.child_process import ChildError, ChildProcess, die_with_us, parent_environment
from lab.clusters.ports import PortReservation
from lab.clusters.sidecar_process import sidecar_path


class Child(ChildProcess):
    """Any Python script."""

    def launch(self, script: str) -> None:
        self._launch([sys.executable, "-c", script], self.log.parent)

    async def wait_for(self, text: bytes, timeout: float = 30) -> None:
        deadline = time.monotonic() + timeout
        while text not in self._log_since_start():
            await self._nap("starting", deadline, timeout)


SLEEP = "import time; print('up', flush=True); time.sleep(60)"


async def test_a_child_is_stopped_killed_paused_and_started_again(tmp_path: Path) -> None:
    child = Child("child", tmp_path / "log")
    assert (child.running, child.pid, child.exit_code) == (False, None, None)
    with pytest.raises(ChildError, match="child does not run"):
        child.pause()
    child.launch(SLEEP)
    await child.wait_for(b"up")
    assert child.pid is not None
    with pytest.raises(ChildError, match="runs already"):
        child.launch(SLEEP)
    child.pause()
    assert await child.stop() == -signal.SIGTERM, "a paused one is woken to end"
    child.launch(SLEEP)
    await child.wait_for(b"up")
    assert child.cpu_seconds() >= 0
    assert child.peak_resident_bytes() >= child.resident_bytes() > 1 << 20
    await child.kill()
    assert (child.running, child.exit_code) == (False, -signal.SIGKILL)


async def test_a_child_that_ends_by_itself(tmp_path: Path) -> None:
    child = Child("child", tmp_path / "log")
    with pytest.raises(ChildError, match="never started"):
        await child.ended()
    child.launch("raise SystemExit(3)")
    assert await child.ended() == 3
    child.launch(SLEEP)
    with pytest.raises(ChildError, match="has not ended"):
        await child.ended(timeout=0.1)
    await child.kill()


async def test_a_child_that_ends_too_early_shows_its_log(tmp_path: Path) -> None:
    child = Child("child", tmp_path / "log")
    child.launch("raise SystemExit('no disk left')")
    with pytest.raises(ChildError, match=r"(?s)child ended while starting \(exit 1\).*no disk left"):
        await child.wait_for(b"up")


async def test_a_child_that_does_not_get_there_in_time(tmp_path: Path) -> None:
    child = Child("child", tmp_path / "log")
    child.launch("import time; time.sleep(60)")
    try:
        with pytest.raises(ChildError, match="still starting after 0 s"):
            await child.wait_for(b"up", timeout=0.1)
    finally:
        await child.kill()


async def test_a_child_that_will_not_stop(tmp_path: Path) -> None:
    child = Child("child", tmp_path / "log")
    child.launch("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEP)
    await child.wait_for(b"up")
    try:
        with pytest.raises(ChildError, match="did not stop"):
            await child.stop(timeout=0.2)
    finally:
        await child.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="the signal of a dying parent is Linux's")
def test_children_die_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        import os, signal, subprocess, sys
        from lab.clusters.child_process import die_with_us, parent_environment
        child = subprocess.Popen(
            die_with_us([sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"]),
            stdout=subprocess.PIPE, env=parent_environment(), start_new_session=True,
        )
        child.stdout.readline()
        print(child.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    deadline = time.monotonic() + 30
    while Path(f"/proc/{int(done.stdout)}").exists():
        assert time.monotonic() < deadline, "the child outlived its parent"
        time.sleep(0.01)


@pytest.mark.skipif(sys.platform != "linux", reason="the signal of a dying parent is Linux's")
def test_a_child_whose_parent_died_before_the_signal_was_armed_does_not_start() -> None:
    environment = {**parent_environment(), "KAFKA_LINKER_PARENT": "1"}
    command = die_with_us([sys.executable, "-c", "print('it runs')"])
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert "it runs" not in done.stdout
    assert "parent is gone" in done.stderr


def test_a_reserved_port_goes_to_nobody_else_and_can_be_listened_on() -> None:
    with PortReservation() as reservation:
        for _ in range(50):
            with socket.socket() as other:
                other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                other.bind(("127.0.0.1", 0))
                assert other.getsockname()[1] != reservation.port
        for _ in range(2):  # a server that is started again finds its port free
            with socket.socket() as server:
                server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                server.bind(("127.0.0.1", reservation.port))
                server.listen()
                with socket.create_connection(("127.0.0.1", reservation.port), timeout=5):
                    pass
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", reservation.port), timeout=5)


def test_a_sidecar_loads_nothing_that_is_for_tests_only() -> None:
    """kio would import hypothesis, which is not there where a sidecar is installed."""
    says = "import kio.static.primitive, sys; print('hypothesis.strategies' in sys.modules)"
    environment = {**os.environ, **sidecar_path()}
    done = subprocess.run(
        [sys.executable, "-c", says], env=environment, capture_output=True, text=True, timeout=50, check=True
    )
    assert done.stdout == "False\n"
