"""What is known of coordinators does not grow with the groups that have ever been."""

from __future__ import annotations

from groups.group_reader import GroupReader
from tests.links.group_rig import Rig
from wire.client.coordinators import KeyType
from wire.client.places import Places


def test_only_what_was_asked_for_lately_is_known() -> None:
    now = 0.0
    places = Places(lambda: now)
    for n in range(100):
        places.set(f"g{n}", n)
    for _ in range(10):
        now += 60
        assert places.get("g1") == 1  # asked for all the time
    assert len(places) == 1
    assert places.get("g2") is None
    now += 1000
    assert places.get("g1") is None
    assert len(places) == 0


def test_what_has_moved_is_not_known() -> None:
    now = 0.0
    places = Places(lambda: now)
    places.set("g", 1)
    now = 130.0
    places.forget("g")
    assert places.get("g") is None


async def test_a_listing_of_many_groups_is_not_kept() -> None:
    async with Rig() as rig:
        for n in range(50):
            rig.commit(f"g{n}", 1)
        reader = GroupReader(rig.clusters[0])
        assert len((await reader.list_groups(timeout=5)).groups) == 50
        await reader.offsets(["g1", "g2"], timeout=5)
        assert len(reader._finder._places[KeyType.GROUP]) == 2
