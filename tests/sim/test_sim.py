"""Stories that hold, and rules that are missed when they are taken out."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.sim.__main__ import first_caught
from tests.sim.mutations import MUTATIONS
from tests.sim.story import tell

#: Seeds that noticed it, the likely ones first. Any change of the product moves them, so others are tried too.
LIKELY = {
    "lease-check-off": 3,
    "term-ignored": 4,
    "fence-unanswered": 4,
    "expiry-ignored": 15,
    "versions-off": 69,
    "epochs-off": 7,
    "proof-skipped": 15,
    "inherit-skipped": 15,
    "no-recheck": 9,
    "fences-late": 99,
    "bye-renewed": 6,
    "lease-from-answer": 9,
}
_MOST = 250


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_stories(first: int) -> None:
    for seed in range(first, first + 10):
        told = tell(seed)
        if told.broken is not None:
            pytest.fail("\n".join([*told.broken.trace[-60:], f"seed {seed}: {told.broken}"]))
        assert told.acks


def test_a_seed_is_the_same_story_in_every_process() -> None:
    """Whatever the addresses and the hashes of strings are."""
    script = "from tests.sim.story import tell; print([tell(s).trace for s in (3, 8, 17)])"
    runs = {
        subprocess.run(
            [sys.executable, "-c", script],
            env=os.environ | {"PYTHONHASHSEED": str(number)},
            capture_output=True,
            text=True,
            check=True,
            timeout=50,
        ).stdout
        for number in (1, 2)
    }
    assert len(runs) == 1


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_rule_that_is_taken_out_is_missed(name: str) -> None:
    told = first_caught(name, [LIKELY[name], *range(_MOST)])
    assert told is not None
    assert told.broken is not None
    assert told.broken.what[0] in "abcdef"
    assert tell(told.seed).broken is None
