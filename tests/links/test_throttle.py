"""A link's limit follows the state, at once and without a restart."""

from __future__ import annotations

from dataclasses import replace

from controller.decisions import Leadership
from controller.manager import LinkController
from controller.phases import Phase
from controller.state import MirrorTopic, SidecarIdentity
from controller.stored_controller import StoredController
from linker.admin.models import LinkOptions, LinkOptionsUpdate, UpdateLinkRequest
from linker.links.runtime import LIVE_OPTIONS
from linker.links.throttle import LinkThrottle
from tests.controller.memory_store import MemoryStore
from wire.types import TopicPartition

TP = TopicPartition("orders", 0)


async def limited(rate: int) -> tuple[LinkController, LinkThrottle]:
    controller = await StoredController.open(MemoryStore(), now=lambda: 7)
    await controller.create_link("east", "id", {}, {"replication_bytes_per_second": rate})
    throttle = LinkThrottle("east", controller)
    controller.listeners.add(throttle.on_records)
    throttle.on_records(())
    return controller, throttle


async def test_follows_the_link() -> None:
    controller, throttle = await limited(1000)
    assert throttle.bucket.rate == 1000
    await controller.update_link("east", None, {"replication_bytes_per_second": 5000})
    assert throttle.bucket.rate == 5000
    await controller.update_link("east", None, {"replication_bytes_per_second": 0})
    assert throttle.bucket.rate is None


async def test_sidecars_share_it() -> None:
    controller, throttle = await limited(1000)
    for broker_id in (900, 901):
        await controller.save_identity(
            SidecarIdentity(broker_id=broker_id, incarnation_id=bytes(16), log_dir_id=bytes(16))
        )
    assert throttle.bucket.rate == 500
    await controller.remove_sidecar(901)
    assert throttle.bucket.rate == 1000


async def test_lifted_behind_a_fence() -> None:
    controller, throttle = await limited(1000)
    await controller.create_mirror(
        MirrorTopic(link="east", topic="orders", topic_id=bytes(16), source_topic_id=None, partitions=1)
    )
    await controller.establish(
        "east", TP, leadership=Leadership(900, 1, (900,)), session_epoch=1, start_offset=0
    )
    await controller.advance("east", [TP], Phase.CATCHING_UP)
    assert not throttle.bucket.lifted
    await controller.advance("east", [TP], Phase.FENCED)
    assert throttle.bucket.lifted
    await controller.advance("east", [TP], Phase.ACTIVE)
    assert not throttle.bucket.lifted
    state = replace(controller.image.partitions["east", TP], phase=Phase.FENCED)
    controller.image.replay([state])
    throttle.on_records(())
    assert throttle.bucket.lifted


async def test_a_request_that_names_only_the_limit_names_nothing_else() -> None:
    """Clients send the fields they do not name as null: such a request once began the link anew."""
    sent = UpdateLinkRequest(options=LinkOptionsUpdate(replication_bytes_per_second=7)).model_dump_json()
    assert '"unpromoted_reads":null' in sent
    got = UpdateLinkRequest.model_validate_json(sent).options
    assert got.named() == {"replication_bytes_per_second": 7}
    assert got.named().keys() <= LIVE_OPTIONS
    assert got.applied_to(LinkOptions(unpromoted_reads="hold")).unpromoted_reads == "hold"
