"""Tells an operator who promotes all mirrors of a link what has changed since the plan: patterns take topics without
asking anybody."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from linker.links.link_part import LinkContext, LinkPart
from linker.links.topic_follower import TopicFollower
from wire.errors import LinkerError
from wire.shown_id import listed

#: Where nobody has planned a promote of all on this sidecar yet.
_RECENT_MS = 3_600_000


class CameSince(LinkPart):
    """Of one link."""

    def __init__(self, context: LinkContext, follower: TopicFollower) -> None:
        super().__init__(context)
        self._follower = follower
        self._looked_at: int | None = None  # wall clock ms

    def by_pattern(self, topics: Collection[str]) -> dict[str, int]:
        """Those of these mirrors that the link's patterns take, and when they were made, in wall clock ms."""
        rules = self._follower.settings.rules
        mirrors = [self._controller.image.mirrors[self._link, topic] for topic in topics]
        return {one.topic: one.created_at for one in mirrors if rules.takes(one.source_topic)}

    def looked(self, now: int) -> None:
        """A promote of all was planned, and shown."""
        self._looked_at = now

    async def lines(self, topics: Sequence[str], now: int) -> list[str]:
        """Mirrors that came since, and topics of the source that are no mirrors yet."""
        since = now - _RECENT_MS if self._looked_at is None else self._looked_at
        when = (
            "within the last hour" if self._looked_at is None else "since a promote of all was planned last"
        )
        came = [
            f"{topic} ({max(0, now - made) // 1000} s ago)"
            for topic, made in self.by_pattern(topics).items()
            if made > since
        ]
        told = (
            [f"mirrors that came by topics_include {when}, and are promoted too: {listed(came)}"]
            if came
            else []
        )
        try:
            left = await self._follower.unmirrored()
        except LinkerError as error:
            return [*told, f"whether topics_include takes more topics of the source is not known: {error}"]
        if left:
            told.append(
                f"not promoted, since they are not mirrored (yet), although topics_include takes them: {listed(left)}"
            )
        return told
