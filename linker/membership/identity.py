"""The sidecar's identity in the target, and the features it registers with. Pure; registration.py sends it.

The identity must outlive the process: a new incarnation is an unclean shutdown, which takes the link broker out of the
ISR of every mirror (`ClusterControlManager.registerBroker`, KIP-966).
"""

from __future__ import annotations

import dataclasses
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple

from wire.metadata.image import ClusterImage
from wire.metadata.schemas import KAFKA_VERSION

#: SecurityProtocol.id
PROTOCOL_IDS: Final[Mapping[str, int]] = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}


class AdvertisedListener(NamedTuple):
    """One endpoint of the sidecar as the target's clients and brokers see it."""

    name: str
    host: str
    port: int
    security_protocol: int  # of PROTOCOL_IDS


@dataclasses.dataclass(frozen=True, slots=True)
class Identity:
    """The sidecar as one cluster knows it. It has to outlive the process (see above)."""

    broker_id: int
    incarnation_id: bytes
    log_dir_id: bytes
    broker_epoch: int = -1
    cluster_id: str = ""

    @staticmethod
    def create(broker_id: int) -> Identity:
        return Identity(broker_id, uuid.uuid4().bytes, uuid.uuid4().bytes)


#: The newest feature levels that this code supports: wire/metadata/schemas.py has their records, and their rules for leading
#: partitions are implemented. All other features concern coordinators and the quorum, and a link broker is neither.
NEWEST_LEVELS: Final[Mapping[str, int]] = {
    "metadata.version": 30,  # 4.3-IV0
    "eligible.leader.replicas.version": 1,
}

SaveIdentity = Callable[[Identity], Awaitable[None]]


def offered_features(
    supported: Mapping[str, tuple[int, int]],
    finalized: Mapping[str, tuple[int, int]],
    in_log: Mapping[str, int],
) -> dict[str, tuple[int, int]]:
    """The ranges to register with: what the controller supports, widened to hold every finalized level.

    Controllers before ApiVersions v4 leave out features whose minimum is 0; a finalized one that is missing
    would be taken for the range 0..0 and refused (`ClusterControlManager.processRegistrationFeature`).
    Never more than NEWEST_LEVELS: the controller then refuses to finalize a level under which we would have to end.
    """
    offered = {
        name: (low, min(high, NEWEST_LEVELS.get(name, high)))
        for name, (low, high) in supported.items()
        if low <= NEWEST_LEVELS.get(name, low)
    }
    levels = {name: max(pair) for name, pair in finalized.items()} | dict(in_log)
    for name, level in levels.items():
        if level > 0:
            low, high = offered.get(name, (0, level))
            offered[name] = (min(low, level), max(high, level))
    return offered


def too_new(finalized: Mapping[str, tuple[int, int]], in_log: Mapping[str, int]) -> str | None:
    """The message about a finalized feature level that this version does not know; None: it knows all of them."""
    for name, newest in NEWEST_LEVELS.items():
        level = max(in_log.get(name, 0), *finalized.get(name, (0, 0)))
        if level > newest:
            return (
                f"has finalized {name} {level}, and this version of Kafka Linker knows levels up to {newest} (Kafka "
                f"{KAFKA_VERSION}): install a newer version of Kafka Linker"
            )
    return None


def largest_rack(image: ClusterImage, own_broker_id: int) -> str | None:
    """The rack with the most brokers, None if no broker names one.

    Where nothing cordons us (before KIP-1066), rack-aware placement hits a broker of the largest rack least.
    """
    racks = Counter(b.rack for b in image.brokers.values() if b.id != own_broker_id and b.rack is not None)
    return min(racks, key=lambda rack: (-racks[rack], rack)) if racks else None
