"""Which topics may be synced, and so switched."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from admin.service import IllegalState, MirrorNotFound
from controller.decide.reverse import reverse_name
from controller.image import ControllerImage
from controller.phases import Phase
from controller.state import Link, MirrorPartition, MirrorTopic, RemoveMirror
from linker.links.runtime import LinkRuntime
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


def switches(*phases: Phase, sync: bool = False, back: bool = False) -> Switches:
    """One topic with partitions in these phases. `back`: its source is being taken over, too."""
    image = ControllerImage()
    link = Link(name="east", source_cluster_id="s", properties={})
    other = Link(name=reverse_name("east"), source_cluster_id="t", properties={}, reverse_of="east")
    image.replay([link, other])
    for name in ["east", other.name] if back else ["east"]:
        mirror = MirrorTopic(
            link=name, topic="orders", topic_id=b"\x01" * 16, source_topic_id=None, partitions=2, sync=sync
        )
        image.replay([mirror])
        for index, phase in enumerate(phases):
            state = Phase.TAKEN if name == other.name else phase
            image.replay([MirrorPartition(link=name, topic="orders", partition=index, phase=state)])
    sidecar: Any = SimpleNamespace(controller=SimpleNamespace(image=image))
    return Switches(sidecar)


@pytest.mark.parametrize(
    ("forward", "back", "shown"),
    [
        ((Phase.ACTIVE, Phase.ACTIVE), None, "east"),
        ((Phase.ALIGNED, Phase.ALIGNED), Phase.TAKEN, "east"),
        ((Phase.PROMOTED, Phase.HANDED_OVER), Phase.ACTIVE, "east"),
        ((Phase.PROMOTED, Phase.PROMOTED), Phase.TAKEN, "east"),
        # A switch in waves: it is over here, and goes on with others.
        ((Phase.PROMOTED, Phase.PROMOTED), Phase.ACTIVE, "east.reverse"),
        ((), Phase.ACTIVE, "east.reverse"),
        # Promoted by itself, or never mirrored.
        ((Phase.PROMOTED, Phase.PROMOTED), None, "east"),
        ((), None, "east"),
    ],
)
def test_a_topic_that_is_switched_is_shown_in_one_direction(
    forward: tuple[Phase, ...], back: Phase | None, shown: str
) -> None:
    found = switches(*forward, back=back is not None)
    image = found._image
    if back is not None:
        other = reverse_name("east")
        states = [MirrorPartition(link=other, topic="orders", partition=at, phase=back) for at in range(2)]
        image.replay(states)
    if not forward:
        image.replay([RemoveMirror("east", "orders")])
    runtime, reverse = (cast(LinkRuntime, SimpleNamespace(name=name)) for name in ("east", "east.reverse"))
    assert found._shown(runtime, reverse, "orders").name == shown


@pytest.mark.parametrize("sync", [False, True])
def test_a_promote_that_ended_half_way_is_told_the_way(sync: bool) -> None:
    found = switches(Phase.PROMOTED, Phase.ACTIVE, sync=sync)
    with pytest.raises(IllegalState) as refused:
        found._check_not_begun({"east": ["orders"]})
    told = str(refused.value)
    assert told.startswith(
        "of topic orders 1 of 2 partitions are the target's already, by a promote that ended half way"
    )
    assert ("mirror sync orders --link east --off" in told) is sync
    assert "promote the rest (linker mirror promote orders --link east)" in told
    assert "linker mirror restore orders --link east" in told


@pytest.mark.parametrize(
    "found",
    [switches(Phase.ACTIVE, Phase.ACTIVE), switches(Phase.HANDED_OVER, Phase.VALIDATED, back=True)],
    ids=["not begun", "a switch"],
)
def test_what_is_no_half_promote_is_not_refused(found: Switches) -> None:
    found._check_not_begun({"east": ["orders"]})


def test_a_topic_that_was_promoted_without_sync_is_restored_first() -> None:
    with pytest.raises(IllegalState, match="linker mirror restore orders --link east has it follow"):
        switches(Phase.PROMOTED, Phase.PROMOTED)._by_link("east", ["orders"], all_=False)
    assert switches(Phase.PROMOTED, Phase.PROMOTED)._by_link("east", [], all_=True) == {}
    with pytest.raises(IllegalState, match="orders changes hands right now"):
        switches(Phase.PROMOTED, Phase.PROMOTED, back=True)._by_link("east", ["orders"], all_=False)
    with pytest.raises(MirrorNotFound):
        switches()._by_link("east", ["payments"], all_=False)


def test_what_is_done_to_mirrors_of_the_target_says_that_a_topic_was_switched() -> None:
    found = switches(Phase.ACTIVE, Phase.ACTIVE, back=True)
    back = reverse_name("east")
    found._image.replay([RemoveMirror("east", "orders")])
    found._runtime = lambda name: SimpleNamespace(name=name)  # type: ignore[assignment, method-assign, return-value]
    found._reverse = lambda name: None if name == back else SimpleNamespace(name=back)  # type: ignore[assignment, method-assign, return-value]
    with pytest.raises(IllegalState, match="orders was switched: the target owns it"):
        found._mirror_here("east", "orders")
    with pytest.raises(MirrorNotFound, match="no mirror of topic carts"):
        found._mirror_here("east", "carts")
    with pytest.raises(IllegalState, match=f"link {back} runs against east"):
        found._mirror_here(back, "orders")
    assert found._mirror(back, "orders")[1].topic == "orders"


@pytest.mark.parametrize(
    ("phase", "way"),
    [(Phase.PAUSED, "linker mirror resume orders"), (Phase.FAILED, "linker mirror describe orders")],
)
def test_a_topic_that_is_not_copied_keeps_nobody_waiting(phase: Phase, way: str) -> None:
    switches(Phase.ACTIVE, Phase.ACTIVE)._check_copies("east", ["orders"])
    with pytest.raises(IllegalState, match=f"orders is {phase}, so it cannot be switched: {way}"):
        switches(Phase.ACTIVE, phase)._check_copies("east", ["orders"])
