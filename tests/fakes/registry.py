"""Which module answers which api. A test adds its own with `cluster.handlers["alter_partition"] = handle`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.fakes import (
    api_versions,
    describe_cluster,
    describe_configs,
    describe_log_dirs,
    fetch,
    find_coordinator,
    init_producer_id,
    list_offsets,
    metadata,
    offset_for_leader_epoch,
    produce,
    sasl,
)

if TYPE_CHECKING:
    from tests.fakes.cluster import Handler

HANDLERS: dict[str, Handler] = {
    "api_versions": api_versions.handle,
    "describe_cluster": describe_cluster.handle,
    "describe_configs": describe_configs.handle,
    "describe_log_dirs": describe_log_dirs.handle,
    "fetch": fetch.handle,
    "find_coordinator": find_coordinator.handle,
    "init_producer_id": init_producer_id.handle,
    "list_offsets": list_offsets.handle,
    "metadata": metadata.handle,
    "offset_for_leader_epoch": offset_for_leader_epoch.handle,
    "produce": produce.handle,
    "sasl_authenticate": sasl.authenticate,
    "sasl_handshake": sasl.handshake,
}
