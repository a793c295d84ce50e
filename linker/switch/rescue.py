"""Gives topics back that link brokers lead although nobody has taken them over, or goes on with.

All brokers of the cluster that owns a topic were away at once, and the link broker in sync was the last of the ISR. A task
that has begun to give them back may end meanwhile, with its process or its time: so each round begins with what is written
down.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from controller.decide.give_backs import in_hand, left_taken
from fleet.link_controller import LinkController
from linker.switch.take_over import TakeOver
from wire.errors import LinkerError
from wire.periodic_task import PeriodicTask

log = logging.getLogger(__name__)

_INTERVAL = 0.5
#: Of one round. Topics that lose their brokers meanwhile are in the next one.
_ROUND = 10.0


class Rescues:
    """Of one link; its task runs on the link controller."""

    def __init__(
        self,
        link: str,
        controller: LinkController,
        led_alone: Callable[[], Collection[str]],
        take_over: Callable[[], TakeOver | None],
    ) -> None:
        """`led_alone`: topics in sync that a link broker leads, with none but link brokers in the ISR."""
        self._link = link
        self._controller = controller
        self._led_alone = led_alone
        self._take_over = take_over
        #: Why a topic is not given back yet.
        self.reasons: dict[str, str] = {}
        self.task = PeriodicTask("topics that lost their brokers", self._once, _INTERVAL, failed=self._failed)

    def _failed(self, error: Exception) -> None:
        log.warning(
            "link %s: giving back topics that lost their brokers failed: %s; tried again", self._link, error
        )

    def topics(self) -> list[str]:
        """Those that are to be given back now."""
        image = self._controller.image
        fresh = set(self._led_alone()) - in_hand(image, self._link)
        return sorted(fresh.union(left_taken(image, self._link)))

    async def _once(self) -> str | None:
        topics = self.topics()
        self.reasons = {topic: why for topic, why in self.reasons.items() if topic in topics}
        if not topics:
            return None
        take_over = self._take_over()
        if take_over is None:
            why = "this sidecar is no broker of the cluster that owns it"
        else:
            try:
                await take_over.rescue(topics, timeout=_ROUND)
            except (LinkerError, TimeoutError) as error:
                why = str(error) or "not within its time"
            else:
                log.info("link %s: own brokers lead %s again", self._link, ", ".join(topics))
                self.reasons.clear()
                return None
        self.reasons = dict.fromkeys(
            self.topics(), f"its own brokers were away, and it waits for them: {why}"
        )
        return f"a link broker leads {', '.join(topics)} since all others died: {why}"
