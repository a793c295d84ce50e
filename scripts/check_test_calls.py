"""Calls in tests that the code would refuse: `python scripts/check_test_calls.py`.

Tests have no strict types, and some run on request only: a parameter that is gone would be noticed there weeks later.
"""

from __future__ import annotations

import sys

from mypy import api

FLAGS = ("--no-strict-optional", "--ignore-missing-imports", "--no-warn-unreachable", "-p", "tests")


def main() -> int:
    """The exit code."""
    out, trouble, code = api.run([*FLAGS])
    refused = [line for line in out.splitlines() if line.endswith("[call-arg]")]
    for line in refused:
        print(line)
    if trouble or code > 1:
        print(trouble or out)
        return 1
    print(f"calls in tests: {len(refused)} that the code refuses")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
