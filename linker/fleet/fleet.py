"""This sidecar's place in its fleet, put together: store, process, member, runner, listener for other sidecars.

With the embedded store the same parts run: the sidecar is the link controller of a fleet of one, its lease never ends,
and there is no listener.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid

from fleet.channel import MemberChannel
from fleet.fleet_controller import FleetController
from fleet.member import Member
from fleet.messages import Hello
from fleet.roles import Duties, FleetRunner
from fleet.route import Destination, NoController
from fleet.settings import FleetSettings
from fleet.shared_controller import SharedController
from fleet.stores.base import Candidate, Seat, StoreError
from fleet.transport.connections import ControlServer, connect
from linker import __version__
from linker.checks.this_machine import CannotListen
from linker.config.model import Config
from linker.fleet.clock import lease_clock
from linker.fleet.identity import IdentityFile, TargetIdentity
from linker.fleet.ports import RouterLease, SidecarPorts
from linker.fleet.process import SidecarProcess
from linker.stores import Location, check_usable, open_store
from linker.stores.measured import MeasuredStore
from wire.client.cluster import Cluster
from wire.client.security import ClientSecurity, ListenerSecurity
from wire.errors import LinkerError
from wire.frames.types import format_address, topic_id_str

#: A store has its own patience with a predecessor that was killed: 1.5 sessions, and these are up to 40 s.
_ANNOUNCE_TIMEOUT = 120.0


class FleetNotReady(LinkerError):
    """No link controller took this sidecar in time."""


class Fleet:
    """Make one with `open`; `run` it beside the rest; the rest works with `controller`."""

    def __init__(
        self,
        config: Config,
        store: MeasuredStore,
        process: SidecarProcess | None,
        server: ControlServer | None,
        ports: SidecarPorts,
        duties: Duties,
        cluster_id: str,
    ) -> None:
        self.config = config
        self.store = store
        self._process = process
        self._cluster_id = cluster_id
        self.alone = process is None
        sidecar = config.sidecar
        self.session = uuid.uuid4().hex if process is None else process.session
        self.candidate = Candidate(
            broker_id=sidecar.broker_id,
            control="" if server is None else _control_address(config, server),
            admin=format_address(*sidecar.admin_advertised_address()),
            session=self.session,
            cluster_id=cluster_id,
        )
        self.settings = FleetSettings(
            lease=config.fleet.lease_ms / 1000,
            renew_interval=config.fleet.renew_interval_ms / 1000,
            failure_timeout=config.fleet.failure_timeout_ms / 1000,
        )
        self.controller = SharedController()
        self.member = Member(self._hello, self.controller, ports, self.settings, lease_clock)
        self.lease = RouterLease(self.member.lease)
        self.runner = FleetRunner(
            store,
            self.candidate,
            self.controller,
            self.member,
            self.settings,
            lease_clock,
            connect=self._connect,
            duties=duties,
            endless_leases=self.alone,
            cluster_id=lambda: cluster_id,
            check_store=lambda: check_usable(store, Location.of(config)),
        )
        self.identity = TargetIdentity(
            sidecar.broker_id,
            None if self.alone else IdentityFile(sidecar.state_dir / "identity.json"),
            self.controller,
            self.session,
            _sources(config),
        )
        self.clock = lease_clock

    @classmethod
    async def open(
        cls,
        config: Config,
        ports: SidecarPorts,
        duties: Duties,
        cluster: Cluster,
        stack: contextlib.AsyncExitStack,
    ) -> Fleet:
        """The stack closes everything that is opened here. `cluster` is the target, connected."""
        process: SidecarProcess | None = None
        if config.store.type != "sqlite":
            process = await asyncio.to_thread(SidecarProcess.begin, config.sidecar.state_dir)
            stack.callback(process.close)
        store = MeasuredStore(await open_store(config, cluster))
        stack.push_async_callback(store.close)
        fleet: Fleet | None = None

        async def accept(channel: MemberChannel) -> None:
            if fleet is None:
                channel.close("this sidecar is starting")
            else:
                await fleet.runner.accept(channel)

        server: ControlServer | None = None
        at = config.sidecar.control_address()
        if at is not None:
            tls = config.sidecar.control_tls()
            try:
                server = await ControlServer.start(
                    at[0],
                    at[1],
                    _secret(config),
                    accept,
                    tls=None if tls is None else ListenerSecurity.from_properties(tls),
                )
            except OSError as error:
                raise CannotListen(
                    f"control.listener: cannot bind to {format_address(*at)}: {error.strerror or error}"
                ) from error
            stack.push_async_callback(server.close)
        fleet = cls(config, store, process, server, ports, duties, cluster.cluster_id or "")
        if process is not None:
            try:
                async with asyncio.timeout(_ANNOUNCE_TIMEOUT):
                    await store.announce(fleet.candidate)
            except TimeoutError:
                raise StoreError(
                    f"the state store did not take note of this sidecar within {_ANNOUNCE_TIMEOUT:g} s"
                ) from None
        return fleet

    @property
    def fleet_controller(self) -> FleetController | None:
        """Set while this sidecar is the link controller."""
        return self.runner.fleet_controller

    def route(self) -> Destination | None:
        """The destination of requests about links and sidecars: None while this sidecar answers them itself; raises
        NoController."""
        if self.alone or self.controller.is_controller:
            return None
        seat = self.controller.seat
        if seat is None:
            none = "no sidecar is the link controller at the moment"
            trouble = self.runner.trouble
            why = "" if trouble is None or trouble == none else f" ({trouble})"
            raise NoController(f"{none}{why}; try again in a few seconds")
        if seat.holder.session == self.session:
            why = "" if self.runner.vacancy is None else f" ({self.runner.vacancy})"
            raise NoController(f"it is about to become the link controller{why}; try again in a few seconds")
        return Destination(seat.holder.broker_id, seat.holder.admin)

    async def wait_loaded(self, timeout: float) -> None:
        """Wait until there is a state to work with; FleetNotReady if none came in time."""
        loaded = asyncio.Event()

        def look(_records: object = ()) -> None:
            if self.controller.loaded:
                loaded.set()

        self.controller.listeners.add(look)
        look()
        try:
            async with asyncio.timeout(timeout):
                await loaded.wait()
        except TimeoutError:
            why = self.runner.trouble or "it has not sent its state"
            raise FleetNotReady(f"no link controller within {timeout:g} s: {why}") from None
        finally:
            self.controller.listeners.discard(look)

    def _hello(self) -> Hello:
        kept = self.identity.known()
        return Hello(
            broker_id=self.config.sidecar.broker_id,
            session=self.session,
            replaces=[] if self._process is None else list(self._process.replaces),
            version=__version__,
            rack=self.config.sidecar.rack,
            control=self.candidate.control,
            admin=self.candidate.admin,
            cluster_id=self._cluster_id,
            incarnation_id="" if kept is None else topic_id_str(kept.incarnation_id),
            log_dir_id="" if kept is None else topic_id_str(kept.log_dir_id),
            broker_epoch=-1 if kept is None else kept.broker_epoch,
            sources=list(_sources(self.config)),
        )

    # The way to another link controller.

    async def _connect(self, seat: Seat) -> MemberChannel:
        tls = self.config.sidecar.control_tls()
        return await connect(
            seat.holder.control,
            _secret(self.config),
            self.settings.connect_timeout,
            tls=None if tls is None else ClientSecurity.from_properties(tls),
        )


def _sources(config: Config) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((link, section.broker_id) for link, section in config.sources.items()))


def _control_address(config: Config, server: ControlServer) -> str:
    advertised = config.sidecar.control_advertised_address()
    if advertised is not None:
        return format_address(*advertised)
    bound = config.sidecar.control_address()
    return format_address("127.0.0.1" if bound is None else bound[0], server.port)


def _secret(config: Config) -> str:
    secret = config.sidecar.control_secret
    return "" if secret is None else secret.get_secret_value()
