"""Finds mirrors that a real broker leads without a promote, and fails them with the number of its own records."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from controller.phases import Phase
from controller.state import MirrorPartition
from fetcher.link_fetcher import LinkFetcher
from linker.links import forks
from linker.links.link_part import LinkContext, LinkPart
from linker.links.topic_shape import led_by_others
from wire.frames.types import TopicPartition
from wire.metadata.image import TopicImage


class ForkWatch(LinkPart):
    """Of one link."""

    def __init__(
        self,
        context: LinkContext,
        fetcher: LinkFetcher,
        fail: Callable[[list[MirrorPartition], str], Awaitable[None]],
    ) -> None:
        super().__init__(context)
        self._fetcher = fetcher
        self._fail = fail
        #: Until the mirror is failed for it.
        self._records: dict[TopicPartition, int | None] = {}

    async def look(self, found: Iterable[tuple[list[MirrorPartition], TopicImage]]) -> None:
        """Ask the leaders of forks how many records they took by themselves. They may be slow, or away."""
        led: list[MirrorPartition] = []
        for states, topic in found:
            open_states = [state for state in states if state.phase is not Phase.FAILED]
            led += [state for state, _ in led_by_others(open_states, topic, self._link_brokers())]
        if led:
            self._fetcher.remove([state.tp for state in led])
            told = await forks.look(self._target.cluster, self._target.image, led)
            self._records.update({fork.tp: fork.records for fork in told})

    async def fail(self, states: Iterable[MirrorPartition], topic: TopicImage) -> None:
        """An unclean election that somebody forced made a real broker leader: what is written there is not at the
        source, and nothing that is copied from there on would be the same log.
        """
        led = list(led_by_others(states, topic, self._link_brokers()))
        self._fetcher.remove([state.tp for state, _ in led])
        for state, leader in led:
            if state.phase is Phase.FAILED:
                continue
            records = self._records.pop(state.tp, None)
            so_far = "" if records is None else f" ({records} records so far)"
            await self._fail(
                [state],
                f"broker {leader} of the target was elected its leader, without a promote; it takes writes that the source "
                f"does not have{so_far}: see linker mirror repair {state.topic} --link {self._link} --dry-run",
            )
