"""What a verdict on a history and the logs has to be, for tests on real clusters."""

from __future__ import annotations

from lab.workload.checker import Verdict


def assert_sound(verdict: Verdict) -> None:
    """Nothing is off. Data first: an error that a client was told may be a machine's that was late (`tests.again`)."""
    violations = verdict.violations
    told = violations.pop("client_errors", ())
    assert not violations, violations
    assert not told, told
