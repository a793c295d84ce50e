"""The parts of a link that runs against another one (controller.decide.reverse): it has no properties of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from validator import messages as m
from wire.client.cluster import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Reversed:
    """The parts of a reverse link that come from elsewhere."""

    #: Makes the client of the target under a link's name.
    connect: Callable[[str], Cluster]
    #: The target as the validator reads from it.
    source_side: Callable[[], m.Side]
    #: Whether neither cluster hands out a producer id that the other one may have handed out.
    producer_ids_apart: Callable[[], bool]
