"""Two fake clusters with many groups in a process of their own, so that what a sidecar computes can be told apart from what
they do: `python -m tests.links.far_groups GROUPS NODES`.

Told by lines of JSON on its standard input, each answered by one on its output: `{"commit": 7}` has every group commit 7 at
the source, for both of its partitions; `{"look": 7}` says how many groups have that on the target, and what was asked of the
clusters since the last look. Ends with its input.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvloop

from tests.fakes import FakeCluster
from tests.fakes.groups import FakeGroups

TOPIC, PARTITIONS = "orders", 2
_ANSWER_TIMEOUT = 30.0


def name_of(number: int) -> str:
    return f"g{number}"


class FarGroups:
    """The clusters of another process, as a test talks to them."""

    def __init__(self, process: asyncio.subprocess.Process, told: dict[str, Any]) -> None:
        self._process = process
        self.source: str = told["source"]
        self.target: str = told["target"]
        self.source_topic_id = bytes.fromhex(told["source_topic_id"])
        self.target_topic_id = bytes.fromhex(told["target_topic_id"])

    async def commit(self, offset: int) -> None:
        await self._ask({"commit": offset})

    async def look(self, offset: int) -> dict[str, Any]:
        """`there`: groups that have the offset on the target; `asked`: requests by cluster and api since the last look;
        `connections` of the target's nodes; `waited`: seconds so far that the process had no processor for its work."""
        return await self._ask({"look": offset})

    async def _ask(self, words: dict[str, Any]) -> Any:
        if self._process.stdin is None:
            raise RuntimeError("a process without input")
        self._process.stdin.write(json.dumps(words).encode() + b"\n")
        return await _line(self._process)


async def _line(process: asyncio.subprocess.Process) -> Any:
    if process.stdout is None:
        raise RuntimeError("a process without output")
    async with asyncio.timeout(_ANSWER_TIMEOUT):
        return json.loads(await process.stdout.readline())


@asynccontextmanager
async def far_groups(groups: int, nodes: int) -> AsyncIterator[FarGroups]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.links.far_groups",
        str(groups),
        str(nodes),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield FarGroups(process, await _line(process))
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


# What runs there.


async def _serve(count: int, nodes: int) -> None:
    async with FakeCluster(nodes=nodes) as source, FakeCluster(nodes=nodes) as target:
        sides = FakeGroups(source), FakeGroups(target)
        for side in sides:
            side.cluster.requests = type(side.cluster.requests)(maxlen=1)
            side.cluster.add_topic(TOPIC, partitions=PARTITIONS)
            side.placed.update(((0, name_of(n)), 1 + n % nodes) for n in range(count))
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
        _say(
            {
                "source": source.bootstrap_servers,
                "target": target.bootstrap_servers,
                "source_topic_id": source.topics[TOPIC].topic_id.hex(),
                "target_topic_id": target.topics[TOPIC].topic_id.hex(),
            }
        )
        while line := await reader.readline():
            words = json.loads(line)
            if "commit" in words:
                for n in range(count):
                    for partition in range(PARTITIONS):
                        sides[0].offsets.commit(name_of(n), (TOPIC, partition), words["commit"], "")
                _say({})
            else:
                _say(_seen(sides, count, words["look"]))


def _seen(sides: tuple[FakeGroups, FakeGroups], count: int, offset: int) -> dict[str, Any]:
    found = (sides[1].offsets.committed.get(name_of(n), {}) for n in range(count))
    there = sum(len(one) == PARTITIONS and all(c.offset == offset for c in one.values()) for one in found)
    asked = {name: dict(side.cluster.counts) for name, side in zip(("source", "target"), sides, strict=True)}
    for side in sides:
        side.cluster.counts.clear()
    connections = [broker.connections for broker in sides[1].cluster.brokers.values()]
    return {"there": there, "asked": asked, "connections": connections, "waited": waited()}


def waited() -> float:
    """Seconds that this process was ready to run and had no processor; 0 where the system does not tell."""
    told = Path("/proc/self/schedstat")
    return int(told.read_text().split()[1]) / 1e9 if told.exists() else 0.0


def _say(words: dict[str, Any]) -> None:
    print(json.dumps(words), flush=True)


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1]), int(sys.argv[2])))
