"""What the parts of a link work with, where this sidecar is the only one of its fleet."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from linker.links.link_part import LinkContext
from wire.frames.types import TopicPartition


def context(
    link: str = "east",
    source: Any = None,
    target: Any = None,
    controller: Any = None,
    *,
    brokers: frozenset[int] | None = None,
    head: Any = True,
    without_owner: Callable[[TopicPartition], bool] = lambda _tp: False,
) -> LinkContext:
    """`brokers`: the link brokers, by default the target's sidecar alone; `head`: whether it is the link controller, or that
    controller."""
    own = 900 if target is None else getattr(target, "broker_id", 900)
    fleet: Any = SimpleNamespace(alive=lambda: {own}, draining=set) if head is True else head or None
    return LinkContext(
        link,
        source,
        target,
        controller,
        lambda: frozenset({own}) if brokers is None else brokers,
        lambda: fleet,
        without_owner,
    )
