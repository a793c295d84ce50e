"""The one validator of a sidecar: its process, who has it, and the target's side of every run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from linker.config.check import ValidationConfig
from linker.validation.process import ValidatorProcess
from linker.validation.turns import Urgency, ValidatorQueue
from validator import messages as m
from wire.client.properties import parse_bootstrap_servers
from wire.frames.types import format_address

Seen = Callable[[m.Progress | m.Checked], Awaitable[None]]


class Validator:
    """Shared by all links."""

    def __init__(
        self,
        config: ValidationConfig,
        process: ValidatorProcess,
        target: Callable[[], m.Side],
        evidence_dir: Path,
    ) -> None:
        self.config = config
        self.process = process
        self.target = target
        self.evidence_dir = evidence_dir.absolute()  # the process that writes there works elsewhere
        self.turns = ValidatorQueue()

    def towards(self, target: Callable[[], m.Side]) -> Validator:
        """The same validator, for mirrors that lie in another cluster."""
        found = Validator(self.config, self.process, target, self.evidence_dir)
        found.turns = self.turns
        return found

    async def check(
        self, urgency: Urgency, prepare: Callable[[], Awaitable[m.Run | None]], seen: Seen
    ) -> m.Finished | None:
        """One run, planned when its turn has come, and planned again after it had to make room; None if there was
        nothing to do. ValidatorError if it failed."""
        while True:
            async with self.turns.turn(urgency) as turn:
                command = await prepare()
                if command is None:
                    return None
                finished = await self._until_asked(command, seen, turn.yield_asked)
                if finished is not None:
                    return finished

    async def _until_asked(self, command: m.Run, seen: Seen, yield_asked: asyncio.Event) -> m.Finished | None:
        work = asyncio.ensure_future(self.process.run(command, seen))
        asked = asyncio.ensure_future(yield_asked.wait())
        try:
            await asyncio.wait({work, asked}, return_when=asyncio.FIRST_COMPLETED)
            return work.result() if work.done() else None
        finally:
            work.cancel()
            asked.cancel()
            await asyncio.gather(work, asked, return_exceptions=True)


def side(name: str, properties: dict[str, str], cluster_id: str | None, topic_prefix: str = "") -> m.Side:
    """A cluster as the validator reaches it, out of client properties with their secrets resolved."""
    servers = parse_bootstrap_servers(properties["bootstrap.servers"])
    return m.Side(
        name=name,
        bootstrap=tuple(format_address(host, port) for host, port in servers),
        properties={key: value for key, value in properties.items() if key != "bootstrap.servers"},
        cluster_id=cluster_id,
        topic_prefix=topic_prefix,
    )
