"""From the programs' sources to commands that run: jars by Maven, javac, go, npm; all of it kept, done once.

What a machine cannot build is left out with the reason, which stands in the report.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from lab.clusters import kafka_jars
from tests.clients.catalog import Library

PROGRAMS = Path(__file__).with_name("programs")
JAVA_OPTIONS = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
BUILD_TIMEOUT = 300.0
NPM_TIMEOUT = 3600.0  # node-rdkafka compiles librdkafka, one file after the other: 100 s of a core of its own
MINIMUM_NODE = 20


class CannotBuildError(Exception):
    """This machine lacks what a program needs; says what."""


class Builder:
    """Commands of the libraries' programs; what was built lies under `directory`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory.absolute()
        self._building = asyncio.Lock()  # two cases of one library would build it into the same directory
        self._failed: dict[Library, CannotBuildError] = {}

    async def build(self, libraries: Iterable[Library]) -> None:
        """Build the programs before brokers and clients compete for the processors; `command` says which failed."""
        for library in sorted(set(libraries), key=lambda one: one.name):
            with contextlib.suppress(CannotBuildError):
                await self.command(library)

    async def command(self, library: Library) -> list[str]:
        """The command that starts the library's program.

        Raises:
            CannotBuildError: Something is missing on this machine.
        """
        async with self._building:
            if library in self._failed:
                raise self._failed[library]
            try:
                return await self._command(library)
            except CannotBuildError as error:
                self._failed[library] = error
                raise

    async def _command(self, library: Library) -> list[str]:
        if library.kind == "python":
            return [sys.executable, "-m", f"tests.clients.programs.{library.program}"]
        if library.kind == "go":
            return [str(await self._go(library))]
        if library.kind == "node":
            return await self._node(library)
        return await self._java(library)

    async def _java(self, library: Library) -> list[str]:
        compiler = shutil.which("javac")
        if compiler is None:
            raise CannotBuildError("javac was not found: install a JDK, not only a Java runtime")
        artifact = "kafka-streams" if library.kind == "streams" else "kafka-clients"
        jars = await _jars(artifact, library.version)
        classpath = ":".join(str(jar) for jar in sorted(jars.glob("*.jar")))
        sources = [PROGRAMS / "java" / "Lines.java", PROGRAMS / "java" / f"{library.program}.java"]
        # Streams' sources stay in a directory without Client.java: their jars are other ones
        classes = self._directory / f"{artifact}-{library.version}-{_hash(sources)}"
        if not classes.exists():
            scratch = classes.with_suffix(".new")
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir(parents=True)
            await _run(
                [compiler, "-d", str(scratch), "-cp", classpath, *map(str, sources)],
                f"javac for {library.name}",
            )
            scratch.replace(classes)
        java = Path(compiler).with_name("java")
        logging = [
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=info",
            "-Dorg.slf4j.simpleLogger.showDateTime=true",
            "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
            "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.common.config.AbstractConfig=warn",
        ]
        return [str(java), *JAVA_OPTIONS, *logging, "-cp", f"{classes}:{classpath}", library.program]

    async def _go(self, library: Library) -> Path:
        """The module of the library's program, together with the lines that all of them share."""
        go = shutil.which("go") or next((p for p in ("/usr/local/go/bin/go",) if Path(p).exists()), None)
        if go is None:
            raise CannotBuildError("go was not found: install Go")
        sources = sorted({*(PROGRAMS / library.program).iterdir(), PROGRAMS / "go" / "lines.go"})
        binary = self._directory / f"{library.name}-{_hash(sources)}"
        if not binary.exists():
            self._directory.mkdir(parents=True, exist_ok=True)
            scratch = binary.with_suffix(".new")
            module = self._directory / f"{library.name}.module"
            shutil.rmtree(module, ignore_errors=True)
            module.mkdir()
            for source in sources:
                shutil.copy(source, module)
            command = [go, "build", "-C", str(module), "-buildvcs=false", "-o", str(scratch), "."]
            await _run(command, f"go build for {library.name}")
            shutil.rmtree(module)
            scratch.replace(binary)
        return binary

    async def _node(self, library: Library) -> list[str]:
        """The library's program and the lines that all of them share, in the package that has what its lock file names."""
        node, npm = shutil.which("node"), shutil.which("npm")
        if node is None or npm is None:
            raise CannotBuildError("node or npm was not found: install Node.js")
        version = (await _run([node, "--version"], "node --version")).strip()
        if int(version.removeprefix("v").split(".")[0]) < MINIMUM_NODE:
            raise CannotBuildError(f"Node.js is {version}: install {MINIMUM_NODE} or later")
        described = [PROGRAMS / library.program / name for name in ("package-lock.json", "package.json")]
        # an addon that was compiled for one Node.js does not load into another
        package = _cache() / f"{library.name}-{version}-{_hash(described)}"
        async with kafka_jars.locked(package.with_name(f".{package.name}.lock"), NPM_TIMEOUT):
            if not package.exists():
                await _install(node, npm, library, described, package)
            # below the package, where Node.js looks for what it installed
            sources = sorted({PROGRAMS / library.program / "main.mjs", PROGRAMS / "node" / "lines.mjs"})
            program = package / _hash(sources)
            if not program.exists():
                scratch = program.with_suffix(".new")
                scratch.mkdir(exist_ok=True)
                for source in sources:
                    shutil.copy(source, scratch)
                scratch.replace(program)
        return [node, str(program / "main.mjs")]


async def _install(node: str, npm: str, library: Library, described: Sequence[Path], package: Path) -> None:
    """What the lock file names, compiled where it has to be."""
    scratch = package.with_name(f"{package.name}.new")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    for file in described:
        shutil.copy(file, scratch)
    # node-gyp reads JOBS; librdkafka's part of node-rdkafka breaks with more than one
    command = ["env", "JOBS=1", npm, "ci", "--prefix", str(scratch)]
    command += ["--ignore-scripts=false", "--no-audit", "--no-fund"]
    home = Path(node).resolve().parents[1]
    if (home / "include" / "node" / "node.h").exists():
        command.append(f"--nodedir={home}")  # else node-gyp fetches the headers
    await _run(command, f"npm ci for {library.name}", NPM_TIMEOUT)
    scratch.replace(package)


async def _jars(artifact: str, version: str) -> Path:
    """The jars of a client library, fetched once into the same cache as the brokers'."""
    home = _cache() / f"{artifact}-{version}"
    async with kafka_jars.locked(home.parent / f".{home.name}.lock"):
        if not (home / "complete").exists():
            try:
                await kafka_jars.fetch_jars(artifact, version, home)
            except kafka_jars.DistributionError as error:
                raise CannotBuildError(str(error)) from error
            (home / "complete").touch()
    return home / "libs"


def _cache() -> Path:
    """What is kept for every checkout on this machine."""
    cache = kafka_jars.default_cache().absolute()
    cache.mkdir(parents=True, exist_ok=True)
    return cache


async def _run(command: Sequence[str], what: str, timeout: float = BUILD_TIMEOUT) -> str:
    try:
        return await kafka_jars.run_to_end(command, timeout, what)
    except kafka_jars.DistributionError as error:
        raise CannotBuildError(str(error)) from error


def _hash(sources: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for source in sources:
        digest.update(os.fsencode(source.name) + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()[:12]
