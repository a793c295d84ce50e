"""Explains why the target does not accept this sidecar as a broker, and says what to do."""

from __future__ import annotations

import logging

from linker.membership.errors import BrokerIdTaken, ClusterIdChanged, RegistrationRefused, check_error
from linker.membership.identity import Identity
from wire.errors import BrokerError
from wire.frames.error_codes import (
    DUPLICATE_BROKER_REGISTRATION,
    INCONSISTENT_CLUSTER_ID,
    INVALID_REGISTRATION,
    UNSUPPORTED_VERSION,
)
from wire.frames.types import format_address, topic_id_str
from wire.metadata.image import BrokerImage, ClusterImage

log = logging.getLogger(__name__)


def taken_text(cluster_name: str, broker_id: int, existing: BrokerImage | None) -> str:
    """The message that another broker has this broker id, and what to do."""
    text = f"broker id {broker_id} is taken in {cluster_name}"
    if existing is not None:
        where = ", ".join(
            f"{name}://{format_address(end.host, end.port)}"
            for name, end in sorted(existing.endpoints.items())
        )
        text += f" by a {'fenced' if existing.fenced else 'live'} broker at {where}"
    return (
        f"{text}; choose another broker.id, or if that broker is gone for good and no partition names it any more, "
        f"remove it with kafka-cluster.sh unregister --id {broker_id}"
    )


def check_identity(identity: Identity, cluster_name: str, image: ClusterImage) -> None:
    """Refuse a broker id or log dir that another broker has. Checked here, before anything changes, because the controller
    would let us take over a broker that is merely down (KIP-631)."""
    existing = image.brokers.get(identity.broker_id)
    if existing is not None and existing.incarnation_id != identity.incarnation_id:
        raise BrokerIdTaken(taken_text(cluster_name, identity.broker_id, existing))
    for broker in image.brokers.values():
        if broker.id != identity.broker_id and identity.log_dir_id in broker.log_dirs:
            raise BrokerIdTaken(
                f"broker {broker.id} of {cluster_name} has this sidecar's log dir "
                f"{topic_id_str(identity.log_dir_id)}: two sidecars were started from one copied "
                "state"
            )


def check_refused(
    code: int, cluster_name: str, identity: Identity, cluster_id: str, image: ClusterImage
) -> None:
    """Raise for a final answer to a registration; return for one that time may change."""
    broker_id = identity.broker_id
    if code == DUPLICATE_BROKER_REGISTRATION:
        raise BrokerIdTaken(taken_text(cluster_name, broker_id, image.brokers.get(broker_id)))
    if code == INCONSISTENT_CLUSTER_ID:
        raise ClusterIdChanged(f"{cluster_name}: the controller does not have cluster id {cluster_id}")
    if code == UNSUPPORTED_VERSION:
        raise RegistrationRefused(
            f"{cluster_name} refused broker {broker_id}: a finalized feature is outside the offered ranges "
            "(the controllers were upgraded or downgraded just now? try again)"
        )
    if code == INVALID_REGISTRATION:
        raise RegistrationRefused(
            f"{cluster_name} refused broker {broker_id} as invalid: its log dir id may belong to another "
            "broker, or a listener of the target is missing among advertised.listeners; see the "
            "controller's log"
        )
    try:
        check_error(code, "broker_registration", cluster_name)
    except BrokerError as error:
        if not error.retriable:
            raise
        log.warning("registration: %s", error)
