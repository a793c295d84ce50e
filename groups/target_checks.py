"""Steps that depend on the members on the target: another gate, a retry, a promote by policy."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence

from controller.decide import groups as group_decisions
from controller.decide.unheld_groups import refusal
from controller.group_phases import GroupPhase
from controller.groups import GateKind
from controller.mirror_group import GroupPolicy
from groups.application_state import why_not_held
from groups.gate_keeper import GateKeeper
from groups.gates.base import GroupMember
from groups.tools import Tools
from groups.views import GroupView
from wire.errors import LinkerError
from wire.shown_id import shown_id

log = logging.getLogger(__name__)

READ_TIMEOUT = 10.0


class TargetChecks:
    """Looks at groups on the target, and takes the steps that follow."""

    def __init__(self, tools: Tools, runs: Mapping[str, GateKeeper]) -> None:
        self._tools = tools
        self._runs = runs

    async def hold_otherwise(self, run: GateKeeper, kind: GateKind) -> None:
        """Replace a gate of the wrong kind: members have shown an assignor that it does not go with. One of a streams group
        is let go because the group's topology is another one now, or has topics without a mirror."""
        if run.gate is None or run.leaving:
            return

        async def planned() -> None:
            if kind is GateKind.STREAMS:
                await self._without_topology(run, view)
            await self._tools.book.step(run.name, GroupPhase.DISCOVERED, gate=kind, gate_state=None)

        run.leaving, view = True, None
        try:
            views, failed = await self._tools.target.describe([run.name], timeout=READ_TIMEOUT)
            view = views.get(run.name)
            # Clients would be let in between the two gates, while the group is still read at the source.
            if view is None:
                self._keeps_its_gate(
                    run, kind, f"its clients on the target are not known: {failed.get(run.name)}"
                )
                return
            if _waiting(run, view.members):
                why = (
                    "clients wait for it on the target already: stop those for a moment, or promote the group"
                )
                self._keeps_its_gate(run, kind, why)
                return
            run.gate_trouble = None
            log.info(
                "link %s: group %s needs another gate: %s", self._tools.book.link, shown_id(run.name), kind
            )
            await run.release(
                planned,
                still=lambda now: (
                    now.phase is GroupPhase.GATED and (now.gate is not kind or kind is GateKind.STREAMS)
                ),
            )
        except LinkerError as error:
            log.warning(
                "link %s: group %s keeps its gate for now: %s",
                self._tools.book.link,
                shown_id(run.name),
                error,
            )
        finally:
            run.leaving = False

    def _keeps_its_gate(self, run: GateKeeper, kind: GateKind, why: str) -> None:
        should = (
            "be let go for a moment, because its topology or its mirrors have changed,"
            if kind is GateKind.STREAMS
            else f"be held by {kind}"
        )
        text = f"it should {should} and keeps its gate, because {why}"
        if run.gate_trouble != text:
            log.warning("link %s: group %s: %s", self._tools.book.link, shown_id(run.name), text)
        run.gate_trouble = text

    async def _without_topology(self, run: GateKeeper, before: GroupView | None) -> None:
        """A streams group keeps its topology until it is deleted, and members that bring another one are refused. Its
        offsets are brought over anew."""
        now = None if run.source_view is None else run.source_view.topology
        if before is not None and before.topology and now and before.topology != now:
            await self._tools.target.delete(run.name, timeout=READ_TIMEOUT)
            run.target = None

    async def retry(self) -> None:
        """Retry refused and failed groups whose reason may be over: they have no members on the target any more."""
        now = time.monotonic()
        book = self._tools.book
        due = [
            run
            for group in book.all()
            if group.phase in (GroupPhase.REFUSED, GroupPhase.FAILED)
            and (run := self._runs.get(group.group)) is not None
            and run.retry_at <= now
        ]
        if not due:
            return
        views, _ = await self._tools.target.describe([run.name for run in due], timeout=READ_TIMEOUT)
        for run in due:
            run.retry_at = now + run.retries.next()
            group, view = book.get(run.name), views.get(run.name)
            if group is None or view is None:
                continue
            if not view.empty or refusal(book.image, group) is not None:
                continue
            if (why := await why_not_held(self._tools, run, group)) is not None:
                await book.amend(run.name, reason=why)
                continue
            run.target = None
            await book.step(run.name, GroupPhase.DISCOVERED, reason=None)

    async def promote_by_policy(self) -> None:
        """Promote groups that had no members at the source at two looks in a row, and have clients waiting on the
        target."""
        book = self._tools.book
        ready = [
            run
            for group in book.all()
            if group.policy is GroupPolicy.AUTO
            and group.phase is GroupPhase.GATED
            and not group.unmirrored
            and (run := self._runs.get(group.group)) is not None
            and run.gate is not None
            and run.empty_looks >= 2
        ]
        if not ready:
            return
        views, _ = await self._tools.target.describe([run.name for run in ready], timeout=READ_TIMEOUT)
        for run in ready:
            view = views.get(run.name)
            if view is None or not _waiting(run, view.members):
                continue
            now, name = book.now(), run.name
            await book.commit(
                lambda image, name=name, now=now: group_decisions.begin_promote(  # type: ignore[misc]
                    image,
                    book.link,
                    [name],
                    force=False,
                    partial=False,
                    timeout_ms=None,
                    now=now,
                    automatic=True,
                )[0]
            )
            log.info(
                "link %s: group %s has left the source and is promoted by policy",
                self._tools.book.link,
                shown_id(name),
            )


def _waiting(run: GateKeeper, members: Sequence[GroupMember]) -> bool:
    """Whether the group has a member on the target beside our gate."""
    gate = None if run.gate is None else run.gate.record
    ours = {
        part.member_id for part in (() if gate is None else (gate.consumer, gate.classic)) if part is not None
    }
    return any(member.member_id not in ours for member in members)
