"""Many runs on clusters that live long: who uses which fleet, what is begun anew and when, and the report."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import shutil
import signal
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path

from lab.clusters.kafka_jars import ensure_distribution
from tests.chaos.fleet import ApiRefused, ApiSilent, Fleet
from tests.chaos.mirrors import link_name
from tests.chaos.plan import RunPlan, Store
from tests.chaos.report import line, report, summary
from tests.chaos.result import RunResult
from tests.chaos.run import Run
from tests.chaos.stage import Stage
from tests.chaos.switch_plan import PROMOTES, SWITCHES, plan_any
from tests.chaos.switch_run import SwitchRun

FIRST_ID = 900
FRESH_CLUSTERS_EVERY = 25
RUN_TIMEOUT = 600.0


class Series:
    """The runs of one call, one after the other."""

    def __init__(
        self, directory: Path, out: Path, plans: list[RunPlan], *, keep_all_logs: bool = False
    ) -> None:
        self._directory = directory
        self._out = out
        self._plans = plans
        self._keep_all_logs = keep_all_logs
        self._stage_stack = AsyncExitStack()
        self._fleet_stack = AsyncExitStack()
        self._stage: Stage | None = None
        self._fleet: Fleet | None = None
        self._runs_on_stage = 0
        self._stages = 0
        self._fleets = 0
        self._deleting: asyncio.Task[None] | None = None
        self.results: list[RunResult] = []

    async def go(self) -> None:
        try:
            for number, plan in enumerate(self._plans, 1):
                result = await self._one(number, plan)
                self.results.append(result)
                print(line(result, number, len(self._plans)), flush=True)
        finally:
            await asyncio.shield(self._close())

    async def _one(self, number: int, plan: RunPlan) -> RunResult:
        began = time.monotonic()
        stage = await self._stage_for(plan)
        fleet, kept = await self._fleet_for(stage, plan, number)
        self._runs_on_stage += 1
        run = (SwitchRun if plan.switches else Run)(stage, fleet, plan, number, kept=kept)
        run.result.timeline["clusters"] = round(time.monotonic() - began, 2)
        try:
            async with asyncio.timeout(RUN_TIMEOUT):
                result = await run.go()
        except TimeoutError:
            result = run.result
            result.stuck = f"the run was not over after {RUN_TIMEOUT:.0f} s"
        if not result.ok or self._keep_all_logs:
            self._keep_logs(fleet, stage, result)
        if result.stuck is not None:
            await self._close()  # nobody knows what is still on its way in there
            return result
        began = time.monotonic()
        try:
            await run.clean_up()
        except (ApiRefused, ApiSilent) as error:
            result.evidence.append(f"clean-up: {error}")
            await self._end_fleet()
        if self._deleting is not None:
            await self._deleting
        self._deleting = asyncio.create_task(asyncio.to_thread(run.mirrors.delete_topics))
        result.timeline["clean-up"] = round(time.monotonic() - began, 2)
        return result

    async def _stage_for(self, plan: RunPlan) -> Stage:
        young = self._runs_on_stage < FRESH_CLUSTERS_EVERY
        if self._stage is not None and young and await self._stage.healthy():
            return self._stage
        await self._close()
        self._stages += 1
        self._runs_on_stage = 0
        later = self._plans[len(self.results) :][:FRESH_CLUSTERS_EVERY]
        zookeeper = any(one.store is Store.ZOOKEEPER for one in later)
        directory = self._directory / f"stage-{self._stages}"
        directory.mkdir()
        self._stage = await self._stage_stack.enter_async_context(Stage(directory, zookeeper=zookeeper))
        return self._stage

    async def _fleet_for(self, stage: Stage, plan: RunPlan, number: int) -> tuple[Fleet, bool]:
        if self._fleet is not None and self._fleet.store is plan.store and plan.keep:
            return self._fleet, True
        await self._end_fleet()
        self._fleets += 1
        directory = stage.directory / f"fleet-{self._fleets}"
        joins = link_name(number) if plan.switches else None
        first_id = FIRST_ID + 3 * self._fleets  # ids are not used twice: the last ones are still registered
        self._fleet = await self._fleet_stack.enter_async_context(
            Fleet(stage, plan.store, plan.lease, first_id, directory, joins)
        )
        return self._fleet, False

    async def _end_fleet(self) -> None:
        self._fleet = None
        await self._fleet_stack.aclose()

    async def _close(self) -> None:
        if self._deleting is not None:
            self._deleting.cancel()
            await asyncio.gather(self._deleting, return_exceptions=True)
            self._deleting = None
        await self._end_fleet()
        stage, self._stage = self._stage, None
        await self._stage_stack.aclose()
        if stage is not None:
            shutil.rmtree(stage.directory, ignore_errors=True)

    def _keep_logs(self, fleet: Fleet, stage: Stage, result: RunResult) -> None:
        """What one needs to find out why, before it is deleted with the clusters."""
        kept = self._out / f"seed-{result.seed}"
        kept.mkdir(parents=True, exist_ok=True)
        logs = [(f"sidecar-{one.broker_id}.log", one.process.log) for one in fleet.members]
        logs += [(f"{node.name.replace(' ', '-')}.log", node.log) for node in stage.nodes]
        for name, log in logs:
            if log.exists():
                shutil.copyfile(log, kept / name)
        (kept / "result.json").write_text(json.dumps(result.as_json(), indent=2) + "\n")


async def chaos(arguments: argparse.Namespace) -> int:
    stores = [Store(one) for one in arguments.stores.split(",")]
    plans = [plan_any(seed, stores, arguments.only) for seed in _seeds(arguments)]
    if arguments.plan:
        print(json.dumps([asdict(plan) for plan in plans], indent=2))
        return 0
    out = Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    logging.getLogger("aiokafka").setLevel(
        logging.CRITICAL
    )  # every retry is a line, and retries are the point
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    logging.getLogger("lab.demo.clients").setLevel(logging.CRITICAL)
    await ensure_distribution(progress=print)
    started = time.monotonic()
    work = asyncio.current_task()
    assert work is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, work.cancel)
    with tempfile.TemporaryDirectory(prefix="linker-chaos-", ignore_cleanup_errors=True) as scratch:
        series = Series(Path(scratch), out, plans, keep_all_logs=arguments.logs)
        try:
            await series.go()
        finally:
            found = report(series.results, plans[0].seed, time.monotonic() - started)
            (out / "report.json").write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(summary(series.results)))
    return 0 if found["ok"] else 1


def _seeds(arguments: argparse.Namespace) -> list[int]:
    if arguments.seeds:
        return [int(one) for one in arguments.seeds.split(",")]
    first = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1 << 30)
    return list(range(first, first + max(arguments.runs, 1)))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=None, help="of the first run; the next ones count up")
    parser.add_argument("--seeds", help="these, separated by commas, instead of --runs and --seed")
    parser.add_argument("--only", choices=[SWITCHES, PROMOTES], help="runs of this kind; default: both")
    parser.add_argument("--out", default="build/chaos")
    parser.add_argument("--stores", default=",".join(Store), help="kinds of stores to choose from")
    parser.add_argument(
        "--logs", action="store_true", help="keep the logs of runs in which nothing was wrong too"
    )
    parser.add_argument("--plan", action="store_true", help="only print what the runs would do")
    return asyncio.run(chaos(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
