"""A partition that the link broker leads, for tests that begin there."""

from __future__ import annotations

from controller.decide.mirrors import Establishment, Leadership
from fleet.link_controller import LinkController
from wire.frames.types import TopicPartition


async def establish(
    controller: LinkController,
    link: str,
    tp: TopicPartition,
    *,
    leadership: Leadership,
    session_epoch: int,
    start_offset: int,
) -> None:
    await controller.establish_all(link, {tp: Establishment(leadership, session_epoch, start_offset)})
