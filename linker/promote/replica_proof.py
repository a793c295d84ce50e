"""The proof that a promote asks of the replicas: validated almost to the end, and no log start above the source's."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractAsyncContextManager, nullcontext

from controller.errors import PromoteAbandoned
from controller.judge.late_starts import lost, refusal, refusal_text, worst
from controller.proof import ValidationPolicy
from linker.promote.context import PromoteBatch
from wire.frames.types import TopicPartition


class ReplicaProof:
    """The proof of the replicas of one batch."""

    def __init__(self, context: PromoteBatch) -> None:
        self._context = context
        self._ports = context.ports
        self._settings = context.settings

    def validator(self) -> AbstractAsyncContextManager[None]:
        """At work on the batch while it catches up."""
        validation = self._ports.validation
        if self._settings.validation is ValidationPolicy.SKIP or validation is None:
            return nullcontext()
        return validation.run(self._context.tps)

    async def proved(self, tps: Collection[TopicPartition], left: float) -> bool:
        """Whether the fence may close as far as proof goes: every replica is validated almost to its end, or the policy
        does not ask for that.

        Raises when proof is required and will never come. Where a warning is enough, it still waits as long as the
        validator gets on.
        """
        context, policy = self._context, self._settings.validation
        if policy is ValidationPolicy.SKIP:
            return True
        if self._ports.validation is None:
            raise PromoteAbandoned("the replicas are to be validated, but there is no validator")
        missing = self._ports.validation.unproved(tps)
        warn = policy is ValidationPolicy.WARN
        hopeless = {tp: one.reason for tp, one in missing.items() if one.hopeless}
        if hopeless and not warn:
            raise PromoteAbandoned("the replicas are not validated, and cannot be", hopeless)
        waited = {
            tp: one.reason for tp, one in missing.items() if not (warn and (one.failing or one.hopeless))
        }
        if not waited:
            unproved = tuple(f"{tp}: {one.reason}" for tp, one in sorted(missing.items()))
            context.warnings = (*context.warnings, *unproved)
            return True
        context.waiting = waited
        context.tell()
        await context.within(
            self._ports.validation.wait(timeout=min(left, 1.0)), min(left, 1.0), "waiting for the validator"
        )
        return False

    async def check_starts(
        self, tps: Collection[TopicPartition], timeout: float, *, every: bool = True
    ) -> None:
        """Replicas that start later than the source, whatever the validation says or is not asked: what lies before would
        be lost with the source. Raises unless so many records were accepted."""
        context, port = self._context, self._ports.replica_starts
        if port is None:
            return
        late = await context.within(
            port.late(tps, timeout=timeout, every=every), timeout, "asking the replicas where they start"
        )
        accepted, before = context.accept_missing, context.missing_before
        refused = refusal(late, accepted, before)
        if refused:
            raise PromoteAbandoned(refusal_text(late, accepted, before), refused)
        context.missing = lost(late)
        told = {f"{tp}: {worst(those)} (accepted)" for tp, those in late.items() if context.missing[tp]}
        context.warnings = (*context.warnings, *sorted(told.difference(context.warnings)))
