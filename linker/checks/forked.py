"""Mirror partitions that a real broker leads without a promote: what was written to whom meanwhile, as it stands now."""

from __future__ import annotations

from collections.abc import Iterable

from admin.models import Check, CheckResult
from linker.links.forks import Fork

NAME = "forks"


def fork_checks(found: Iterable[Fork]) -> list[Check]:
    """One failure for each partition."""
    return [
        Check(
            name=NAME,
            result=CheckResult.FAIL,
            detail=fork.said,
            remedy="stop the producers at the target, save those records if they are needed, then delete the mirror and "
            "create it again",
        )
        for fork in found
    ]
