"""The API versions that a controller must have for a link broker to live in its cluster."""

from __future__ import annotations

from linker.membership.errors import TargetUnsupported
from wire.client.connection import Connection

# The least versions that membership needs. An older controller is refused with the api and version that it lacks.
_NEEDED = {
    "broker_registration": 2,  # log dirs (KIP-858)
    "broker_heartbeat": 1,
    "alter_partition": 2,  # topic ids
    "fetch": 12,  # diverging epoch and snapshot id
    "fetch_snapshot": 0,
}


def check_versions(connection: Connection, cluster: str, address: str) -> None:
    """Refuse a controller that is too old, naming the first thing it lacks."""
    for api, needed in _NEEDED.items():
        offered = connection.api_range(api)
        if offered is None or offered[1] < needed:
            have = "lacks it" if offered is None else f"has up to v{offered[1]}"
            raise TargetUnsupported(
                f"{cluster} is too old: a link broker needs {api} v{needed}, the controller at {address} "
                f"{have}; upgrade it to Kafka 3.9 or later"
            )
