"""Import circles between modules, found in the source text: `make lint` fails on every one.

    python scripts/import_circles.py [folder]

Python itself only notices a circle that is closed while modules load. Imports under `TYPE_CHECKING` and imports inside
functions count here too, because a circle of types is a circle for everybody who reads the code, and because modules that
know each other cannot be moved one at a time.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

PACKAGES = (
    *("wire", "controller", "fleet", "fetcher", "router", "groups", "validator", "admin", "linker"),
    *("lab", "scripts"),
)


class Import(NamedTuple):
    """One import statement: `importer` names `imported` in this line."""

    importer: str
    imported: str
    line: int


def modules(root: Path) -> dict[str, Path]:
    """Every module below the packages, by its dotted name; a package stands for its `__init__.py`."""
    found: dict[str, Path] = {}
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(name: str, path: Path, known: dict[str, Path]) -> list[Import]:
    """The imports of other modules that are known, wherever in the file they stand."""
    found: list[Import] = []
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            named = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = _base(name, path, node)
            # `from package import module` imports the module; any other name comes from the package itself.
            whole = [f"{base}.{alias.name}" for alias in node.names]
            named = [one if one in known else base for one in whole]
        else:
            continue
        found += [
            Import(name, one, node.lineno) for one in dict.fromkeys(named) if one in known and one != name
        ]
    return found


def _base(name: str, path: Path, node: ast.ImportFrom) -> str:
    """The dotted name of the module after `from`, relative ones resolved."""
    if not node.level:
        return node.module or ""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    package = package[: len(package) - node.level + 1]
    return ".".join([*package, *([node.module] if node.module else [])])


def circles(imports: list[Import]) -> list[list[str]]:
    """The sets of modules that reach each other, largest first: strongly connected components, after Tarjan."""
    reaches: dict[str, list[str]] = defaultdict(list)
    for one in imports:
        reaches[one.importer].append(one.imported)
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in reaches.get(name, ()):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            start = stack.index(name)
            if len(stack) - start > 1:
                found.append(sorted(stack[start:]))
            del stack[start:]

    for name in list(reaches):
        if name not in index:
            visit(name)
    return sorted(found, key=lambda circle: (-len(circle), circle))


def main(root: Path) -> int:
    known = modules(root)
    imports = [one for name, path in known.items() for one in imports_of(name, path, known)]
    found = circles(imports)
    for circle in found:
        print(f"a circle of {len(circle)} modules:")
        for one in imports:
            if one.importer in circle and one.imported in circle:
                print(
                    f"  {known[one.importer].relative_to(root)}:{one.line}: {one.importer} imports {one.imported}"
                )
    print(f"{len(known)} modules, {len(imports)} imports, {len(found)} circles")
    return 1 if found else 0


if __name__ == "__main__":
    sys.setrecursionlimit(10_000)
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent)))
