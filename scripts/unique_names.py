"""A public class name means one thing in the whole product: `make lint` fails on a name that two modules define.

    python scripts/unique_names.py [folder]

`EXCEPTIONS` lists the names that are defined more than once today, and how often. It may only shrink: a name that is not
listed, one that occurs more often than it says, and an entry that is too high or of no use any more are all errors.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

PACKAGES = ("wire", "controller", "fleet", "fetcher", "router", "groups", "validator", "admin", "linker")

EXCEPTIONS: dict[str, int] = {
    "Action": 2,
    "AlreadyExists": 2,
    "Answer": 5,
    "Broker": 2,
    "Brokers": 2,
    "Cancel": 2,
    "Channel": 2,
    "Check": 2,
    "Copies": 2,
    "Copy": 2,
    "DescribedMember": 2,
    "Difference": 2,
    "Endpoint": 2,
    "Finding": 2,
    "FollowerProgress": 2,
    "GroupDescription": 2,
    "HeldReader": 2,
    "Lane": 2,
    "Lines": 2,
    "LinkValidation": 2,
    "Listener": 2,
    "Live": 2,
    "MirrorDirectory": 2,
    "MirrorPartition": 2,
    "MirrorState": 2,
    "Model": 2,
    "Node": 2,
    "Noted": 2,
    "OutcomeUnknown": 2,
    "Plan": 2,
    "Progress": 2,
    "PromoteJob": 2,
    "PromoteValidation": 2,
    "Reading": 3,
    "Refusal": 2,
    "Refused": 3,
    "ReplicaStarts": 2,
    "Session": 2,
    "Sidecar": 2,
    "TopicConfigs": 2,
    "TopicMetadata": 2,
    "Turns": 2,
    "Validation": 2,
    "Verdict": 5,
}


def definitions(root: Path) -> dict[str, list[str]]:
    """Public classes at the top of modules, each with the places where it is defined."""
    found: dict[str, list[str]] = defaultdict(list)
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            for node in ast.parse(path.read_text(), str(path)).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found[node.name].append(f"{path.relative_to(root)}:{node.lineno}")
    return found


def complaints(found: Mapping[str, list[str]], exceptions: Mapping[str, int]) -> list[str]:
    told = []
    for name in sorted({*found, *exceptions}):
        places, allowed = found.get(name, []), exceptions.get(name, 1)
        if len(places) > allowed:
            told.append(f"class {name} is defined {len(places)} times: {', '.join(places)}")
        elif name in exceptions and len(places) < allowed:
            told.append(
                f"EXCEPTIONS allows {allowed} classes {name}, there are {len(places)}: lower it or take it out"
            )
        elif name in exceptions and allowed < 2:
            told.append(f"EXCEPTIONS names {name}, which needs no exception")
    return told


def main(root: Path, exceptions: Mapping[str, int] = EXCEPTIONS) -> int:
    found = definitions(root)
    told = complaints(found, exceptions)
    for line in told:
        print(line)
    print(f"{len(found)} class names, {len(exceptions)} of them exceptions, {len(told)} complaints")
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent)))
