"""The sidecar as a child process, and the command line as its operator uses it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import yaml

from admin.client import AdminClient
from lab.clusters.child_process import ChildError, ChildProcess
from lab.clusters.ports import PortReservation
from linker.process.children import die_with_us, parent_environment, python_path
from wire.errors import LinkerError

READY_TIMEOUT = 60.0
COMMAND_TIMEOUT = 180.0
NOT_IN_A_SIDECAR = Path(__file__).parent / "not_in_a_sidecar"


class CommandError(LinkerError):
    """A command of `linker` failed; its one line says why."""


class CommandResult(NamedTuple):
    """The result of a command of `linker`."""

    exit_code: int
    output: str
    errors: str

    def json(self) -> Any:
        """The answer of a command that was run with `-o json`."""
        return json.loads(self.output)

    def succeeded(self, arguments: Sequence[str]) -> CommandResult:
        """This result; a CommandError that says why if the command failed."""
        if self.exit_code != 0:
            why = (self.errors.strip() or self.output.strip())[-1500:]
            raise CommandError(f"linker {' '.join(arguments)} failed with exit code {self.exit_code}: {why}")
        return self


def sidecar_path() -> dict[str, str]:
    """Where a sidecar and its commands find this very package, and miss what is for tests only."""
    path = python_path()
    return {**path, "PYTHONPATH": os.pathsep.join([str(NOT_IN_A_SIDECAR), path["PYTHONPATH"]])}


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarSpec:
    """The sidecar's configuration file, as far as tests vary it."""

    target_bootstrap: str
    broker_id: int = 900
    listeners: Mapping[str, str] = field(
        default_factory=lambda: {"PLAINTEXT": "PLAINTEXT"}
    )  # name -> protocol
    sidecar: Mapping[str, Any] = field(default_factory=dict)  # further keys of each section
    target: Mapping[str, Any] = field(default_factory=dict)
    # By link; the listener, whose name is `protocol`, is at `address("source LINK")`, unless the section has others.
    sources: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    store: Mapping[str, Any] = field(default_factory=dict)
    fleet: Mapping[str, Any] = field(default_factory=dict)
    # A test that promotes often does not start Spark each time; one that wants the proof says so itself.
    validation: Mapping[str, Any] = field(default_factory=lambda: {"policy": "skip"})
    # Listener name -> host:port that others are told, where it is not the one that is bound (a proxy in front).
    advertised: Mapping[str, str] = field(default_factory=dict)
    log_level: str = "info"


class SidecarProcess(ChildProcess):
    """`async with SidecarProcess(spec, directory) as sidecar:` a sidecar that is ready, gone with the block.

    Ports and state directory stay the same over restarts.
    """

    def __init__(
        self, spec: SidecarSpec, directory: Path, *, python: Sequence[str] = (sys.executable,)
    ) -> None:
        super().__init__(f"sidecar {spec.broker_id}", directory / "sidecar.log")
        self.spec = spec
        self.directory = directory
        self._python = list(python)
        self._ports: dict[str, PortReservation] = {}
        try:
            for listener in ("admin", *spec.listeners, *(f"source {link}" for link in spec.sources)):
                self._ports[listener] = PortReservation()
        except OSError:
            self.release_ports()
            raise

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self._ports['admin'].port}"

    def address(self, listener: str | None = None) -> str:
        """host:port of a client listener; of the first one if not named."""
        return f"127.0.0.1:{self._ports[listener or next(iter(self.spec.listeners))].port}"

    @property
    def config_file(self) -> Path:
        return self.directory / "linker.yaml"

    def client(self) -> AdminClient:
        """A client of the admin API; blocking, so use it in a thread."""
        return AdminClient(self.admin_url)

    def authorize(self, request: httpx.Request) -> httpx.Request:
        """`auth` of an HTTP client that asks the admin API without `client`."""
        with contextlib.suppress(OSError):  # it is written when the API comes up
            token = (self.directory / "state" / "admin-token").read_text(encoding="ascii").strip()
            request.headers["authorization"] = f"Bearer {token}"
        return request

    def write_config(self) -> None:
        """The configuration file, as a person would write it."""
        spec = self.spec
        protocols = [f"{name}:{protocol}" for name, protocol in spec.listeners.items() if name != protocol]
        config = {
            "sidecar": {
                "broker.id": spec.broker_id,
                "listeners": [f"{name}://{self.address(name)}" for name in spec.listeners],
                **self._advertised(),
                **({"listener.security.protocol.map": ",".join(protocols)} if protocols else {}),
                "state.dir": "state",
                "admin.listen": self.admin_url.removeprefix("http://"),
                **spec.sidecar,
            },
            "target": {"bootstrap.servers": spec.target_bootstrap, **spec.target},
            **({"sources": self._sources()} if spec.sources else {}),
            **({"store": dict(spec.store)} if spec.store else {}),
            **({"fleet": dict(spec.fleet)} if spec.fleet else {}),
            **({"validation": dict(spec.validation)} if spec.validation else {}),
            "log": {"level": spec.log_level},
        }
        self.directory.mkdir(parents=True, exist_ok=True)
        self.config_file.write_text(yaml.safe_dump(config, sort_keys=False))

    def _sources(self) -> dict[str, dict[str, Any]]:
        return {
            link: {
                "listeners": [f"{section.get('protocol', 'PLAINTEXT')}://{self.address(f'source {link}')}"],
                **{key: one for key, one in section.items() if key != "protocol"},
            }
            for link, section in self.spec.sources.items()
        }

    def _advertised(self) -> dict[str, list[str]]:
        told = self.spec.advertised
        if not told:
            return {}
        return {
            "advertised.listeners": [
                f"{name}://{told.get(name) or self.address(name)}" for name in self.spec.listeners
            ]
        }

    async def start(self, timeout: float = READY_TIMEOUT) -> None:
        """Start it and wait until it is a broker of the target cluster."""
        self.launch()
        await self.wait_ready(timeout)

    def launch(self) -> None:
        """Start the process without waiting for it to be ready."""
        if not self.config_file.exists():
            self.write_config()
        command = [*self._python, "-m", "linker", "run", "--config", str(self.config_file)]
        self._launch(command, self.directory, sidecar_path())

    async def wait_ready(self, timeout: float = READY_TIMEOUT) -> None:
        """Wait until `/readyz` says so."""
        deadline = time.monotonic() + timeout
        async with httpx.AsyncClient(base_url=self.admin_url, timeout=2.0, trust_env=False) as http:
            while True:
                try:
                    if (await http.get("/readyz")).status_code == 200:
                        return
                except httpx.HTTPError:
                    pass  # it does not listen yet
                await self._nap("starting", deadline, timeout)

    async def restart(self, timeout: float = READY_TIMEOUT) -> None:
        """Stop in good order and start again."""
        await self.stop()
        await self.start(timeout)

    async def run(self, *arguments: str, timeout: float = COMMAND_TIMEOUT) -> CommandResult:
        """Run `linker ARGUMENTS` against this sidecar, whatever it exits with."""
        environment = {
            **parent_environment(),
            **sidecar_path(),
            "LINKER_ADMIN_URL": self.admin_url,
            "NO_COLOR": "1",
        }
        process = await asyncio.create_subprocess_exec(
            *die_with_us([*self._python, "-m", "linker", *arguments]),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
        )
        try:
            async with asyncio.timeout(timeout):
                output, errors = await process.communicate()
        except TimeoutError:
            raise CommandError(f"linker {' '.join(arguments)} took longer than {timeout:.0f} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        code = process.returncode if process.returncode is not None else -1
        return CommandResult(code, output.decode(errors="replace"), errors.decode(errors="replace"))

    async def linker(self, *arguments: str, timeout: float = COMMAND_TIMEOUT) -> CommandResult:
        """Run `linker ARGUMENTS`, which has to succeed."""
        return (await self.run(*arguments, timeout=timeout)).succeeded(arguments)

    async def close(self) -> None:
        """End the process if it still runs, and give the ports back."""
        if self.running:
            await self.kill()
        self.release_ports()

    def release_ports(self) -> None:
        for reservation in self._ports.values():
            reservation.release()

    async def __aenter__(self) -> SidecarProcess:
        try:
            await self.start()
        except BaseException:
            await asyncio.shield(self.close())
            raise
        return self

    async def __aexit__(self, *_error: object) -> None:
        await asyncio.shield(self.close())


__all__ = ["ChildError", "CommandError", "CommandResult", "SidecarProcess", "SidecarSpec"]
