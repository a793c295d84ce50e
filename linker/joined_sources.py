"""The sources that this sidecar joins as a broker, beside the target: one link broker for each link that asks for it.

A link asks by its option `join_source`; where this sidecar's configuration has a section for the link, it joins, stays,
and leaves live as the option says. Trouble there is told and tried again; the link itself goes on as it would without.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from controller.image import ControllerImage
from controller.state import Link, Record
from fleet.messages import SourceMember
from linker.checks.preflight import PreflightFinding, refuse
from linker.checks.source_membership import (
    NAME,
    controller_findings,
    id_findings,
    no_section,
    refused_by_options,
    topic_findings,
)
from linker.checks.this_machine import check_source
from linker.config.model import Config
from linker.config.source_section import SourceClient, SourceConfig
from linker.evictor import Evictor
from linker.fleet.identity import IdentityFile
from linker.link_broker import LinkBroker
from linker.link_broker_settings import LinkBrokerSettings, connect_cluster
from linker.membership.controller_channel import ControllerChannel
from linker.membership.hosting import hosted_partitions
from linker.process.early_bind import EarlySockets
from linker.source_brokers import SourceBrokers
from linker.source_identity import MarkedBrokers, identity_path, mark_of, marked_identity
from linker.zookeeper.checks import zookeeper_findings
from wire.backoff import Backoff
from wire.client.cluster import Cluster
from wire.client.security import ClientSecurity
from wire.errors import LinkerError
from wire.periodic_task import PeriodicTask
from wire.task_group import TaskGroup
from wire.together import first_error

log = logging.getLogger(__name__)

_TIMEOUT: Final = 60.0
_LEAVE_TIMEOUT: Final = 30.0
_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 15.0


def joins_source(link: Link) -> bool:
    return link.reverse_of is None and link.options.get("join_source") is True


class JoinedSource:
    """The sidecar as a broker of one link's source, from the wish to join until it has left."""

    def __init__(
        self, link: Link, config: Config, early_sockets: EarlySockets, brokers: SourceBrokers, mark: bytes
    ) -> None:
        self.link = link
        self._config = config
        self._early_sockets = early_sockets
        self._brokers = brokers
        self._mark = mark
        #: Set while the sidecar is registered there and its listeners are open.
        self.broker: LinkBroker | None = None
        self.evictor: Evictor | None = None
        #: Why it is not, or why it cannot leave.
        self.reason: str | None = "not joined yet"
        self.wanted = joins_source(link)
        self._changed = asyncio.Event()

    def follow(self, link: Link | None) -> None:
        """The link as the state has it now; None: it is gone, or the sidecar goes."""
        wanted = link is not None and joins_source(link)
        properties, refused = self.link.properties, refused_by_options(self.link.options)
        if link is not None:
            self.link = link
        if (wanted, self.link.properties, refused_by_options(self.link.options)) != (
            self.wanted,
            properties,
            refused,
        ):
            self.wanted = wanted
            self._changed.set()

    def told(self) -> SourceMember:
        """For people."""
        section, broker = self._config.sources.get(self.link.name), self.broker
        state = "JOINING" if self.wanted else "LEAVING"
        if broker is not None and self.wanted:
            state = "FENCED" if broker.membership.registration.fenced else "JOINED"
        return SourceMember(
            link=self.link.name,
            broker_id=None if section is None else section.broker_id,
            state=state,
            reason=self.reason,
            cordoned=broker is not None and broker.cordoned,
        )

    async def run(self) -> None:
        """Until it has left; also one that an earlier process had joined. Errors are waited out."""
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        while self.wanted or self.file_exists():
            self._changed.clear()
            try:
                await self._join_and_stay(backoff)
            except Exception as error:
                reason = first_error(error) if isinstance(error, BaseExceptionGroup) else error
                if not isinstance(reason, LinkerError):
                    log.exception("link %s: joining its source hit a bug and begins again", self.link.name)
                self._note(str(reason) or repr(reason))
                await self._pause(backoff)
            finally:
                self.broker = None

    async def _pause(self, backoff: Backoff) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), backoff.next())

    def _file(self, broker_id: int) -> IdentityFile:
        state_dir = self._config.sidecar.state_dir
        return IdentityFile(identity_path(state_dir, self.link.source_cluster_id, broker_id))

    def file_exists(self) -> bool:
        """Whether this sidecar is, or may be, registered there."""
        section = self._config.sources.get(self.link.name)
        return section is not None and self._file(section.broker_id).path.exists()

    def _section(self) -> SourceConfig:
        section = self._config.sources.get(self.link.name)
        if section is None:
            raise LinkerError(no_section(self.link.name, self._config.sidecar.broker_id))
        return section

    async def _join_and_stay(self, backoff: Backoff) -> None:
        """Returns when it has left, or has to begin anew with other properties."""
        section = self._section()
        refused = refused_by_options(self.link.options)
        if refused is not None and self.wanted:
            raise LinkerError(refused)
        async with contextlib.AsyncExitStack() as stack:
            if self.wanted:
                await asyncio.to_thread(check_source, self.link.name, section, self._early_sockets)
            settings = LinkBrokerSettings.of_source(self.link, section, self._config.link_secrets)
            cluster = await connect_cluster(settings, stack)
            file = self._file(settings.broker_id)
            kept = await asyncio.to_thread(file.load)
            others = MarkedBrokers(self._mark)
            identity = marked_identity(kept, settings.broker_id, self._mark)
            broker = self._brokers.make(self.link, settings, cluster, identity, file, others)
            others.image = broker.membership.image
            stack.push_async_callback(broker.close)
            if section.zookeeper_connect is not None:
                refuse(await zookeeper_findings(cluster, section.zookeeper_connect))
            else:
                refuse(await controller_findings(broker.membership.channel, self.link.source_cluster_id))
            async with TaskGroup() as group:
                running = group.create_task(broker.run(), name=f"link {self.link.name}: broker of its source")
                self.evictor = Evictor(broker)
                await broker.join(_TIMEOUT)
                async with self._brokers.take_part(self.link, broker):
                    if self.wanted:
                        await broker.serve(_TIMEOUT)
                        self.broker, self.reason = broker, None
                        backoff.reset()
                        log.info(
                            "link %s: joined its source as broker %d", self.link.name, settings.broker_id
                        )
                        evicting = group.create_task(
                            self.evictor.run(), name=f"link {self.link.name}: evictor"
                        )
                        await self._changed.wait()
                        evicting.cancel()
                    if not self.wanted:
                        await self._leave(broker, file)
                running.cancel()

    async def _leave(self, broker: LinkBroker, file: IdentityFile) -> None:
        """Unregister, as soon as no partition names us. Wanted again meanwhile: begin anew."""
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        while not self.wanted:
            self._changed.clear()
            try:
                await broker.membership.leave(_LEAVE_TIMEOUT)
            except LinkerError as error:
                self._note(str(error))
                await self._pause(backoff)
            else:
                await asyncio.to_thread(file.path.unlink, missing_ok=True)
                return

    def _note(self, reason: str) -> None:
        if self.reason != reason:
            log.warning("link %s: the sidecar as a broker of its source: %s", self.link.name, reason)
        self.reason = reason


class JoinedSources(Mapping[str, LinkBroker]):
    """The link brokers of sources, by link: those that are registered there and serve. `group` is whose tasks they are."""

    def __init__(
        self,
        config: Config,
        early_sockets: EarlySockets,
        image: Callable[[], ControllerImage],
        target_cluster_id: Callable[[], str],
        brokers: SourceBrokers,
    ) -> None:
        self._config = config
        self._early_sockets = early_sockets
        self._image = image
        self._target_cluster_id = target_cluster_id
        self._brokers = brokers
        #: Each link whose source the sidecar is to join, or has to leave yet.
        self.sources: dict[str, JoinedSource] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._leaving = False
        self.group: TaskGroup | None = None

    def __getitem__(self, link: str) -> LinkBroker:
        broker = self.sources[link].broker
        if broker is None:
            raise KeyError(link)
        return broker

    def __iter__(self) -> Iterator[str]:
        return (link for link, one in self.sources.items() if one.broker is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @property
    def tasks(self) -> Sequence[asyncio.Task[None]]:
        return list(self._tasks.values())

    @property
    def periodic_tasks(self) -> list[PeriodicTask]:
        evictors = [one.evictor.task for one in self.sources.values() if one.evictor is not None]
        return [*(one.inter_broker.task for one in self.values()), *evictors]

    def told(self) -> list[SourceMember]:
        return [one.told() for one in self.sources.values()]

    def follow(self, _records: Sequence[Record]) -> None:
        """A listener of the controller."""
        if self._leaving:
            return
        links = self._image().links
        for name, one in self.sources.items():
            one.follow(links.get(name))
        for name, link in links.items():
            if name not in self.sources:
                self._start(link)

    def _start(self, link: Link) -> None:
        """Start a JoinedSource if the link is to join its source, or an earlier process left an identity file."""
        mark = mark_of(self._target_cluster_id(), link.name)
        one = JoinedSource(link, self._config, self._early_sockets, self._brokers, mark)
        if self.group is None or not (one.wanted or one.file_exists()):
            return
        if (other := self._other(link)) is not None:
            if one.wanted:
                log.error("link %s does not join its source: %s", link.name, other)
            return
        self.sources[link.name] = one
        task = self._tasks[link.name] = self.group.create_task(one.run(), name=f"link {link.name}: source")
        task.add_done_callback(lambda done: self._ended(link.name, done))

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        del self.sources[name], self._tasks[name]
        if not task.cancelled():
            self.follow(())  # asked for again meanwhile

    @property
    def hosting(self) -> bool:
        """Whether a partition of a source names us."""
        return any(
            any(hosted_partitions(one.membership.image, one.membership.broker_id)) for one in self.values()
        )

    def check_may_leave(self, link: str) -> None:
        """StillHosting while a partition of the source names us."""
        if link in self:
            self[link].check_may_leave()

    async def leave_all(self, timeout: float) -> None:
        """The sidecar goes for good; StillHosting while a partition of a source names it. A dead source keeps nobody."""
        for link in self:
            self.check_may_leave(link)
        self._leaving = True
        for one in self.sources.values():
            one.follow(None)
        if self._tasks:
            await asyncio.wait(self.tasks, timeout=timeout)
        for name, one in self.sources.items():
            log.warning(
                "link %s: this sidecar stays registered at the source (%s): kafka-cluster.sh unregister there removes it",
                name,
                one.reason or "it did not answer",
            )

    async def findings(self, link: Link, source: Cluster, topics: Collection[str]) -> list[PreflightFinding]:
        """All that keeps this sidecar from joining the source of a link, which may not be in the state yet."""
        section = self._config.sources.get(link.name)
        wrong = refused_by_options(link.options)
        found = [] if wrong is None else [PreflightFinding(NAME, True, wrong)]
        if (other := self._other(link)) is not None:
            found.append(PreflightFinding(NAME, True, other))
        elif section is None:
            found.append(PreflightFinding(NAME, True, no_section(link.name, self._config.sidecar.broker_id)))
        elif not self._file_of(link, section).exists():
            found += await id_findings(source, section.broker_id, link.name)
        if section is not None and section.zookeeper_connect is not None:
            found += await zookeeper_findings(source, section.zookeeper_connect)
        else:
            async with self._controllers(link, section, source) as channel:
                found += await controller_findings(channel, link.source_cluster_id)
        return found + await topic_findings(source, topics)

    def _other(self, link: Link) -> str | None:
        """Why one broker cannot be two links' in one cluster; None if it is not."""
        section = self._config.sources.get(link.name)
        for name, one in self.sources.items():
            found = self._config.sources.get(name)
            if (
                name != link.name
                and section is not None
                and found is not None
                and (found.broker_id, one.link.source_cluster_id)
                == (section.broker_id, link.source_cluster_id)
            ):
                return (
                    f"link {name} has joined the same cluster with broker id {section.broker_id}: give section "
                    f"sources.{link.name} of the configuration another one"
                )
        return None

    def _file_of(self, link: Link, section: SourceConfig) -> Path:
        return identity_path(self._config.sidecar.state_dir, link.source_cluster_id, section.broker_id)

    @contextlib.asynccontextmanager
    async def _controllers(
        self, link: Link, section: SourceConfig | None, source: Cluster
    ) -> AsyncIterator[ControllerChannel]:
        client = SourceClient(link.properties, self._config.link_secrets, section)
        with client.hiding_values():
            security = ClientSecurity.from_properties(client.controller_properties())
        channel = ControllerChannel(
            source,
            security=security,
            bootstrap=client.controller_bootstrap_servers() or (),
            client_id=source.client_id,
        )
        try:
            yield channel
        finally:
            await channel.close()
