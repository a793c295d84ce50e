"""A public class name means one thing in the whole product: `make lint` fails on a name that two modules define.

python scripts/unique_names.py [folder]
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from pathlib import Path

PACKAGES = ("wire", "controller", "fleet", "fetcher", "router", "groups", "validator", "admin", "linker")


def definitions(root: Path) -> dict[str, list[str]]:
    """Public classes at the top of modules, each with the places where it is defined."""
    found: dict[str, list[str]] = defaultdict(list)
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            for node in ast.parse(path.read_text(), str(path)).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found[node.name].append(f"{path.relative_to(root)}:{node.lineno}")
    return found


def main(root: Path) -> int:
    found = definitions(root)
    twice = {name: places for name, places in sorted(found.items()) if len(places) > 1}
    for name, places in twice.items():
        print(f"class {name} is defined {len(places)} times: {', '.join(places)}")
    print(f"{len(found)} class names, {len(twice)} complaints")
    return 1 if twice else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent)))
