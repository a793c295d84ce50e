"""Moving the replicas of topics that were switched: they are on brokers of the source."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from admin.models import ReassignRequest
from admin.service import InvalidRequest
from controller.image import ControllerImage
from controller.state import Link, MirrorTopic
from linker.service.reassigns import MirrorReassigns

BACK = "east.reverse"


def service(*, joined: bool = True) -> MirrorReassigns:
    image = ControllerImage()
    image.replay(
        [
            Link(name="east", source_cluster_id="s", properties={}),
            Link(name=BACK, source_cluster_id="t", properties={}, reverse_of="east"),
            *(
                MirrorTopic(link=link, topic=topic, topic_id=id_ * 16, source_topic_id=None, partitions=1)
                for link, topic, id_ in (("east", "orders", b"\x01"), (BACK, "payments", b"\x02"))
            ),
        ]
    )
    links = {BACK: SimpleNamespace(name=BACK)}
    sidecar: Any = SimpleNamespace(
        controller=SimpleNamespace(image=image),
        joined={"east": SimpleNamespace(links=links)} if joined else {},
    )
    return MirrorReassigns(sidecar)


def asked(*topics: str) -> ReassignRequest:
    return ReassignRequest(topics=list(topics), away_from=[2])


def test_a_switched_topic_is_found_by_the_name_of_its_link() -> None:
    """A switch back that waits for a broker of the source names this command."""
    found = service()._mirrored_by
    assert found("east", asked("payments")) == BACK
    assert found(BACK, asked("payments")) == BACK
    for topics in (["orders"], ["none"]):
        assert found("east", asked(*topics)) == "east"
    assert found("east", ReassignRequest(all=True, away_from=[2])) == "east"
    with pytest.raises(
        InvalidRequest, match=r"payments: switched, .* those of orders on brokers of the target"
    ):
        found("east", asked("orders", "payments"))
    assert service(joined=False)._mirrored_by("east", asked("payments")) == "east"
