"""Speaks the validator's messages without Spark: `python fake_validator.py DIRECTORY`.

What it finds stands in DIRECTORY/world.json, read anew for each run: {"ends": {"t-0": 100}, "differ": {"t-0": {"2": 17}},
"hold": seconds before each partition's results, "fail": {"reason": ..., "side": ..., "address": ...} or null, "die":
true, "garbage": true, "deaf": true, "stuck": true}. What it was asked is appended to DIRECTORY/asked.jsonl.

Plain JSON, not the messages' classes: it has to start quickly, and what it says is checked by whoever reads it.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from pathlib import Path
from typing import Any

Json = dict[str, Any]

HOME = Path(sys.argv[1])
commands: queue.Queue[Json | None] = queue.Queue()
cancelled: set[str] = set()


def world() -> Json:
    found: Json = json.loads((HOME / "world.json").read_text())
    return found


def tell(**event: Any) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def listen() -> None:
    for line in sys.stdin:
        with (HOME / "asked.jsonl").open("a") as asked:
            asked.write(line)
        command = json.loads(line)
        if command["type"] == "cancel":
            cancelled.add(command["id"])
        else:
            commands.put(command)
    commands.put(None)


def batch(offset: int, crc: int) -> Json:
    return {
        "base_offset": offset,
        "last_offset": offset,
        "records": 1,
        "size": 100,
        "crc": crc,
        "crc_computed": crc,
        "attributes": 0,
        "codec": "none",
        "producer_id": -1,
        "producer_epoch": -1,
        "base_sequence": -1,
        "max_timestamp": 0,
    }


def check(plan: Json, replica: Json, now: Json) -> Json:
    name = f"{plan['topic']}-{plan['partition']}"
    end = plan["end"] if plan["end"] is not None else now["ends"].get(name, 0)
    wrong = now.get("differ", {}).get(name, {}).get(str(replica["broker_id"]))
    base = plan["start"] if replica["through"] is None else replica["through"]
    findings = []
    through = max(base, end)
    short = (now.get("short") or {}).get(name, {}).get(str(replica["broker_id"]))
    if short is not None and short < end:
        through = max(base, short)
        findings.append({"kind": "short", "offset": through, "detail": f"it ends at {through}"})
    counted = (now.get("counts") or {}).get(plan["topic"])
    if counted is not None:
        through = base
        findings.append({"kind": "partition_count", "offset": base, "detail": f"it has {counted} partitions"})
    if wrong is not None and base <= wrong < end:
        through = wrong
        findings.append(
            {
                "kind": "differing",
                "offset": wrong,
                "detail": "the CRCs differ",
                "source": batch(wrong, 1),
                "replica": batch(wrong, 2),
            }
        )
    return {
        "topic": plan["topic"],
        "partition": plan["partition"],
        "broker_id": replica["broker_id"],
        "start": plan["start"] if replica["start"] is None else replica["start"],
        "through": through,
        "source_end": end,
        "replica_end": end,
        "batches": replica["batches"] + through - base,
        "records": replica["records"] + through - base,
        "bytes": replica["bytes"] + 100 * (through - base),
        "digest": f"{through:032x}",
        "source_digest": f"{through:032x}",
        "seconds": 0.01,
        "findings": findings,
        "findings_count": len(findings),
        "lawful": {"compacted": 1} if plan["compacted"] else {},
    }


def run(command: Json) -> None:
    now, name, plans = world(), command["id"], command["partitions"]
    if now.get("die"):
        os._exit(3)
    if now.get("garbage"):
        sys.stdout.write("java.lang.Exception: what?\n")
        sys.stdout.flush()
    while now.get("deaf"):
        time.sleep(0.05)
    while now.get("stuck"):
        tell(
            type="progress",
            id=name,
            tasks_done=0,
            tasks=8,
            bytes=0,
            batches=0,
            partitions_done=0,
            partitions=2,
        )
        time.sleep(0.05)
    results: list[Json] = []
    for number, plan in enumerate(plans):
        until = time.monotonic() + now.get("hold", 0)
        while time.monotonic() < until and name not in cancelled:
            time.sleep(0.01)
        if name in cancelled:
            tell(type="failed", id=name, reason="it was cancelled", cancelled=True)
            return
        found = [check(plan, replica, now) for replica in plan["replicas"]]
        results += found
        tell(type="checked", id=name, results=found)
        done = {"tasks_done": number + 1, "tasks": len(plans), "bytes": 0, "batches": 0}
        tell(type="progress", id=name, **done, partitions_done=number + 1, partitions=len(plans))
    if now.get("fail"):
        tell(type="failed", id=name, **now["fail"])
        return
    tell(
        type="finished",
        id=name,
        partitions=len(plans),
        replicas=len(results),
        batches=sum(result["batches"] for result in results),
        records=sum(result["records"] for result in results),
        bytes=sum(result["bytes"] for result in results),
        mismatches=sum(bool(result["findings"]) for result in results),
        seconds=0.1,
    )


def main() -> None:
    threading.Thread(target=listen, daemon=True).start()
    while (command := commands.get()) is not None:
        match command["type"]:
            case "configure":
                if world().get("start"):
                    tell(type="failed", id=None, **world()["start"])
                    continue
                sys.stderr.write("the log of Spark\n")
                sys.stderr.flush()
                tell(type="ready", spark="0-fake", master=command["master"])
            case "run":
                run(command)
            case "write_evidence":
                if world().get("unwritable"):
                    tell(type="failed", id=command["id"], reason="the disk is full")
                    continue
                page = Path(command["directory"]) / "evidence.html"
                page.write_text("<html>")
                data = page.with_suffix(".json")
                data.write_text(json.dumps(command["evidence"]))
                tell(
                    type="evidence_written",
                    id=command["id"],
                    html=str(page),
                    json_path=str(data),
                    parquet=str(page.parent),
                )
            case "stop":
                return


main()
if "linger" not in sys.argv:
    os._exit(0)  # the thread that listens would be in the way
