"""The validator's part in a promote (linker.promote.ports.Validation).

It proves the promote's partitions almost to their end before the fence, and does not run behind the fence.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from controller.decide import validations
from controller.proof import PartitionValidation
from linker.promote.ports import Tps, Unproved
from linker.validation.errors import ValidatorError
from linker.validation.runner import LinkValidator
from linker.validation.turns import Urgency
from wire.backoff import Backoff
from wire.errors import LinkerError
from wire.frames.types import TopicPartition

log = logging.getLogger(__name__)

_END_TIMEOUT = 5.0
_PAUSE = 0.2  # between two runs: a busy source always has something new
_RETRY_FIRST, _RETRY_MAX = 1.0, 15.0


class PromoteProof:
    """Of one link."""

    def __init__(
        self,
        validation: LinkValidator,
        replicas: Callable[[TopicPartition], Collection[int]],
        distance: int,
    ) -> None:
        self._validation = validation
        self._replicas = replicas
        self._distance = distance
        self._trouble: ValidatorError | None = None

    def run(self, tps: Tps) -> AbstractAsyncContextManager[None]:
        return self._run(sorted(tps))

    @asynccontextmanager
    async def _run(self, tps: Sequence[TopicPartition]) -> AsyncIterator[None]:
        turns, link = self._validation.validator.turns, self._validation.link
        turns.speak_up(link)
        work = asyncio.create_task(self._work(tps), name=f"{link}: validation for a promote")
        try:
            yield
        finally:
            turns.hush(link)  # until the promote is over
            work.cancel()
            await asyncio.wait([work], timeout=_END_TIMEOUT)

    async def _work(self, tps: Sequence[TopicPartition]) -> None:
        backoff = Backoff(_RETRY_FIRST, _RETRY_MAX)
        topics = list(dict.fromkeys(tp.topic for tp in tps))
        while True:
            if not self.unproved(tps):
                await self._validation.moved(1.0)
                continue
            status = self._validation.begin(Urgency.PROMOTE, topics)
            try:
                await self._validation.check(status, Urgency.PROMOTE, lambda: tps, only_behind=True)
                self._trouble = None
                backoff.reset()
                await asyncio.sleep(_PAUSE)
            except LinkerError as error:
                log.warning(
                    "link %s: the validation of a promote failed: %s; tried again",
                    self._validation.link,
                    error,
                )
                self._trouble = error if isinstance(error, ValidatorError) else ValidatorError(str(error))
                await asyncio.sleep(backoff.next())
            except Exception:
                log.exception("link %s: the validation of a promote hit a bug", self._validation.link)
                self._trouble = ValidatorError("internal error; see the sidecar's log", hopeless=True)
                return

    def unproved(self, tps: Tps) -> Mapping[TopicPartition, Unproved]:
        image, link = self._validation.controller.image, self._validation.link
        found: dict[TopicPartition, Unproved] = {}
        for tp in tps:
            copy, state = self._validation.copy(tp), image.partitions.get((link, tp))
            if copy is None or state is None or not copy.loaded:
                found[tp] = Unproved("the source's end is not known at the moment")
                continue
            reason = validations.unproved(
                image,
                link,
                tp,
                self._replicas(tp),
                max(state.start_offset or 0, copy.log_start_offset),
                copy.high_watermark,
                self._distance,
            )
            if reason is None:
                brokers = (
                    self._validation.lost_copies.others([tp]).get(tp, set()).intersection(self._replicas(tp))
                )
                if brokers:
                    reason = f"broker {min(brokers)} has lost what was validated of its replica"
            if reason is not None:
                found[tp] = self._with_trouble(image.validations.get((link, tp)), reason)
        return found

    def _with_trouble(self, known: PartitionValidation | None, reason: str) -> Unproved:
        if known is not None and known.mismatch is not None:
            return Unproved(reason, failing=True, hopeless=True)
        if self._trouble is None:
            return Unproved(reason)
        return Unproved(
            f"{reason}; the validator: {self._trouble}", failing=True, hopeless=self._trouble.hopeless
        )

    async def wait(self, *, timeout: float) -> None:
        await self._validation.moved(timeout)
