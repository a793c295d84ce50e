"""Calls in tests that the code would refuse, and names that its modules lack: `python scripts/check_test_calls.py`.

Tests have no strict types, and some run on request only, or take another way on a fresh machine: a parameter or a name
that is gone would be noticed there weeks later.
"""

from __future__ import annotations

import re
import sys

from mypy import api

FLAGS = ("--no-strict-optional", "--ignore-missing-imports", "--no-warn-unreachable", "-p", "tests")
REFUSED = re.compile(r"\[call-arg\]$|: error: Module (\".*\" )?has no attribute .*\[attr-defined\]$")


def main() -> int:
    """The exit code."""
    out, trouble, code = api.run([*FLAGS])
    refused = [line for line in out.splitlines() if REFUSED.search(line)]
    for line in refused:
        print(line)
    if trouble or code > 1:
        print(trouble or out)
        return 1
    print(f"calls and names in tests: {len(refused)} that the code refuses")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
