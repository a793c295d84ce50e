"""Ships this project's own packages to executors on other machines, as one zip on their Python path.

`validator` and `wire` are pure Python and go along with every session, so executors always run the code of this driver.
numpy, pandas, pyarrow, kio, crc32c and cramjam are compiled for a platform and have to be there
(docs/validation-by-batches.md).
"""

from __future__ import annotations

import sys
import zipfile
import zipimport
from pathlib import Path

import validator
import wire

NAME = "kafka-linker-validator.zip"
PACKAGES = (validator, wire)
NEEDED = ("numpy", "pandas", "pyarrow", "kio", "crc32c", "cramjam")
"""Modules that executors must have."""
_LEFT_OUT = ("__pycache__",)
_STAMP = (2020, 1, 1, 0, 0, 0)  # the same packages make the same bytes


def build_zip(directory: Path) -> Path:
    """Write the zip into a directory; its path."""
    path = directory / NAME
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in PACKAGES:
            root = Path(package.__path__[0])
            for file in sorted(root.rglob("*")):
                if not file.is_file() or any(part in _LEFT_OUT for part in file.parts):
                    continue
                name = f"{package.__name__}/{file.relative_to(root).as_posix()}"
                archive.writestr(zipfile.ZipInfo(name, _STAMP), file.read_bytes())
    return path


def where_am_i() -> dict[str, str]:
    """In an executor: files our packages were imported from, and what is missing there (`missing`, by commas)."""
    from importlib.util import find_spec

    found = {package.__name__: str(Path(str(package.__file__)).absolute()) for package in PACKAGES}
    found["missing"] = ",".join(name for name in NEEDED if find_spec(name) is None)
    return found


def forget_zip_directories() -> None:
    """In an executor, at the end of a task: else the next one begins by reading the directory of every zip on the path
    anew, Spark's own ones included, a tenth of a second of each task.

    Spark calls importlib.invalidate_caches() before each task, for files that were added meanwhile; a zipimporter answers
    by reading its archive (until Python 3.12). One that is not in the cache is made again when something is imported.
    """
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimport.zipimporter):
            del sys.path_importer_cache[path]
