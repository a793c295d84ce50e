"""`make test-containers`: the main story in containers; skipped in one line where no Docker engine answers.

MAKER=jars runs the same story on jars.
"""

from __future__ import annotations

import os
import subprocess
import sys

from lab.clusters.kafka_containers import missing_engine


def main() -> int:
    """Run the story, or say why not; the exit code."""
    jars = os.environ.get("MAKER") == "jars"
    if not jars and (reason := missing_engine()):
        sys.stdout.write(f"tests/containers skipped: {reason}\n")
        return 0
    # In a process of its own: pytest rewrites modules only when it is the first to import them.
    story = ["tests/containers/test_story.py", "-m", "containers", "-p", "no:randomly"]
    return subprocess.call([sys.executable, "-m", "pytest", *story])


if __name__ == "__main__":
    sys.exit(main())
