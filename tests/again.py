"""A second look at tests on real brokers that failed beside others: each once more, alone.

Eight JVMs on two cores are late now and then, and a test that waits for one of them fails for it. Tests on fakes get no
second look: one that cannot stand a busy machine is mended. A test that fails twice is broken. One that fails once and
passes alone is listed with its first failure, in ``build/unstable.txt`` too: somebody has to make it stand the noise.
There is no second look at

- what a test says of data: lost, duplicated, not identical. Once is enough. That a client was told an error, or nothing yet,
  says nothing of data;
- more than a few failures: then it is not the noise.

    python -m tests.again build/real.xml
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

FEW = 4
REPORT = Path("build/unstable.txt")
TIMEOUT = 900.0
#: In the line that failed, unless that line expects an error with some text.
_OF_DATA = re.compile(
    r"^>(?!\s*(?:async )?with pytest\.raises\()"
    r".*((?<!sound\()verdict(?!\.(?:unknown|failed)\b)|violation|identical|compared|lost|duplicate|reorder|missed"
    r"|repeated|misread|skipped|acknowledged)",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Failure:
    """Of one test; `text` is all that pytest said."""

    test: str
    text: str

    @property
    def of_data(self) -> bool:
        return _OF_DATA.search(self.text) is not None


def failures(report: Path) -> list[Failure]:
    """Of a junit file with `junit_family=xunit1`, whose cases name their files. ValueError if it is none."""
    try:
        cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    except (OSError, ElementTree.ParseError) as error:
        raise ValueError(f"{report} is not the report of a test run: {error}") from error
    found: dict[str, str] = {}
    for case in cases:
        for outcome in (*case.findall("failure"), *case.findall("error")):
            file = case.get("file")
            if file is None:
                raise ValueError(f"{report}: {case.get('name')} names no file")
            test = f"{file}::{case.get('name')}"
            found[test] = found.get(test, "") + (outcome.text or outcome.get("message") or "")
    return [Failure(test, text) for test, text in found.items()]


def refused(found: list[Failure]) -> str | None:
    """Why there is no second look."""
    if not found:
        return "the run failed, and no test of it did"
    if len(found) > FEW:
        return f"{len(found)} tests failed"
    data = [one.test for one in found if one.of_data]
    return f"{', '.join(data)}: what it says of data is no noise" if data else None


def main(argv: list[str]) -> int:
    [report] = argv
    found = failures(Path(report))
    reason = refused(found)
    if reason is not None:
        print(f"no second look: {reason}", file=sys.stderr)
        return 1
    tests = [one.test for one in found]
    print(f"a second look, alone, at {', '.join(tests)}", flush=True)
    command = [sys.executable, "-m", "pytest", "-p", "no:randomly", *tests]
    try:
        code = subprocess.run(command, timeout=TIMEOUT * len(tests), check=False).returncode
    except subprocess.TimeoutExpired:
        code = 1
    if code == 0:
        REPORT.parent.mkdir(parents=True, exist_ok=True)
        with REPORT.open("a") as report:
            report.writelines(f"{one.test}\n{one.text}\n\n" for one in found)
        print(f"UNSTABLE, failed beside others and passed alone: {', '.join(tests)}; see {REPORT}")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
