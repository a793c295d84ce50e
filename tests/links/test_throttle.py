"""A link's limit follows the state, at once and without a restart."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pydantic import ValidationError

from admin.models import LinkOptions, LinkOptionsUpdate, UpdateLinkRequest
from controller.decide.mirrors import Leadership
from controller.phases import Phase
from controller.state import MirrorTopic, SidecarIdentity
from fleet.link_controller import LinkController
from fleet.stored_controller import StoredController
from linker.links.runtime import LIVE_OPTIONS
from linker.links.throttle import LinkThrottle
from tests.controller.established import establish
from tests.controller.memory_store import MemoryStore
from wire.frames.types import TopicPartition

TP = TopicPartition("orders", 0)


async def limited(rate: int, **options: int) -> tuple[LinkController, LinkThrottle]:
    controller = await StoredController.open(MemoryStore(), now=lambda: 7)
    await controller.create_link("east", "id", {}, {"replication_bytes_per_second": rate, **options})
    throttle = LinkThrottle("east", controller, lambda: 0)
    controller.listeners.add(throttle.on_records)
    throttle.on_records(())
    return controller, throttle


async def test_follows_the_link() -> None:
    controller, throttle = await limited(1000)
    assert throttle.rate.limit.rate == 1000
    await controller.update_link("east", None, {"replication_bytes_per_second": 5000})
    assert throttle.rate.limit.rate == 5000
    await controller.update_link("east", None, {"replication_bytes_per_second": 0})
    assert throttle.rate.limit.rate is None


async def test_sidecars_share_it() -> None:
    controller, throttle = await limited(1000)
    for broker_id in (900, 901):
        await controller.save_identity(
            SidecarIdentity(broker_id=broker_id, incarnation_id=bytes(16), log_dir_id=bytes(16))
        )
    assert throttle.rate.limit.rate == 500
    await controller.remove_sidecar(901)
    assert throttle.rate.limit.rate == 1000


async def test_how_it_gives_way_follows_the_link_too_and_is_each_sidecars_own() -> None:
    controller, throttle = await limited(0, replication_bytes_per_second_beside_writes=300_000)
    for broker_id in (900, 901):
        await controller.save_identity(
            SidecarIdentity(broker_id=broker_id, incarnation_id=bytes(16), log_dir_id=bytes(16))
        )
    assert throttle.rate.beside_writes.rate == 300_000
    await controller.update_link("east", None, {"replication_bytes_per_second_beside_writes": 0})
    assert throttle.rate.beside_writes.rate is None
    assert throttle.rate.limit.rate is None


async def test_a_link_from_before_gives_way_as_a_new_one() -> None:
    _, throttle = await limited(1000)
    assert throttle.rate.beside_writes.rate == LinkOptions().replication_bytes_per_second_beside_writes > 0
    assert throttle.rate.limit.rate == 1000


def lifted(throttle: LinkThrottle) -> bool:
    return throttle.rate.fetch_size(1 << 20) == 1 << 20


async def test_lifted_behind_a_fence() -> None:
    controller, throttle = await limited(1000)
    await controller.create_mirror(
        MirrorTopic(link="east", topic="orders", topic_id=bytes(16), source_topic_id=None, partitions=1)
    )
    await establish(
        controller, "east", TP, leadership=Leadership(900, 1, (900,)), session_epoch=1, start_offset=0
    )
    await controller.advance("east", [TP], Phase.CATCHING_UP)
    assert not lifted(throttle)
    await controller.advance("east", [TP], Phase.FENCED)
    assert lifted(throttle)
    await controller.advance("east", [TP], Phase.ACTIVE)
    assert not lifted(throttle)
    state = replace(controller.image.partitions["east", TP], phase=Phase.FENCED)
    controller.image.replay([state])
    throttle.on_records(())
    assert lifted(throttle)


@pytest.mark.parametrize(
    "option", ["replication_bytes_per_second", "replication_bytes_per_second_beside_writes"]
)
async def test_a_request_that_names_only_one_rate_names_nothing_else(option: str) -> None:
    """Clients send the fields they do not name as null: such a request once began the link anew."""
    sent = UpdateLinkRequest(options=LinkOptionsUpdate.model_validate({option: 700_000})).model_dump_json()
    assert '"unpromoted_reads":null' in sent
    got = UpdateLinkRequest.model_validate_json(sent).options
    assert got.named() == {option: 700_000}
    assert got.named().keys() <= LIVE_OPTIONS
    assert got.applied_to(LinkOptions(unpromoted_reads="hold")).unpromoted_reads == "hold"


@pytest.mark.parametrize("rate", [-1, 1, 99_999, (1 << 40) + 1])
async def test_a_rate_beside_writes_that_nobody_could_mean_is_refused(rate: int) -> None:
    for model in (LinkOptions, LinkOptionsUpdate):
        with pytest.raises(ValidationError):
            model.model_validate({"replication_bytes_per_second_beside_writes": rate})
        model.model_validate({"replication_bytes_per_second_beside_writes": 0})
        model.model_validate({"replication_bytes_per_second_beside_writes": 100_000})
