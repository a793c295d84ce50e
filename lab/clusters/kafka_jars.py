"""A Kafka distribution on this machine: jars through Maven, made ready once and kept in a cache directory.

Besides the jars it holds what makes nodes start quickly: an archive of loaded classes (made by one
training run) and the `bootstrap.checkpoint` files of formatted metadata directories, so that starting a
cluster runs no JVM but the nodes. Processes of a cluster live in kafka_cluster.py.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import signal
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.clusters.child_process import die_with_us, parent_environment, tail
from lab.clusters.ports import PortReservation
from wire.errors import LinkerError

DEFAULT_VERSION = "4.3.1"
SCALA = "2.13"
SLF4J_VERSION = "1.7.36"  # the slf4j that all of Kafka 3.9 to 4.3 compile against
MINIMUM_JAVA = 17
MAVEN_TIMEOUT = 600.0
TOOL_TIMEOUT = 60.0
LOCK_TIMEOUT = MAVEN_TIMEOUT + 120.0

# Quick to start is worth more here than quick in the long run: C1 only, one GC thread, and a heap that lets
# five nodes live beside the clients on a small machine.
BASE_JVM_OPTIONS = ("-Xms64m", "-XX:+UseSerialGC", "-Xshare:auto", "-Djava.awt.headless=true")
QUICK_START_OPTIONS = ("-XX:TieredStopAtLevel=1",)

LOGGING_OPTIONS = tuple(
    f"-Dorg.slf4j.simpleLogger.{key}={value}"
    for key, value in {
        "defaultLogLevel": "info",
        "showDateTime": "true",
        "dateTimeFormat": "HH:mm:ss.SSS",
        "showThreadName": "true",
        # each start would print every one of some 400 settings
        "log.org.apache.kafka.common.config.AbstractConfig": "warn",
    }.items()
)

POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>kafka-linker</groupId><artifactId>kafka-distribution</artifactId><version>{version}</version>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>{artifact}</artifactId><version>{version}</version></dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>{slf4j}</version></dependency>
  </dependencies>
</project>
"""

Progress = Callable[[str], None]


class DistributionError(LinkerError):
    """Kafka cannot be had or run on this machine; says what is missing."""


def random_uuid() -> str:
    """A cluster, directory or topic id the way Kafka prints it; never one that begins with a dash."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


def default_cache() -> Path:
    """Where distributions are kept unless the caller says otherwise."""
    override = os.environ.get("KAFKA_LINKER_CACHE")
    if override:
        return Path(override)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kafka-linker"


@dataclass(frozen=True, slots=True)
class KafkaDistribution:
    """Jars of one version, ready to run."""

    version: str
    home: Path
    java: str
    java_build: str

    @property
    def classpath(self) -> str:
        """Every jar by name and in one order: a class archive is only valid for exactly that path."""
        return ":".join(str(jar) for jar in sorted((self.home / "libs").glob("*.jar")))

    @property
    def class_archive(self) -> Path:
        """The class data archive that belongs to this Java build."""
        return self.home / f"classes-{self.java_build}.jsa"

    def command(
        self,
        main_class: str,
        *arguments: str,
        heap_mb: int = 350,
        quick_start: bool = True,
        jvm_options: Sequence[str] = (),
    ) -> list[str]:
        """The command line of one JVM."""
        archive = [f"-XX:SharedArchiveFile={self.class_archive}"] if self.class_archive.exists() else []
        return [
            self.java,
            f"-Xmx{heap_mb}m",
            *BASE_JVM_OPTIONS,
            *(QUICK_START_OPTIONS if quick_start else ()),
            *archive,
            *LOGGING_OPTIONS,
            *jvm_options,
            "-cp",
            self.classpath,
            main_class,
            *arguments,
        ]

    async def bootstrap_checkpoint(
        self,
        metadata_version: str | None = None,
        features: Mapping[str, int] | None = None,
        extra: Sequence[str] = (),
    ) -> bytes:
        """The `bootstrap.checkpoint` of `kafka-storage format`; it names no cluster: one run serves all."""
        arguments = [*(["--release-version", metadata_version] if metadata_version else [])]
        for feature, level in sorted((features or {}).items()):
            arguments += ["--feature", f"{feature}={level}"]
        arguments += extra
        key = hashlib.sha256("\n".join(arguments).encode()).hexdigest()[:16]
        path = self.home / f"bootstrap-{key}.checkpoint"
        with contextlib.suppress(FileNotFoundError):
            return path.read_bytes()
        async with locked(self.home.parent / f".{self.home.name}.lock"):
            content = await _format(self, arguments)
            _replace(path, content)
        return content


async def ensure_distribution(
    version: str = DEFAULT_VERSION, progress: Progress | None = None
) -> KafkaDistribution:
    """The distribution from the cache, fetched and prepared first if it is not there yet."""
    say = progress or (lambda _line: None)
    if re.fullmatch(r"[0-9]+(\.[0-9]+){2}", version) is None:
        raise DistributionError(f"{version!r} is no Kafka version: give one such as {DEFAULT_VERSION}")
    java = _find_java()
    java_build = await _java_build(java)
    home = default_cache().absolute() / f"kafka-{version}"
    dist = KafkaDistribution(version, home, java, java_build)
    ready = home / "complete"
    if ready.exists() and dist.class_archive.exists():
        return dist
    home.parent.mkdir(parents=True, exist_ok=True)
    async with locked(home.parent / f".{home.name}.lock"):
        if not ready.exists():
            say(f"fetching Kafka {version} by Maven into {home}")
            await fetch_jars(f"kafka_{SCALA}", version, home)
            _replace(ready, b"")
        if not dist.class_archive.exists():
            say(f"preparing Kafka {version} for quick starts")
            await _train(dist)
    return dist


def _find_java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if not java or not Path(java).exists():
        raise DistributionError("java was not found: install Java 17 or 21, or set JAVA_HOME")
    return java


async def _java_build(java: str) -> str:
    """The text that tells one Java from another; the Java has to be new enough."""
    text = await run_to_end([java, "-version"], TOOL_TIMEOUT, "java -version")
    match = re.search(r'version "(?:1\.)?(\d+)', text)
    if match is None:
        raise DistributionError(
            f"cannot read a version out of what `{java} -version` says: {text.strip()[:200]}"
        )
    if int(match[1]) < MINIMUM_JAVA:
        raise DistributionError(
            f"{java} is Java {match[1]}: Kafka needs Java {MINIMUM_JAVA} at least; install Java 17 or 21, or set JAVA_HOME"
        )
    return hashlib.sha256(text.encode()).hexdigest()[:12]


async def fetch_jars(artifact: str, version: str, home: Path) -> None:
    """By Maven: one of Kafka's jars and all that it needs, into `libs` of a directory that is made anew."""
    maven = shutil.which("mvn")
    if maven is None:
        raise DistributionError(
            f"mvn was not found: install Maven; it is needed once, to fetch {artifact} {version}"
        )
    if home.exists():
        shutil.rmtree(home)  # half of an earlier attempt
    home.mkdir(parents=True)
    pom = home / "pom.xml"
    pom.write_text(POM.format(artifact=artifact, version=version, slf4j=SLF4J_VERSION))
    libs = home / "libs"
    command = [maven, "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", "-DincludeScope=runtime"]
    await run_to_end(
        [*command, f"-DoutputDirectory={libs}"], MAVEN_TIMEOUT, f"fetching {artifact} {version} by Maven"
    )
    if not (libs / f"{artifact}-{version}.jar").exists():
        raise DistributionError(f"Maven said it was done, but {libs} holds no {artifact}-{version}.jar")


async def _train(dist: KafkaDistribution) -> None:
    """Start one node and stop it cleanly, with the JVM writing down the classes that it loaded."""
    checkpoint = await _format(dist, ())
    with (
        tempfile.TemporaryDirectory(dir=dist.home) as scratch,
        PortReservation() as broker,
        PortReservation() as controller,
    ):
        data = Path(scratch) / "data"
        data.mkdir()
        (data / "meta.properties").write_text(
            f"version=1\nnode.id=1\ncluster.id={random_uuid()}\ndirectory.id={random_uuid()}\n"
        )
        (data / "bootstrap.checkpoint").write_bytes(checkpoint)
        config = Path(scratch) / "server.properties"
        config.write_text(
            f"process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@127.0.0.1:{controller.port}\n"
            f"listeners=PLAINTEXT://127.0.0.1:{broker.port},CONTROLLER://127.0.0.1:{controller.port}\n"
            f"controller.listener.names=CONTROLLER\nlog.dirs={data}\nlog.cleaner.dedupe.buffer.size=4194304\n"
        )
        archive = Path(scratch) / "classes.jsa"
        command = dist.command(
            "kafka.Kafka", str(config), jvm_options=[f"-XX:ArchiveClassesAtExit={archive}"]
        )
        log = Path(scratch) / "log"
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *die_with_us(command),
                stdout=output,
                stderr=output,
                env=parent_environment(),
                start_new_session=True,
            )
        try:
            async with asyncio.timeout(TOOL_TIMEOUT):
                while b"Kafka Server started" not in log.read_bytes():
                    if process.returncode is not None:
                        raise DistributionError(f"Kafka {dist.version} does not start: {tail(log)}")
                    await asyncio.sleep(0.05)
                process.send_signal(signal.SIGTERM)
                await process.wait()
        except TimeoutError:
            raise DistributionError(
                f"Kafka {dist.version} did not start within {TOOL_TIMEOUT:.0f} s: {tail(log)}"
            ) from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if not archive.exists():
            raise DistributionError(f"{dist.java} wrote no class archive: {tail(log)}")
        archive.replace(dist.class_archive)


async def _format(dist: KafkaDistribution, arguments: Sequence[str]) -> bytes:
    """The `bootstrap.checkpoint` of a metadata directory formatted with these arguments."""
    with tempfile.TemporaryDirectory(dir=dist.home) as scratch:
        data = Path(scratch) / "data"
        config = Path(scratch) / "server.properties"
        config.write_text(
            "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@127.0.0.1:1\n"
            "listeners=PLAINTEXT://127.0.0.1:2,CONTROLLER://127.0.0.1:1\n"
            f"controller.listener.names=CONTROLLER\nlog.dirs={data}\n"
        )
        tool = dist.command(
            "kafka.tools.StorageTool", "format", "-t", random_uuid(), "-c", str(config), *arguments
        )
        await run_to_end(tool, TOOL_TIMEOUT, f"kafka-storage format for Kafka {dist.version}")
        return (data / "bootstrap.checkpoint").read_bytes()


def _replace(path: Path, content: bytes) -> None:
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_bytes(content)
    scratch.replace(path)


async def run_to_end(command: Sequence[str], timeout: float, what: str) -> str:
    """The command's output; DistributionError if it failed or was not done in time."""
    process = await asyncio.create_subprocess_exec(
        *die_with_us(command),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**parent_environment(), "LC_ALL": "C"},  # words and numbers as they are read here
    )
    try:
        async with asyncio.timeout(timeout):
            output, _ = await process.communicate()
    except TimeoutError:
        raise DistributionError(f"{what}: not done within {timeout:.0f} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    text = output.decode(errors="replace")
    if process.returncode != 0:
        raise DistributionError(f"{what} failed (exit {process.returncode}): {text.strip()[-1500:]}")
    return text


@contextlib.asynccontextmanager
async def locked(path: Path, patience: float = LOCK_TIMEOUT) -> AsyncIterator[None]:
    """One process at a time; the kernel frees the lock of one that dies."""
    with path.open("w") as handle:
        try:
            async with asyncio.timeout(patience):
                while True:
                    try:
                        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        break
                    except BlockingIOError:
                        await asyncio.sleep(0.1)
        except TimeoutError:
            raise DistributionError(f"another process holds {path} for more than {patience:.0f} s") from None
        yield
