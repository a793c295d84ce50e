"""Requirements of the validator on its machine, checked without starting anything."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

JAVA_VERSIONS = (17, 21)  # on which Spark 4.0 is released


def _java_version(java: Path) -> int | None:
    """Out of the file that a Java has beside its programs; None if there is none. `java -version` would start a JVM, and
    this is asked while clients are served."""
    home = java.resolve().parent.parent
    try:
        text = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', text, re.MULTILINE)
    return None if found is None else int(found[1])


def missing_parts(environ: Mapping[str, str] | None = None) -> str | None:
    """Requirements of the validator that this machine does not meet; None if all is there, as far as that can be
    seen."""
    environ = os.environ if environ is None else environ
    if find_spec("pyspark") is None:
        return "PySpark is not installed where the sidecar runs: pip install 'pyspark>=4.0,<4.1' there"
    home = environ.get("JAVA_HOME")
    java = Path(home) / "bin" / "java" if home else shutil.which("java", path=environ.get("PATH"))
    if java is None:
        return "there is no java on the sidecar's PATH: the validator needs Java 17 or 21 (or set JAVA_HOME)"
    if home and not os.access(java, os.X_OK):
        return f"JAVA_HOME is {home}, but there is no bin/java in it: the validator needs Java 17 or 21"
    version = _java_version(Path(java))
    if version is not None and version not in JAVA_VERSIONS:
        return f"{java} is Java {version}: the validator needs Java 17 or 21 (set JAVA_HOME)"
    return None
