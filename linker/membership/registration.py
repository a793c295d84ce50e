"""The life of a broker of the target: registration, heartbeats, leaving.

Rules (`ClusterControlManager.registerBroker`, `BrokerHeartbeatManager`, `BrokerLifecycleManager`):
- The same incarnation id registers again under the same broker epoch (an "amend"), even while its session
  lives. A new incarnation is an unclean shutdown unless PreviousBrokerEpoch equals the last epoch (KIP-966):
  the link broker would leave the ISR of every mirror and leave it without a leader for good. So the identity
  is kept, and saved *before* it is first used.
- The controller finalizes a feature at a level only if every broker registered with a range that includes it. When
  the controllers are upgraded their ranges grow, and ours are amended, as far as this code knows the levels.
- A registration by another incarnation is refused (DUPLICATE_BROKER_REGISTRATION) only while the old session
  lives. A stopped broker's id would be taken over silently, so we check the metadata log first.
- The features offered must cover every finalized one; ApiVersions v4 lists those whose minimum is 0
  (KIP-1022).
- A broker is unfenced when it asks to be (WantFence=false) and its CurrentMetadataOffset has reached its
  registration.
- A log dir declared cordoned (heartbeat v2, KIP-1066) is never given a new replica by placement.
- Only a broker that no partition lists may unregister (KIP-631); the controller does not check that, so we
  do (hosting.py).
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Sequence

from linker.membership.controller_channel import ControllerChannel
from linker.membership.errors import (
    BrokerIdTaken,
    ClusterIdChanged,
    RegistrationRefused,
    StillHosting,
    TargetUnsupported,
    check_error,
)
from linker.membership.hosting import hosted_partitions, unregister
from linker.membership.identity import (
    AdvertisedListener,
    Identity,
    SaveIdentity,
    largest_rack,
    offered_features,
    too_new,
)
from linker.membership.metadata_log import MetadataLog
from linker.membership.refusals import check_identity, check_refused, taken_text
from linker.membership.versions import check_versions
from wire.backoff import Backoff
from wire.client.waiting import until_set
from wire.errors import LinkerError, RequestTimedOut
from wire.frames.error_codes import BROKER_ID_NOT_REGISTERED, STALE_BROKER_EPOCH
from wire.metadata.image import ClusterImage

log = logging.getLogger(__name__)

_SESSION_TIMEOUT = 9.0  # broker.session.timeout.ms
_HEARTBEAT_TIMEOUT = 3.0
_STARTING_INTERVAL = 0.05
_RETRY_FIRST = 0.1
_RETRY_MAX = 1.0
_FEATURES_INTERVAL = 15.0


_MAX_REGISTRATION_VERSION = 4
_MAX_HEARTBEAT_VERSION = 2


class Registration:
    """Keeps the sidecar registered and its heartbeats going."""

    def __init__(
        self,
        channel: ControllerChannel,
        metadata: MetadataLog,
        identity: Identity,
        *,
        listeners: Sequence[AdvertisedListener],
        save: SaveIdentity,
        rack: str | None = None,
        heartbeat_interval: float = 2.0,
    ) -> None:
        if not listeners:
            raise RegistrationRefused("the sidecar needs at least one advertised listener")
        self._channel = channel
        self._name = channel.cluster_name
        self._metadata = metadata
        self.identity = identity
        self._cluster_id = ""
        self._listeners = list(listeners)
        self._save = save
        self._configured_rack = rack
        self.rack: str | None = rack
        self._interval = heartbeat_interval
        self._ready = False
        self._hurry = asyncio.Event()
        self._stopping = False
        self._left = False
        self._registered = asyncio.Event()
        self.fenced: bool | None = None
        self.caught_up = False
        self.last_heartbeat = float(
            "-inf"
        )  # monotonic time of the *sending* of the last one that was accepted
        #: The feature ranges that we are registered with, and when they were last compared with the controller's own.
        self._features: dict[str, tuple[int, int]] = {}
        self._compared = float("-inf")
        self._unfenced = asyncio.Event()
        self._failure: BaseException | None = None

    @property
    def broker_id(self) -> int:
        return self.identity.broker_id

    @property
    def broker_epoch(self) -> int:
        return self.identity.broker_epoch

    @property
    def session_valid(self) -> bool:
        """Whether our session with the controller still runs, by our own clock."""
        return time.monotonic() - self.last_heartbeat < _SESSION_TIMEOUT

    def check_cluster_id(self, cluster_id: str) -> None:
        """Keep the cluster's id with the identity; ClusterIdChanged if the identity belongs to another cluster."""
        stored = self.identity.cluster_id
        if stored and stored != cluster_id:
            raise ClusterIdChanged(
                f"{self._name} has cluster id {cluster_id}, but this sidecar's stored "
                f"identity belongs to cluster {stored}; let its addresses lead to that cluster, or give "
                "this one a state of its own"
            )
        self._cluster_id = cluster_id

    # --- registering ----------------------------------------------------------------------------------------

    async def register(self, timeout: float) -> None:
        """Register, or amend the registration; afterwards `identity` has the epoch and is saved."""
        deadline = time.monotonic() + timeout
        active, connection = await self._channel.connection("heartbeat", timeout=timeout)
        check_versions(connection, self._name, active.address)
        await self._metadata.caught_up(max(0.001, deadline - time.monotonic()))
        check_identity(self.identity, self._name, self._metadata.image)
        unknown = too_new(connection.finalized_features, self._metadata.image.features)
        if unknown is not None:
            raise TargetUnsupported(f"{self._name} {unknown}")
        if self.identity.cluster_id != self._cluster_id:
            self.identity = dataclasses.replace(self.identity, cluster_id=self._cluster_id)
        # Saved before it is used: if we crash after the controller has seen the identity, we must still have it.
        await self._save(self.identity)
        backoff = Backoff(_RETRY_FIRST, _RETRY_MAX)
        while True:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise RequestTimedOut("not registered in time", sent=False, api="broker_registration")
            code, epoch = await self._register_once(remaining)
            if code == 0:
                break
            check_refused(code, self._name, self.identity, self._cluster_id, self._metadata.image)
            await asyncio.sleep(min(backoff.next(), max(0.0, deadline - time.monotonic())))
        self.identity = dataclasses.replace(self.identity, broker_epoch=epoch)
        await self._save(self.identity)
        log.info(
            "%s: registered as broker %d, epoch %d, rack %s", self._name, self.broker_id, epoch, self.rack
        )
        self._registered.set()
        self._hurry.set()

    async def _register_once(self, timeout: float) -> tuple[int, int]:
        features = await self._offered(timeout)
        self.rack = self._configured_rack or largest_rack(self._metadata.image, self.broker_id)
        response = await self._channel.call(
            "broker_registration",
            {
                "broker_id": self.broker_id,
                "cluster_id": self._cluster_id,
                "incarnation_id": self.identity.incarnation_id,
                "listeners": [listener._asdict() for listener in self._listeners],
                "features": [
                    {"name": name, "min_supported_version": low, "max_supported_version": high}
                    for name, (low, high) in sorted(features.items())
                ],
                "rack": self.rack,
                "is_migrating_zk_broker": False,
                "log_dirs": [self.identity.log_dir_id],
                "previous_broker_epoch": self.identity.broker_epoch,
            },
            timeout=min(timeout, 2 * _HEARTBEAT_TIMEOUT),
            purpose="heartbeat",
            idempotent=True,  # the same incarnation again is an amend
            max_version=_MAX_REGISTRATION_VERSION,
        )
        if not response.error_code:
            self._features = features
        return int(response.error_code), response.broker_epoch

    async def _offered(self, timeout: float) -> dict[str, tuple[int, int]]:
        """The feature ranges to register with, made from those that the active controller tells now."""
        _, connection = await self._channel.connection("heartbeat", timeout=timeout)
        # Finalized features change, and only v4 lists those whose minimum is 0.
        await connection.api_versions(version=4, timeout=min(timeout, _HEARTBEAT_TIMEOUT))
        self._compared = time.monotonic()
        return offered_features(
            connection.supported_features, connection.finalized_features, self._metadata.image.features
        )

    async def follow_features(self) -> None:
        """Amend the registration if the controller supports other feature ranges than before: it refuses to upgrade a
        feature while a broker is registered with the old range. As the same incarnation we stay unfenced and keep the epoch.
        """
        features = await self._offered(_HEARTBEAT_TIMEOUT)
        if features == self._features:
            return
        log.info(
            "%s: the controller supports other features than it did: the registration is amended", self._name
        )
        await self.register(_SESSION_TIMEOUT)

    # --- heartbeats -----------------------------------------------------------------------------------------

    def ready_to_unfence(self) -> None:
        """The listeners serve: from now on the heartbeats ask to be unfenced (BrokerLifecycleManager)."""
        self._ready = True
        self._hurry.set()

    async def wait_unfenced(self, timeout: float) -> None:
        """Return when the controller has unfenced us and the image shows it."""
        deadline = time.monotonic() + timeout
        try:
            async with asyncio.timeout(timeout):
                await self._unfenced.wait()
        except TimeoutError:
            raise RequestTimedOut(
                f"broker {self.broker_id} was not unfenced within {timeout:g} s (metadata offset "
                f"{self._metadata.offset}, caught up: {self.caught_up})",
                sent=False,
                api="broker_heartbeat",
                peer=self._name,
            ) from None
        if self._failure is not None:
            raise self._failure

        def unfenced(image: ClusterImage) -> bool | None:
            broker = image.brokers.get(self.broker_id)
            return True if broker is not None and not broker.fenced else None

        await self._metadata.wait_for(unfenced, max(0.0, deadline - time.monotonic()))

    async def run(self) -> None:
        """Heartbeats from the registration on, until cancelled or until leave() has succeeded."""
        try:
            await self._registered.wait()
            backoff = Backoff(_RETRY_FIRST, _RETRY_MAX)
            while not self._left:
                if self._stopping:  # leave() sends its own heartbeats
                    await until_set(self._hurry, self._interval)
                    continue
                if not self._ready and self._led_until_now():
                    await until_set(self._hurry, self._interval)
                    continue
                try:
                    await self._heartbeat()
                    backoff.reset()
                    starting = self.fenced is not False and self._ready
                    if not starting and time.monotonic() - self._compared >= _FEATURES_INTERVAL:
                        await self.follow_features()
                    pause = _STARTING_INTERVAL if starting else self._interval
                except (BrokerIdTaken, ClusterIdChanged, RegistrationRefused, TargetUnsupported):
                    raise
                except LinkerError as error:
                    log.warning("%s: heartbeat: %s", self._name, error)
                    pause = backoff.next()
                await until_set(self._hurry, pause)
        except BaseException as error:
            if isinstance(error, LinkerError):
                self._failure = error
                self._unfenced.set()
            raise

    def _led_until_now(self) -> bool:
        """Whether an earlier process of this sidecar, killed just now, left the broker unfenced.

        Then no heartbeat is sent until the listeners serve: one that asks to be fenced would take the leader from all its
        partitions for that moment. Without one the broker keeps them, for no longer than a session, which the registration
        has renewed (ClusterControlManager, BrokerHeartbeatManager).
        """
        broker = self._metadata.image.brokers.get(self.broker_id)
        return broker is not None and broker.epoch == self.broker_epoch and not broker.fenced

    async def _heartbeat(self, *, want_shut_down: bool = False) -> bool:
        """One heartbeat; returns whether the controller says we may shut down."""
        sent_at = time.monotonic()
        response = await self._channel.call(
            "broker_heartbeat",
            lambda: {
                "broker_id": self.broker_id,
                "broker_epoch": self.broker_epoch,
                # The newest offset, because a stale one holds back the controlled shutdown of other brokers.
                "current_metadata_offset": self._metadata.offset,
                "want_fence": not self._ready,
                "want_shut_down": want_shut_down,
                "offline_log_dirs": [],
                "cordoned_log_dirs": [self.identity.log_dir_id],
            },
            timeout=_HEARTBEAT_TIMEOUT,
            purpose="heartbeat",
            idempotent=True,
            max_version=_MAX_HEARTBEAT_VERSION,
        )
        code = int(response.error_code)
        if code in (STALE_BROKER_EPOCH, BROKER_ID_NOT_REGISTERED):
            await self._lost_registration(code)
            return False
        check_error(code, "broker_heartbeat", self._name)
        self.last_heartbeat = sent_at
        self.caught_up = response.is_caught_up
        self._set_fenced(response.is_fenced)
        return bool(response.should_shut_down)

    def _set_fenced(self, fenced: bool) -> None:
        if fenced == self.fenced:
            return
        log.info("%s: broker %d is %s", self._name, self.broker_id, "fenced" if fenced else "unfenced")
        self.fenced = fenced
        if fenced:
            self._unfenced.clear()
        else:
            self._unfenced.set()

    async def _lost_registration(self, code: int) -> None:
        """The controller does not know us under our epoch: our broker id was taken over or unregistered, or the quorum has
        lost that part of its log.
        """
        await self._metadata.caught_up(_HEARTBEAT_TIMEOUT)
        existing = self._metadata.image.brokers.get(self.broker_id)
        if existing is not None and existing.incarnation_id != self.identity.incarnation_id:
            raise BrokerIdTaken(taken_text(self._name, self.broker_id, existing))
        if self._stopping:
            return
        log.warning(
            "%s: broker %d is not registered any more (error %d): registering again",
            self._name,
            self.broker_id,
            code,
        )
        self._set_fenced(True)
        await self.register(_SESSION_TIMEOUT)

    # --- leaving --------------------------------------------------------------------------------------------

    async def leave(self, timeout: float) -> None:
        """Shut down in a controlled way and unregister; StillHosting while any partition names us.

        The heartbeat loop is stopped meanwhile, because a heartbeat after the unregistration would make us register again.
        It goes on if leaving fails.
        """
        deadline = time.monotonic() + timeout
        await self._metadata.caught_up(timeout)
        self._check_hosts_nothing()
        self._stopping = True
        self._hurry.set()
        try:
            await self._controlled_shutdown(deadline)
            # Checked again: placement may have used us until the controller knew of the shutdown.
            await self._metadata.caught_up(max(0.001, deadline - time.monotonic()))
            self._check_hosts_nothing()
            await unregister(self._channel, self._metadata, self.broker_id, deadline)
        finally:
            self._left = self.broker_id not in self._metadata.image.brokers
            self._stopping = self._left
            self._hurry.set()
        log.info("broker %d has left %s", self.broker_id, self._name)

    def _check_hosts_nothing(self) -> None:
        leads, hosts = hosted_partitions(self._metadata.image, self.broker_id)
        if leads or hosts:
            raise StillHosting(self.broker_id, leads, hosts)

    async def _controlled_shutdown(self, deadline: float) -> None:
        while not await self._heartbeat(want_shut_down=True):
            if self.broker_id not in self._metadata.image.brokers:
                return
            if time.monotonic() + _STARTING_INTERVAL >= deadline:
                raise RequestTimedOut(
                    "the controller did not grant the shutdown in time", sent=True, api="broker_heartbeat"
                )
            await asyncio.sleep(_STARTING_INTERVAL)
