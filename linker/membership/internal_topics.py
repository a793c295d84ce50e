"""Makes the target create Kafka's own topics before a link broker could be given them."""

from __future__ import annotations

import logging

from linker.membership.cluster import TargetCluster
from wire.errors import LinkerError
from wire.frames.error_codes import GROUP_AUTHORIZATION_FAILED, TRANSACTIONAL_ID_AUTHORIZATION_FAILED

log = logging.getLogger(__name__)

_COORDINATOR_TIMEOUT = 10.0
_COORDINATOR_TYPES = (0, 1)  # FindCoordinator: group, transaction
#: The name that is asked for. If there are ACLs, the sidecar's principal may describe it for its gates: without that right
#: a broker refuses before it makes the topic (`KafkaApis.getCoordinator`).
_KEY = "kafka-linker-gate-"
_REFUSED = frozenset({GROUP_AUTHORIZATION_FAILED, TRANSACTIONAL_ID_AUTHORIZATION_FAILED})


async def create_internal_topics(target: TargetCluster, timeout: float) -> None:
    """Make the target create __consumer_offsets and __transaction_state before there is a link broker.

    Kafka creates them when they are first asked for. Where no log dir can be cordoned (heartbeats before v2, KIP-1066),
    automatic placement could then choose us.
    """
    if not await target.places_replicas_on_us(timeout):
        return
    refused = False
    for key_type in _COORDINATOR_TYPES:
        try:
            answer = await target.cluster.call(
                "find_coordinator",
                {"key": _KEY, "key_type": key_type, "coordinator_keys": [_KEY]},
                timeout=_COORDINATOR_TIMEOUT,
            )
        except LinkerError as error:
            log.warning("an internal topic of the target was not created beforehand: %s", error)
            continue
        # Expected: the answer that there is no coordinator yet.
        codes = {int(one.error_code) for one in getattr(answer, "coordinators", None) or (answer,)}
        refused = refused or bool(codes & _REFUSED)
    if refused:
        log.warning(
            "Kafka's own topics of %s could not be made beforehand, and one may be placed on this sidecar later: grant "
            "Describe and Read on the groups, Describe and Write on the transactional ids %s*, or make "
            "__consumer_offsets and __transaction_state before",
            target.cluster.name,
            _KEY,
        )
