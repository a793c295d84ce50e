"""Results of many runs as one report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests.chaos.checker import RULES
from tests.chaos.result import RunResult
from tests.chaos.switch_run import SWITCH_RULES


def summary(results: Sequence[RunResult]) -> dict[str, Any]:
    """The figures, without the runs."""
    broken = Counter[str]()
    for result in results:
        broken.update(result.broken)
    strikes = [strike for result in results for strike in result.strikes]
    promotes = [promote for result in results for promote in result.promotes]
    switches = [switch for result in results for switch in result.switches]
    return {
        "runs": len(results),
        "ok": bool(results) and all(result.ok for result in results),
        "acked": sum(result.acked for result in results),
        **{rule: broken[rule] for rule in (*RULES, *SWITCH_RULES)},
        "stuck": sum(result.stuck is not None for result in results),
        "link_broker_answers": sum(result.link_broker_answers for result in results),
        "unknown": sum(result.unknown for result in results),
        "lost_by_failover": sum(result.lost_by_failover for result in results),
        "read_beyond_failover": sum(result.read_beyond for result in results),
        "committed": sum(result.committed for result in results),
        "committed_after": sum(result.committed_after for result in results),
        "aborted": sum(result.aborted for result in results),
        "unknown_ends": sum(result.unknown_ends for result in results),
        "truncated_committed": sum(result.truncated_committed for result in results),
        "txn_lost_by_failover": sum(result.txn_lost_by_failover for result in results),
        "txn_torn_by_failover": sum(result.txn_torn_by_failover for result in results),
        "client_errors": sum(result.client_errors for result in results),
        "sidecar_exits": sum(len(result.sidecar_exits) for result in results),
        "failovers": sum(promote.failover for promote in promotes),
        "failovers_done": sum(promote.failover and promote.seconds is not None for promote in promotes),
        "promotes": len(promotes),
        "promotes_done": sum(promote.seconds is not None for promote in promotes),
        "promotes_abandoned": sum(len(promote.abandoned) for promote in promotes),
        "switches": len(switches),
        "switches_done": sum(switch.seconds is not None for switch in switches),
        "switches_abandoned": sum(len(switch.abandoned) for switch in switches),
        "faults": dict(sorted(Counter(strike.kind for strike in strikes).items())),
        "faults_by_phase": dict(
            sorted(Counter(strike.met or "none under way" for strike in strikes).items())
        ),
        "faults_with_trouble": sum(strike.trouble is not None for strike in strikes),
        "stores": dict(sorted(Counter(str(result.plan["store"]) for result in results).items())),
        "kept_fleets": sum(result.kept_fleet for result in results),
        "seconds": round(sum(result.seconds for result in results), 1),
    }


def report(results: Sequence[RunResult], seed: int, seconds: float) -> dict[str, Any]:
    """Everything. `seed` is the first run's; `seconds` is how long all of it took, clusters included."""
    return {
        **summary(results),
        "seed": seed,
        "wall_seconds": round(seconds, 1),
        "per_run": [result.as_json() for result in results],
    }


def line(result: RunResult, number: int, runs: int) -> str:
    """One run on one line."""
    verdict = "ok"
    if not result.ok:
        verdict = f"BROKEN {result.broken or ''} {result.stuck or ''} {result.evidence[:2]}"
    strikes = "; ".join(f"{one.fault} ({one.victim}, met {one.met})" for one in result.strikes)
    kind = "switches" if result.switches else "promotes"
    notes = [*result.promotes, *result.switches]
    tries = sum(note.tries for note in notes)
    gaps = ", ".join(f"{one.longest_gap_ms:.0f}" for one in result.switches if one.longest_gap_ms is not None)
    paused = f", longest gaps {gaps} ms" if gaps else ""
    fleet = f"{result.plan['store']}{', kept' if result.kept_fleet else ''}"
    return (
        f"run {number}/{runs} seed {result.seed} ({fleet}): {verdict}; {result.acked} acked, "
        f"{tries} {kind} tried for {len(notes)}{paused}, {result.seconds:.0f} s; {strikes}"
    )
