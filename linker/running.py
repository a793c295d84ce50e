"""A sidecar as it runs, for the admin API's service, the link controller's duties and the metrics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from fetcher.budget import MemoryBudget
from fleet.balancer import Balancer
from fleet.shared_controller import SharedController
from linker.config.model import Config
from linker.fleet.fleet import Fleet
from linker.joined_sources import JoinedSources
from linker.link_broker import LinkBroker
from linker.links.running import RunningLinks
from linker.links.runtime import LinkRuntime
from linker.membership import TargetCluster
from wire.periodic_task import PeriodicTask
from wire.server.partial_frames import PartialFrames


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """Made once (sidecar.Sidecar), when the sidecar is a link broker of the target."""

    config: Config
    version: str
    controller: SharedController
    fleet: Fleet
    #: The sidecar as a broker of the target, and its membership there.
    broker: LinkBroker
    target: TargetCluster
    #: The sidecar as a broker of sources, by link.
    joined: JoinedSources
    #: The links that mirror into the target.
    links: RunningLinks
    #: Those, and the links that run back into joined sources.
    all_links: Callable[[], Sequence[LinkRuntime]]
    budget: MemoryBudget
    partial: PartialFrames
    #: Broker ids of all sidecars in the target.
    link_brokers: Callable[[], frozenset[int]]
    #: None while this sidecar is not the link controller of a fleet.
    balancer: Callable[[], Balancer | None]
    #: Those that belong to no link; the links have their own.
    periodic_tasks: Callable[[], Sequence[PeriodicTask]]
    #: None from the end of the start until the sidecar leaves the target, else why not.
    not_started: Callable[[], str | None]
    #: None when brokers, clients and requests are served, else why not.
    not_ready: Callable[[], str | None]
    #: Unregister within that many seconds, then end: shortly after, so that whoever asked gets the answer.
    leave: Callable[[float], Awaitable[None]]
