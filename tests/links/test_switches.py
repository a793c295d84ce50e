"""Which topics may be synced, and so switched."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from admin.service import IllegalState
from controller.image import ControllerImage
from controller.state import MirrorTopic
from linker.service.switches import Switches


@pytest.mark.parametrize("start", ["earliest", "latest", "1700000000000"])
def test_a_mirror_without_the_first_records_is_not_switched(start: str) -> None:
    image = ControllerImage()
    mirror = MirrorTopic(
        link="east", topic="orders", topic_id=b"\x01" * 16, source_topic_id=None, partitions=1, start=start
    )
    image.replay([mirror])
    sidecar: Any = SimpleNamespace(controller=SimpleNamespace(image=image))
    service = Switches(sidecar)
    if start == "earliest":
        service._check_whole({"east": ["orders"]})
        return
    with pytest.raises(IllegalState, match="orders is not mirrored from its first record on"):
        service._check_whole({"east": ["orders"]})
