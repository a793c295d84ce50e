"""A live producer in a process of its own, as an application has one: it waits for nobody else's interpreter lock.

`python -m lab.bench.producer_process <library> <name> <topic> <partitions> <rate> <bootstrap> <file>` writes until SIGTERM,
waits for every outcome, and leaves its history in the file. Times are of the system's monotonic
clock, one for all processes.
"""

from __future__ import annotations

import asyncio
import pickle
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from lab.clusters.child_process import ChildProcess
from lab.workload.history import History
from lab.workload.live_producers import (
    START_TIMEOUT,
    STOP_TIMEOUT,
    AiokafkaProducer,
    KafkaPythonProducer,
    LibrdkafkaProducer,
    LiveProducer,
)
from linker.process.children import python_path
from wire.errors import LinkerError

KINDS: dict[str, type[LiveProducer]] = {
    kind.library: kind for kind in (AiokafkaProducer, LibrdkafkaProducer, KafkaPythonProducer)
}
STARTED = "writing"


class ProducerFailed(LinkerError):
    """The process did not end well: what it wrote cannot be judged."""


class ProducerProcess(ChildProcess):
    """One producer; its history is there once it has stopped."""

    def __init__(
        self,
        library: str,
        topic: str,
        partitions: int,
        rate: float,
        directory: Path,
        *,
        name: str | None = None,
    ) -> None:
        """`topic`: one, or several with commas between them. `name`: where it has several producers of the library."""
        name = name or library
        directory.mkdir(parents=True, exist_ok=True)
        super().__init__(f"producer {name}", directory / f"{name}.log")
        self._arguments = [library, name, topic, str(partitions), str(rate)]
        self._directory = directory
        self._file = directory / f"{name}-{topic.partition(',')[0]}.history"

    async def start(self, bootstrap: str) -> None:
        """Returns when it writes."""
        self._launch(
            [
                sys.executable,
                "-m",
                "lab.bench.producer_process",
                *self._arguments,
                bootstrap,
                str(self._file),
            ],
            self._directory,
            python_path(),
        )
        deadline = time.monotonic() + START_TIMEOUT
        while STARTED.encode() not in self._log_since_start():
            await self._nap("starting", deadline, START_TIMEOUT)

    async def finish(self, history: History) -> None:
        """Stop it, and add what it did to the history."""
        code = await self.stop(2 * STOP_TIMEOUT)
        if code:
            raise ProducerFailed(self._story(f"ended with {code}"))
        theirs: History = pickle.loads(self._file.read_bytes())
        self._file.unlink()
        history.sends |= theirs.sends
        history.acks += theirs.acks
        history.unacked += theirs.unacked
        history.errors += theirs.errors
        history.notices += theirs.notices

    async def abandon(self) -> None:
        """End it if it is still there."""
        if self.running:
            await self.kill()


async def _write(producer: LiveProducer, bootstrap: str) -> None:
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    await producer.start(bootstrap)
    sys.stdout.write(f"{STARTED}\n")
    sys.stdout.flush()
    await told.wait()
    await producer.stop()


def main(arguments: Sequence[str]) -> None:
    library, name, topic, partitions, rate, bootstrap, file = arguments
    history = History()
    producer = KINDS[library](name, topic, int(partitions), float(rate), history)
    asyncio.run(_write(producer, bootstrap))
    Path(file).write_bytes(pickle.dumps(history))


if __name__ == "__main__":
    main(sys.argv[1:])
