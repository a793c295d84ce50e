"""A line for every mirror that is not ACTIVE: why, and what to do next. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from admin.models import Check, CheckResult, Direction, MirrorState, MirrorSummary

_MOST = 50  # one line each; more of them are counted
_WELL = frozenset({MirrorState.ACTIVE, MirrorState.PROMOTED, MirrorState.FAILED_OVER})
#: Under way, as somebody asked.
_ASKED_FOR = frozenset({MirrorState.PROMOTING, MirrorState.SWITCHING})


class Stuck(NamedTuple):
    """Why a FAILED mirror cannot be begun again, and what helps instead."""

    why: str
    instead: str


def mirror_checks(
    link: str,
    mirrors: Sequence[MirrorSummary],
    stuck: Callable[[str], Stuck | None],
    troubles: Mapping[str, str],
) -> list[Check]:
    """`stuck` of a FAILED topic; `troubles`: what keeps a mirror from being complete, by topic, whatever its state is."""
    bad = [one for one in mirrors if one.state not in _WELL or one.topic in troubles]
    checks = [_check(link, one, stuck, troubles.get(one.topic)) for one in bad[:_MOST]]
    more = [one for one in bad[_MOST:] if one.state not in _ASKED_FOR]
    if more:
        checks.append(
            Check(
                name="mirrors",
                result=CheckResult.FAIL,
                detail=f"{len(more)} more mirrors are not {MirrorState.ACTIVE}: {_counted(more)}",
                remedy=f"linker mirror list --link {link}",
            )
        )
    well = [one for one in mirrors if one.state in _WELL and one.topic not in troubles]
    if well and not bad:
        checks.append(Check(name="mirrors", result=CheckResult.OK, detail=_counted(well)))
    return checks


def _check(link: str, one: MirrorSummary, stuck: Callable[[str], Stuck | None], trouble: str | None) -> Check:
    result = CheckResult.FAIL
    reason = one.reason or trouble
    if one.state in _ASKED_FOR and trouble is None:
        result = CheckResult.OK  # `linker status` shows the promote or the switch
    detail = f"{one.state}" + (f": {reason}" if reason else "")
    remedy = _next_step(link, one)
    if one.state is MirrorState.FAILED:
        found = stuck(one.topic)
        if found is not None:
            remedy = found.instead
            if found.why not in detail:
                detail += f" ({found.why})"
    return Check(name=f"mirror {one.topic}", result=result, detail=detail, remedy=remedy)


def _next_step(link: str, one: MirrorSummary) -> str | None:
    topic = one.topic
    back = one.direction is Direction.REVERSED
    follower, owner = ("source", "target") if back else ("target", "source")
    match one.state:
        case MirrorState.FAILED if back:
            return f"it cannot go back: linker mirror finish {topic} --link {link} ends its switch (--dry-run says how)"
        case MirrorState.FAILED:
            return (
                f"linker mirror resume {topic} --link {link} --restart --dry-run says what would be dropped, in records; "
                "without --dry-run the mirror begins again at the source's present log start"
            )
        case MirrorState.PAUSED:
            return f"linker mirror resume {topic} --link {link}"
        case MirrorState.LINKING:
            return (
                f"wait, if it was made a moment ago; if it stays so a broker of the {follower} does not copy it: linker "
                f"mirror describe {topic} --link {link} shows which one (REPLICAS), and that broker's log says why"
            )
        case MirrorState.SOURCE_UNAVAILABLE:
            return f"see that the {owner}'s brokers run and can be reached from the sidecar; it goes on by itself"
        case MirrorState.PROMOTING:
            return "linker status shows its promote"
        case _:
            return f"linker mirror describe {topic} --link {link}"


def _counted(mirrors: Iterable[MirrorSummary]) -> str:
    states = Counter(one.state for one in mirrors)
    return ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
