"""Changes that members ask the link controller to write: what a sidecar learns from the copies that it leads.

Each member's changes are written in its order. Notes about copies that follow each other are one commit: a new leader of
many partitions brings one for each of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from controller.decide.mirrors import CopyNote
from controller.errors import NotFound, NotTheLeader
from fleet import messages as m
from fleet.roster import MemberInfo
from fleet.stored_controller import StoredController
from wire.errors import LinkerError
from wire.frames.types import TopicPartition

log = logging.getLogger(__name__)

_AT_ONCE = 500  # notes about copies that are written in one commit


class AskedChanges:
    def __init__(self, controller: StoredController, answer: Callable[[MemberInfo, m.Answer], None]) -> None:
        self._controller = controller
        self._answer = answer

    async def write(self, member: MemberInfo) -> None:
        """Until cancelled."""
        held: m.Ask | None = None
        while True:
            asks, held = [held or await member.asked.get()], None
            while asks[0].what != "fail_partition" and len(asks) < _AT_ONCE and not member.asked.empty():
                found = member.asked.get_nowait()
                if found.what == "fail_partition" or found.link != asks[0].link:
                    held = found
                    break
                asks.append(found)
            errors: dict[int, Exception] = {}
            try:
                errors = await self._write(member, asks)
            except Exception as failed:
                if not isinstance(failed, LinkerError):
                    log.exception(
                        "writing a change for sidecar %d hit a bug; it is told so", member.hello.broker_id
                    )
                errors = {ask.n: failed for ask in asks}
            for ask in asks:
                failure = errors.get(ask.n)
                named = None if failure is None else (type(failure).__name__, str(failure))
                self._answer(member, m.Answer(n=ask.n, error=named))

    async def _write(self, member: MemberInfo, asks: Sequence[m.Ask]) -> dict[int, Exception]:
        """Returns the changes that were not made, by their numbers."""
        errors: dict[int, Exception] = {}
        notes: dict[TopicPartition, CopyNote] = {}
        for ask in asks:
            try:
                tp = self._led_by(member, ask)
            except LinkerError as error:
                errors[ask.n] = error
                continue
            known = notes.get(tp, CopyNote())
            pairs = tuple(ask.pairs)
            match ask.what:
                case "fail_partition":
                    await self._controller.fail_partition(ask.link, tp, ask.reason or "no reason was given")
                case "source_epochs":
                    notes[tp] = known._replace(source_epochs=pairs)
                case "untruncated":
                    notes[tp] = known._replace(untruncated=pairs)
        if notes:
            refused = await self._controller.note_copies(asks[0].link, notes)
            errors |= {
                ask.n: refused[tp]
                for ask in asks
                if (tp := TopicPartition(ask.topic, ask.partition)) in refused and ask.n not in errors
            }
        return errors

    def _led_by(self, member: MemberInfo, ask: m.Ask) -> TopicPartition:
        """The partition, if that member leads it."""
        tp, image = TopicPartition(ask.topic, ask.partition), self._controller.image
        state = image.partitions.get((ask.link, tp))
        if state is None:
            raise NotFound(f"link {ask.link!r} has no mirror of partition {tp}")
        if image.sidecar_at(image.at(ask.link), state.leader) != member.hello.broker_id:
            # Not for good: the metadata log may have told the asker that it leads before it has told us.
            raise NotTheLeader(
                f"{tp} is led by sidecar {state.leader}, not by {member.hello.broker_id}, as far as is known here"
            )
        return tp
