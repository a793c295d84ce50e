"""The sidecars of a run as processes, each with proxies in front of it, and their admin API as an operator uses it.

Whoever ends without having been told to is started again, as a supervisor would do, and it is noted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import httpx

from lab.clusters.child_process import tail
from lab.clusters.ports import PortReservation
from lab.clusters.sidecar_process import SidecarProcess, SidecarSpec
from tests.chaos.plan import Role, Store
from tests.chaos.proxy import Proxy
from tests.chaos.stage import LISTENERS, Stage
from tests.chaos.tap import ProduceTap

SECRET = "chaos between sidecars"
RESTART_PAUSE = 0.5
SOURCE_ID = 1000
MOST_EXITS = 5  # while one waits for it to be ready
CALL_TIMEOUT = 3.0
STOP_TIMEOUT = 40.0
#: Answers of a sidecar that another one may answer better.
ELSEWHERE = frozenset({421, 502, 503, 504})
#: Of a change that was made: it cannot be made again (409), or what it removed is not there any more (404).
DONE_ALREADY = frozenset({404, 409})


class _Numbered(Protocol):
    broker_id: int


_M = TypeVar("_M", bound=_Numbered)


class ApiRefused(Exception):
    """The fleet says no, and asking again will not help."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class ApiSilent(Exception):
    """No sidecar has answered in time."""


class Member:
    """One sidecar: process, proxies, and the lock of whoever does something to the process."""

    def __init__(
        self,
        stage: Stage,
        store: Store,
        lease: float,
        broker_id: int,
        name: str,
        directory: Path,
        joins: str | None = None,
    ) -> None:
        self.broker_id = broker_id
        #: In the source: no other broker has it there.
        self.source_id = SOURCE_ID + broker_id
        self.source_gate = Proxy(f"sidecar {broker_id} at the source")
        self.tap = ProduceTap(f"link broker {broker_id}")
        self.client_gate = Proxy(f"sidecar {broker_id}", tap=self.tap)
        self.control_gate = Proxy(f"control of {broker_id}")
        self.store_gate = Proxy(f"store of {broker_id}")
        self.lock = asyncio.Lock()
        self.wanted = False
        self.exits: list[str] = []
        self._control = PortReservation()
        self._at_source = {name: PortReservation() for name in LISTENERS} if joins else {}
        fleet = {} if store is Store.SQLITE else {"lease.ms": round(lease * 1000)}
        self.process = SidecarProcess(
            SidecarSpec(
                target_bootstrap=stage.target_link,
                broker_id=broker_id,
                listeners=LISTENERS,
                sources={joins: self._source_section()} if joins else {},
                sidecar=self._sidecar_section(store),
                store=self._store_section(store, stage, name),
                fleet=fleet,
                advertised={"PLAINTEXT": self.client_gate.address},
            ),
            directory,
        )
        self.client_gate.upstream = _address(self.process.address("PLAINTEXT"))
        self.control_gate.upstream = ("127.0.0.1", self._control.port)

    def _sidecar_section(self, store: Store) -> dict[str, Any]:
        if store is Store.SQLITE:
            return {}
        return {
            "control.listener": f"127.0.0.1:{self._control.port}",
            "control.advertised": self.control_gate.address,
            "control.secret": SECRET,
        }

    def _source_section(self) -> dict[str, Any]:
        bound = {name: f"127.0.0.1:{one.port}" for name, one in self._at_source.items()}
        self.source_gate.upstream = _address(bound["PLAINTEXT"])
        told = {**bound, "PLAINTEXT": self.source_gate.address}
        return {
            "broker.id": self.source_id,
            "listeners": [f"{name}://{address}" for name, address in bound.items()],
            "advertised.listeners": [f"{name}://{address}" for name, address in told.items()],
            "listener.security.protocol.map": ",".join(f"{name}:{one}" for name, one in LISTENERS.items()),
        }

    def _store_section(self, store: Store, stage: Stage, name: str) -> dict[str, Any]:
        match store:
            case Store.SQLITE:
                return {}
            case Store.ZOOKEEPER:
                assert stage.zookeeper is not None
                self.store_gate.upstream = _address(stage.zookeeper.address)
                return {"type": "zookeeper", "connect": f"{self.store_gate.address}/{name}"}
            case Store.TOPIC:
                return {"type": "topic", "topic": f"__state_{name}"}

    @property
    def gates(self) -> list[Proxy]:
        return [self.client_gate, self.control_gate, self.store_gate, self.source_gate]

    def pids(self) -> set[int]:
        return set() if self.process.pid is None else {self.process.pid}

    def launch(self) -> None:
        self.process.launch()
        self.wanted = True

    async def kill(self) -> None:
        self.wanted = False
        if self.process.running:
            await self.process.kill()

    async def stop(self) -> None:
        """In good order; whoever does not get that done is noted and killed."""
        self.wanted = False
        if not self.process.running:
            return
        try:
            code = await self.process.stop(STOP_TIMEOUT)
        except Exception as error:
            self.exits.append(f"sidecar {self.broker_id}: {str(error).splitlines()[0]}")
            await self.kill()
            return
        if code != 0:
            self.exits.append(
                f"sidecar {self.broker_id} ended with exit code {code} when it was asked to stop"
            )

    async def supervise(self) -> None:
        """Until cancelled: start it again when it has ended by itself."""
        while True:
            await asyncio.sleep(0.2)
            if self.wanted and not self.process.running:
                code, last = self.process.exit_code, tail(self.process.log, 1)[:300]
                self.exits.append(f"sidecar {self.broker_id} ended by itself with exit code {code}: {last}")
                await asyncio.sleep(RESTART_PAUSE)
                if self.wanted and not self.process.running:
                    self.process.launch()

    async def close(self) -> None:
        self.wanted = False
        await self.process.close()
        for gate in self.gates:
            await gate.close()
        for port in (self._control, *self._at_source.values()):
            port.release()


class Fleet:
    """`async with Fleet(...)`: the sidecars launched, not necessarily ready."""

    def __init__(
        self,
        stage: Stage,
        store: Store,
        lease: float,
        first_id: int,
        directory: Path,
        joins: str | None = None,
    ) -> None:
        """`joins`: a link whose source the sidecars join."""
        self.store = store
        self.lease = lease
        self.name = directory.name
        self.members = [
            Member(stage, store, lease, first_id + n, self.name, directory / f"sidecar-{first_id + n}", joins)
            for n in range(store.sidecars)
        ]
        self._supervisors: list[asyncio.Task[None]] = []
        self._http = {
            member: httpx.AsyncClient(
                base_url=member.process.admin_url,
                timeout=CALL_TIMEOUT,
                trust_env=False,
                auth=member.process.authorize,
            )
            for member in self.members
        }
        self._last = self.members[0]

    async def __aenter__(self) -> Fleet:
        try:
            for member in self.members:
                for gate in member.gates:
                    await gate.start()
                member.launch()
            self._supervisors = [asyncio.create_task(member.supervise()) for member in self.members]
        except BaseException:
            await asyncio.shield(self.close())
            raise
        return self

    async def __aexit__(self, *_error: object) -> None:
        await asyncio.shield(self.close())

    async def close(self) -> None:
        for task in self._supervisors:
            task.cancel()
        await asyncio.gather(*self._supervisors, return_exceptions=True)
        for member in self.members:
            await member.close()
        for http in self._http.values():
            await http.aclose()

    @property
    def exits(self) -> list[str]:
        return [line for member in self.members for line in member.exits]

    # --- the admin API

    async def ready(self, timeout: float) -> None:
        """Until every sidecar says that it serves; ApiSilent names those that do not."""
        exits = {member: len(member.exits) for member in self.members}
        deadline = time.monotonic() + timeout
        while True:
            silent = [member for member in self.members if not await self._ready(member)]
            if not silent:
                return
            for member in silent:
                if len(member.exits) - exits[member] >= MOST_EXITS:
                    raise ApiSilent(f"{member.exits[-1]}, again and again:\n{tail(member.process.log, 3)}")
            if time.monotonic() > deadline:
                raise ApiSilent(f"not ready: {', '.join(str(member.broker_id) for member in silent)}")
            await asyncio.sleep(0.05)

    async def _ready(self, member: Member) -> bool:
        try:
            return (await self._http[member].get("/readyz")).status_code == 200
        except httpx.HTTPError:
            return False

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        timeout: float = 30.0,
        query: Any = None,
        once_is_enough: bool = False,
    ) -> Any:
        """The answer of whichever sidecar gives one; again and again until then.

        `once_is_enough`: a change that is refused, after an attempt of unknown outcome, was made by that one: None.
        """
        unknown = False
        deadline = time.monotonic() + timeout
        why = "nobody was asked"
        while True:
            for member in self._order():
                try:
                    answer = await self._http[member].request(method, path, json=body, params=query)
                except httpx.HTTPError as error:
                    why = f"sidecar {member.broker_id}: {error!r}"
                    unknown = unknown or not isinstance(error, httpx.ConnectError)
                    continue
                if answer.is_success:
                    self._last = member
                    return answer.json()
                why = f"sidecar {member.broker_id}: {answer.status_code} {_message(answer)}"
                if answer.status_code not in ELSEWHERE:
                    if once_is_enough and unknown and answer.status_code in DONE_ALREADY:
                        return None
                    raise ApiRefused(answer.status_code, why)
            if time.monotonic() > deadline:
                raise ApiSilent(f"{method} {path}: {why}")
            await asyncio.sleep(0.1)

    async def once(self, member: Member, path: str, timeout: float) -> Any:
        """One question to one sidecar; None if it does not answer."""
        try:
            answer = await self._http[member].get(path, timeout=timeout)
        except httpx.HTTPError:
            return None
        return answer.json() if answer.is_success else None

    def _order(self) -> Sequence[Member]:
        return sorted(self.members, key=lambda member: member is not self._last)

    # --- who is who

    async def roles(self) -> dict[Role, Member]:
        """As the fleet says itself; a role that nobody seems to have goes to the first of those that are left."""
        statuses: list[dict[str, Any]] = []
        for member in self._order():
            found = await self.once(member, "/v1/sidecars", 0.5)
            if found is not None:
                statuses = found
                break
        return assign_roles(statuses, self.members)


def assign_roles(statuses: Sequence[dict[str, Any]], members: Sequence[_M]) -> dict[Role, _M]:
    """From what `GET /v1/sidecars` says."""
    by_id = {member.broker_id: member for member in members}
    known = [one for one in statuses if one["id"] in by_id]
    head = next((by_id[one["id"]] for one in known if one["controller"]), members[0])
    leading = max(known, key=lambda one: int(one["leading_partitions"]), default=None)
    leader = by_id[leading["id"]] if leading is not None else members[-1]
    others = [member for member in members if member not in (head, leader)]
    return {Role.HEAD: head, Role.LEADER: leader, Role.OTHER: others[0] if others else leader}


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


def _message(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["message"])
    except (ValueError, KeyError, TypeError):
        return answer.text[:200]
