"""Runs of chaos: set up, strike, promote until it succeeds, judge, report."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

from linker.demo.checker import Verdict, check
from linker.demo.history import History
from linker.demo.inspection import compare_followers, final_logs, placements
from linker.demo.kafka_cluster import KafkaCluster, KafkaClusterSpec
from linker.demo.kafka_dist import ensure_distribution
from linker.demo.live_producers import AiokafkaProducer, LibrdkafkaProducer, LiveProducer
from linker.demo.sidecar_process import SidecarProcess, SidecarSpec
from linker.demo.source_data import SourceFiller, SourceTopic
from tests.chaos.faults import choose

LINK = "chaos"
RATE = 200.0
PATIENCE = 180.0
SAFETY = ("lost", "misplaced", "duplicated", "reordered", "phantom")
PROPERTIES = {"broker.session.timeout.ms": "6000", "broker.heartbeat.interval.ms": "1000"}


@dataclass
class Run:
    """One run's figures, as they go into the report."""

    seed: int
    faults: list[str] = field(default_factory=list)
    promotes: int = 0
    acked: int = 0
    lost: int = 0
    duplicated: int = 0
    reordered: int = 0
    misplaced: int = 0
    phantom: int = 0
    unknown: int = 0
    client_errors: list[str] = field(default_factory=list)
    replicas_differ: int = 0
    forks: int = 0
    stuck: str | None = None
    seconds: float = 0.0
    evidence: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        broken = self.lost + self.duplicated + self.reordered + self.misplaced + self.phantom
        return not (broken or self.replicas_differ or self.forks or self.stuck)


class Chaos:
    """Clusters and a sidecar that all runs share; topics and clients of each run are its own."""

    def __init__(self, source: KafkaCluster, target: KafkaCluster, sidecar: SidecarProcess) -> None:
        self.source = source
        self.target = target
        self.sidecar = sidecar

    async def run(self, number: int, seed: int) -> Run:
        result = Run(seed)
        started = time.monotonic()
        rng = random.Random(seed)
        topics = [
            SourceTopic(f"chaos-{number}-{seed}-a", 4, SourceFiller.history, live=True),
            SourceTopic(f"chaos-{number}-{seed}-b", 3, SourceFiller.history, live=True),
        ]
        history = History()
        producers: list[LiveProducer] = [
            LibrdkafkaProducer(f"librdkafka-{seed}", topics[0].name, 4, RATE, history),
            AiokafkaProducer(f"aiokafka-{seed}", topics[1].name, 3, RATE, history),
        ]
        try:
            async with asyncio.timeout(10 * PATIENCE):
                await self._mirror(topics)
                for producer in producers:
                    await producer.start(self.target.bootstrap)
                promote = asyncio.create_task(self._promote(topics, result, rng.uniform(0.0, 6.0)))
                for _ in range(rng.randint(2, 4)):
                    await asyncio.sleep(rng.uniform(0.0, 2.0))
                    fault = choose(rng, self.source, self.target, self.sidecar)
                    result.faults.append(fault.name)
                    await fault.strike()
                await promote
                await asyncio.sleep(2.0)
        except TimeoutError:
            result.stuck = "not promoted in time"
        finally:
            for producer in producers:
                await producer.stop()
        if result.stuck is None:
            await self._judge(topics, history, result)
        result.seconds = round(time.monotonic() - started, 1)
        return result

    async def _mirror(self, topics: list[SourceTopic]) -> None:
        filler = SourceFiller(self.source.bootstrap, scale=0.1)
        await asyncio.to_thread(filler.create, topics, 2)
        await asyncio.to_thread(filler.fill, topics)
        names = [topic.name for topic in topics]
        await self._command("mirror", "create", *names, "--link", LINK, "--replication-factor", "3")
        await self._states(names, "ACTIVE")

    async def _promote(self, topics: list[SourceTopic], result: Run, delay: float) -> None:
        """As an operator would: again, until it is done. An abandoned promote is a lawful answer to a fault."""
        await asyncio.sleep(delay)
        names = [topic.name for topic in topics]
        deadline = time.monotonic() + PATIENCE
        while True:
            states = await self._states(names, None)
            if set(states.values()) == {"PROMOTED"}:
                return
            if any(state == "FAILED" for state in states.values()):
                raise AssertionError(f"a mirror failed: {states}")
            if time.monotonic() > deadline:
                raise TimeoutError
            open_topics = [name for name, state in states.items() if state == "ACTIVE"]
            if open_topics:
                result.promotes += 1
                await self.sidecar.run("mirror", "promote", *open_topics, "--link", LINK, timeout=PATIENCE)
            await asyncio.sleep(0.5)

    async def _states(self, names: list[str], wanted: str | None) -> dict[str, str]:
        deadline = time.monotonic() + PATIENCE
        while True:
            answer = await self.sidecar.run("mirror", "list", "--link", LINK, "-o", "json")
            if answer.exit_code == 0:
                states = {one["topic"]: one["state"] for one in answer.json() if one["topic"] in names}
                if len(states) == len(names) and (wanted is None or set(states.values()) == {wanted}):
                    return states
            if time.monotonic() > deadline:
                raise TimeoutError
            await asyncio.sleep(0.3)

    async def _command(self, *arguments: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while (answer := await self.sidecar.run(*arguments)).exit_code != 0:
            if time.monotonic() > deadline:
                raise AssertionError(f"linker {' '.join(arguments)}: {answer.errors}")
            await asyncio.sleep(1.0)

    async def _judge(self, topics: list[SourceTopic], history: History, result: Run) -> None:
        placed = await asyncio.to_thread(placements, self.target.bootstrap, topics)
        logs = await asyncio.to_thread(final_logs, self.target, topics, placed)
        verdict: Verdict = check(history, logs, drained=False)
        result.acked = verdict.acked
        result.unknown = verdict.unknown
        result.client_errors = list(verdict.client_errors)[:10]
        for rule in SAFETY:
            findings = getattr(verdict, rule)
            setattr(result, rule, len(findings))
            result.evidence += [f"{rule}: {finding}" for finding in findings[:5]]
        result.forks = await asyncio.to_thread(self._written_at_source_only, topics, placed)
        compared = await asyncio.to_thread(compare_followers, self.target, topics, placed)
        differing = [one for one in compared if not one.identical]
        result.replicas_differ = len(differing)
        result.evidence += [str(one) for one in differing[:5]]

    def _written_at_source_only(self, topics: list[SourceTopic], placed: object) -> int:
        """A record that was acknowledged at the source after the hand-over would be in its log alone: a fork."""
        at_source = placements(self.source.bootstrap, topics)
        source_logs = final_logs(self.source, topics, at_source)
        target_logs = final_logs(self.target, topics, placements(self.target.bootstrap, topics))
        forks = 0
        for tp, log in source_logs.items():
            at_target = {
                (record.producer, record.sequence): record.offset for record in target_logs[tp].records
            }
            forks += sum(
                at_target.get((record.producer, record.sequence)) != record.offset for record in log.records
            )
        return forks


async def chaos(arguments: argparse.Namespace) -> int:
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1 << 30)
    out = Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    logging.getLogger("aiokafka").setLevel(
        logging.CRITICAL
    )  # every retry is a line, and retries are the point
    runs: list[Run] = []
    with tempfile.TemporaryDirectory(prefix="linker-chaos-") as scratch:
        directory = Path(scratch)
        await ensure_distribution(progress=print)
        async with AsyncExitStack() as stack:
            source, target = await asyncio.gather(
                stack.enter_async_context(
                    KafkaCluster(
                        KafkaClusterSpec(name="source", brokers=2, controllers=1, properties=PROPERTIES),
                        directory,
                    )
                ),
                stack.enter_async_context(
                    KafkaCluster(
                        KafkaClusterSpec(name="target", brokers=3, controllers=1, properties=PROPERTIES),
                        directory,
                    )
                ),
            )
            sidecar = await stack.enter_async_context(
                SidecarProcess(SidecarSpec(target_bootstrap=target.bootstrap), directory / "sidecar")
            )
            shared = Chaos(source, target, sidecar)
            await shared._command("link", "create", LINK, "--bootstrap-servers", source.bootstrap)
            for number in range(arguments.runs):
                run = await shared.run(number, seed + number)
                runs.append(run)
                verdict = "ok" if run.ok else f"BROKEN {run.stuck or run.evidence}"
                print(
                    f"run {number + 1}/{arguments.runs} seed {run.seed}: {verdict}; {run.acked} acked, "
                    f"{run.promotes} promotes, {run.seconds:.0f} s; {', '.join(run.faults)}",
                    flush=True,
                )
                if not run.ok:
                    (out / f"sidecar-{run.seed}.log").write_bytes(sidecar.log.read_bytes())
                if run.stuck:
                    break
    report = {
        "runs": len(runs),
        "ok": all(run.ok for run in runs),
        **{
            name: sum(getattr(run, name) for run in runs)
            for name in (
                "acked",
                "lost",
                "duplicated",
                "reordered",
                "misplaced",
                "phantom",
                "unknown",
                "forks",
            )
        },
        "replicas_differ": sum(run.replicas_differ for run in runs),
        "stuck": sum(run.stuck is not None for run in runs),
        "client_errors": sum(len(run.client_errors) for run in runs),
        "raw": [asdict(run) for run in runs],
    }
    (out / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps({key: value for key, value in report.items() if key != "raw"}))
    return 0 if report["ok"] else 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--out", default="build/chaos")
    return asyncio.run(chaos(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
