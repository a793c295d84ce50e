"""Sends the AlterPartition until the metadata log shows it, or proves that it never will.

Invariants, from VALIDATED on:
- Before a request leaves, its epochs are in the store (`attempt`), so a restart knows which requests may still land.
- `unknown` holds, per partition, the newest attempt that no definite answer refused. While there is one, only the
  metadata log decides (controller.judge.hand_over.settle), and the fence stays.
- A request is sent only for partitions that were verified for the very incarnations of the replicas' brokers, and
  under the very leader epoch, that it names. This holds where a batch can only go forward (`forward_only`), too.
Sending again is always safe: the same epochs cannot be accepted twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping

from controller.alter_partition import AlterPartitionItem
from controller.decide.take_overs import refuse_unless_taken
from controller.errors import PromoteAbandoned
from controller.judge.hand_over import (
    HandOverAnswer,
    HandOverPlan,
    Settlement,
    judge_answer,
    refusal_text,
    settle,
)
from controller.phases import LED_ELSEWHERE
from controller.state import Attempt
from linker.promote.checks import Checks, Verified
from linker.promote.context import PromoteBatch, full_reason
from linker.promote.forward_only import compare_anew
from wire.backoff import Backoff
from wire.errors import BrokerError, ConnectionLost, LinkerError
from wire.frames.types import TopicPartition

logger = logging.getLogger(__name__)
_SLICE = 0.25
_BOUND = "a part of its topic was handed over, so there is only forward"
_TOGETHER = "its topic goes back as a whole, and the outcome of another partition is unknown"
_FORWARD = "a real broker is in its ISR, so there is only forward"


class HandOverRun:
    """One batch whose partitions are all VALIDATED."""

    def __init__(
        self,
        context: PromoteBatch,
        checks: Checks,
        verified: Verified | None,
        unknown: Mapping[TopicPartition, Attempt],
    ) -> None:
        self._context = context
        self._checks = checks
        self._port = context.ports.hand_over
        self._verified = verified  # None after a restart: everything has to be looked at again
        self._unknown = dict(unknown)
        self._refusals: dict[TopicPartition, str] = {}
        self._backoff = Backoff(context.settings.backoff, context.settings.max_backoff)

    async def run(self, tps: Collection[TopicPartition]) -> None:
        """Every partition ends HANDED_OVER, or in ACTIVE with proof that it was not handed over."""
        open_ = sorted(tps)
        give_up: str | None = None
        while open_:
            over = [tp for tp in open_ if self._settle(tp) is Settlement.HANDED_OVER]
            if over:
                await self._context.release(over)
                open_ = [tp for tp in open_ if tp not in over]
                continue
            if give_up is not None:
                open_ = await self._retreat(open_, give_up)
                continue
            try:
                await self._go_forward(open_)
            except (LinkerError, TimeoutError) as error:
                give_up = full_reason(error)
                logger.warning(
                    "promote %d of link %s: %s; settling what was sent",
                    self._context.job_id,
                    self._context.link,
                    give_up,
                )

    def _settle(self, tp: TopicPartition) -> Settlement:
        return settle(
            self._port.image(),
            tp,
            self._context.topic_id(tp),
            self._port.link_brokers(),
            self._unknown.get(tp),
        )

    async def _go_forward(self, open_: list[TopicPartition]) -> None:
        """One attempt. PromoteAbandoned: no further attempt makes sense, or the fence's time is over."""
        context = self._context
        context.waiting = {tp: why for tp, why in self._refusals.items() if tp in open_}
        plan = context.plan(open_)
        hopeless = {tp: found.reason for tp, found in plan.obstacles.items() if not found.may_pass}
        if hopeless:
            raise PromoteAbandoned("the hand-over is not possible", hopeless)
        if plan.obstacles:
            context.waiting |= {tp: found.reason for tp, found in plan.obstacles.items()}
            context.tell()
            await context.open(plan, min(context.fence_left(), context.settings.call_timeout))
            await self._wait(
                lambda: not context.plan(open_).obstacles or self._any_over(open_),
                min(context.fence_left(), _SLICE),
            )
            return
        if self._verified is None or not self._verified.holds_for(plan):
            self._verified = await self._checks.verify(open_)
            return
        context.fence_left()
        await self._send(plan)

    async def _send(self, plan: HandOverPlan, ends: Mapping[TopicPartition, int] | None = None) -> None:
        """`ends` where they are others than those that are durable."""
        context, settings = self._context, self._context.settings
        items = [plan.items[tp] for tp in sorted(plan.items)]
        await self._note(items, ends or {})
        before = dict(self._unknown)
        self._unknown |= {item.tp: item.attempt for item in items}
        sent = [item.tp for item in items]
        with context.timed("hand_over"):
            try:
                codes = await context.within(
                    self._port.alter_partition(items, timeout=settings.call_timeout),
                    settings.call_timeout,
                    "AlterPartition",
                )
            except BrokerError as error:
                codes = dict.fromkeys(sent, error.code)
            except ConnectionLost as error:
                codes = {}
                if not error.sent:
                    self._unknown = before
                self._refusals |= dict.fromkeys(sent, str(error))
            except LinkerError as error:
                codes = {}
                self._refusals |= dict.fromkeys(sent, full_reason(error))
            answers = self._take(codes, before)
            accepted = [tp for tp in sent if answers.get(tp) is HandOverAnswer.ACCEPTED]
            if accepted:
                self._backoff.reset()
                await self._wait(lambda: self._none_open(accepted), settings.settle_timeout)
            if len(accepted) < len(sent):
                # Epochs or brokers newer than ours are on their way through the log; else try again a
                # little later.
                rest = [tp for tp in sent if tp not in accepted]
                await self._wait(lambda: self._changed(plan, rest), self._backoff.next())
        fatal = {tp: self._refusals[tp] for tp in sent if answers.get(tp) is HandOverAnswer.FATAL}
        if fatal:
            raise PromoteAbandoned("the target refused the hand-over", fatal)

    def _take(
        self, codes: Mapping[TopicPartition, int], before: Mapping[TopicPartition, Attempt]
    ) -> dict[TopicPartition, HandOverAnswer]:
        """After a definite refusal this attempt, and only this one, cannot land any more."""
        answers: dict[TopicPartition, HandOverAnswer] = {}
        for tp, code in codes.items():
            answers[tp] = judge_answer(code)
            if answers[tp] is not HandOverAnswer.ACCEPTED:
                self._refusals[tp] = refusal_text(code)
            if answers[tp] in (HandOverAnswer.REREAD, HandOverAnswer.FATAL):
                if tp in before:
                    self._unknown[tp] = before[tp]
                else:
                    self._unknown.pop(tp, None)
        return answers

    async def _note(self, items: Collection[AlterPartitionItem], ends: Mapping[TopicPartition, int]) -> None:
        """Write the attempts down before they are made. An older one that is still unknown is covered
        by a newer.

        An attempt may be noted already: by a link controller before us, which has begun to give the source back since.
        """
        context = self._context
        await context.controller.refresh()
        refuse_unless_taken(context.controller.image, context.link, [item.tp for item in items])
        states = context.controller.image.partitions
        fresh = {
            item.tp: item.attempt
            for item in items
            if (state := states[context.link, item.tp]).attempt != item.attempt
            or ends.get(item.tp, state.aligned_end) != state.aligned_end
        }
        if fresh:
            await context.controller.note_attempts(context.link, fresh, ends)

    async def _retreat(self, open_: list[TopicPartition], reason: str) -> list[TopicPartition]:
        """Return partitions to ACTIVE where that is proven to be safe, and make it provable for the others. Returns the
        partitions that are left."""
        context = self._context
        settled = {tp: self._settle(tp) for tp in open_}
        bound = [tp for tp in open_ if settled[tp] is not Settlement.HANDED_OVER and self._is_bound(tp)]
        safe = [tp for tp in open_ if settled[tp] is Settlement.IMPOSSIBLE and tp not in bound]
        # In a switch the source gets a topic back as a whole, so nothing goes back while a part of it may be handed over.
        undecided = {tp.topic for tp in open_ if settled[tp] is not Settlement.IMPOSSIBLE}
        together = [tp for tp in safe if context.switch and tp.topic in undecided]
        safe = [tp for tp in safe if tp not in together]
        if safe:
            await context.go_back(dict.fromkeys(safe, reason))
        left = [tp for tp in open_ if tp in bound or settled[tp] in (Settlement.OPEN, Settlement.PARTIAL)]
        if not left:
            return [tp for tp in open_ if tp not in safe]
        forward = [tp for tp in left if tp in bound or settled[tp] is Settlement.PARTIAL]
        unproven = [tp for tp in left if tp not in forward]
        context.waiting = dict.fromkeys(unproven, f"the outcome of the hand-over is unknown ({reason})")
        context.waiting |= {tp: f"{_BOUND if tp in bound else _FORWARD} ({reason})" for tp in forward}
        context.waiting |= dict.fromkeys(together, f"{_TOGETHER} ({reason})")
        context.tell()
        for tps, step in ((unproven, self._revoke), (forward, self._push)):
            try:
                if tps:
                    await step(tps)
            except (LinkerError, TimeoutError) as error:
                # Nothing is lost by waiting but time: the fence stays, and this is tried until it is settled.
                logger.warning(
                    "promote %d of link %s: settling: %s", context.job_id, context.link, full_reason(error)
                )
                context.tell(full_reason(error))
        if not self._none_open(left) or not all(self._settle(tp) is Settlement.HANDED_OVER for tp in bound):
            await asyncio.sleep(self._backoff.next())
        return [tp for tp in open_ if tp not in safe]

    def _is_bound(self, tp: TopicPartition) -> bool:
        """In a switch the source gives a topic back as a whole, so all of it follows a partition that was handed over."""
        states = self._context.controller.image.topic_partitions(self._context.link, tp.topic)
        return self._context.switch and any(state.phase in LED_ELSEWHERE for state in states)

    async def _revoke(self, tps: Collection[TopicPartition]) -> None:
        """OPEN: make every AlterPartition under way stale."""
        context, settings = self._context, self._context.settings
        timeout = settings.call_timeout
        await context.within(self._port.revoke(tps, timeout=timeout), timeout, "making sent hand-overs stale")
        await self._wait(lambda: self._none_open(tps), settings.settle_timeout)

    async def _push(self, tps: Collection[TopicPartition]) -> None:
        """PARTIAL: real brokers are in the ISR, only forward is left. The same rule decides what may be sent:
        partitions that were compared, as they are now. The others stay behind their fence, and are looked at again."""
        context = self._context
        plan = context.plan(tps)
        known = self._verified
        anew = [tp for tp in plan.items if known is None or not known.holds_at(plan, tp)]
        compared: Verified | None = None
        waiting = {tp: found.reason for tp, found in plan.obstacles.items()}
        if anew:
            states = context.controller.image.partitions
            least = {tp: end for tp in anew if (end := states[context.link, tp].aligned_end) is not None}
            comparison = await compare_anew(
                context, self._checks, plan, least, timeout=context.settings.call_timeout
            )
            compared = comparison.verified
            waiting |= comparison.waiting
        context.waiting |= {tp: f"{_FORWARD}: {why}" for tp, why in waiting.items()}
        context.tell()
        now = context.plan(tps)  # it was waited: brokers may have come and gone
        ready = [
            tp
            for tp in now.items
            if (self._settle(tp) is Settlement.PARTIAL or self._is_bound(tp))
            and any(one is not None and one.holds_at(now, tp) for one in (known, compared))
        ]
        if ready:
            await self._send(now.only(ready), {} if compared is None else compared.ends)

    def _any_over(self, tps: Collection[TopicPartition]) -> bool:
        return any(self._settle(tp) is Settlement.HANDED_OVER for tp in tps)

    def _none_open(self, tps: Collection[TopicPartition]) -> bool:
        return all(self._settle(tp) in (Settlement.HANDED_OVER, Settlement.IMPOSSIBLE) for tp in tps)

    def _changed(self, plan: HandOverPlan, tps: Collection[TopicPartition]) -> bool:
        """Would the next attempt differ, or is there no need for one?"""
        now = self._context.plan(tps)
        return self._any_over(tps) or any(now.items.get(tp) != plan.items.get(tp) for tp in tps)

    async def _wait(self, predicate: Callable[[], bool], timeout: float) -> None:
        await self._context.within(
            self._port.wait_until(lambda _: predicate(), timeout=timeout),
            timeout,
            "waiting for the target's metadata",
        )
