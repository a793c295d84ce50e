"""`make test-containers`: the main story in containers; skipped in one line where no Docker engine answers.

MAKER=jars runs the same story on jars.
"""

from __future__ import annotations

import os
import sys

import pytest

from lab.clusters.kafka_containers import missing_engine


def main() -> int:
    """Run the story, or say why not; the exit code."""
    jars = os.environ.get("MAKER") == "jars"
    if not jars and (reason := missing_engine()):
        sys.stdout.write(f"tests/containers skipped: {reason}\n")
        return 0
    return pytest.main(["tests/containers", "-m", "containers", "-p", "no:randomly"])


if __name__ == "__main__":
    sys.exit(main())
