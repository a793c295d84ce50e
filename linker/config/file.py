"""Reading the configuration file: YAML, secrets resolved, every mistake one line that names the key."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from controller.errors import InvalidName
from controller.keys import check_link_name
from linker.config.check import ValidationConfig
from linker.config.listeners import ListenerSection
from linker.config.model import Config, ConfigError, LogConfig, SidecarConfig, TargetConfig
from linker.config.source_section import CONTROLLER_OVERRIDES, SourceConfig
from linker.config.store_section import STORE_SSL_PROPERTIES, FleetConfig, Section, StoreConfig
from wire.client.properties import (
    LISTENER_PROPERTIES,
    SECURITY_PROPERTIES,
    TARGET_PROPERTIES,
    PropertyError,
    check_client_properties,
    nearest,
)
from wire.client.secrets import SecretError, hiding_values, resolve, resolve_properties

MAX_CONFIG_BYTES = 1 << 20
_S = TypeVar("_S", bound=Section)

SECTIONS: dict[str, type[Section]] = {
    "sidecar": SidecarConfig,
    "target": TargetConfig,
    "sources": SourceConfig,
    "store": StoreConfig,
    "fleet": FleetConfig,
    "validation": ValidationConfig,
    "log": LogConfig,
}


def section_keys(section: str) -> set[str]:
    """The keys that a section may have, patterns aside."""
    if section == "target":
        overrides = {f"controller.{key}" for key in SECURITY_PROPERTIES}
        return set(TARGET_PROPERTIES) | overrides | {"controller.quorum.bootstrap.servers"}
    found = {
        field.alias or name for name, field in SECTIONS[section].model_fields.items() if not field.exclude
    }
    return found | CONTROLLER_OVERRIDES if section == "sources" else found


def load_config(path: Path) -> Config:
    """Read and check the file; every error is one line that names the file."""
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise ConfigError(f"{path} is larger than {MAX_CONFIG_BYTES} bytes")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read the config file {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text") from error
    try:
        return parse_config(text, base=path.parent)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def parse_config(text: str, *, base: Path, environ: Mapping[str, str] | None = None) -> Config:
    """Config of a YAML text; relative paths in it are relative to `base`."""
    document = _load_yaml(text)
    for name in document:
        if name not in SECTIONS:
            raise ConfigError(f"unknown key {name}{nearest(name, SECTIONS)}")
    for name in ("sidecar", "target"):
        if name not in document:
            raise ConfigError(f"section {name} is missing")
    try:
        target = _target(_scalars("target", document["target"]), environ)
        sidecar = _sidecar(_section("sidecar", document["sidecar"], environ), base)
        sources = _sources(document.get("sources"), environ)
        store = _store(_section("store", document.get("store"), environ))
        fleet = _model("fleet", FleetConfig, _section("fleet", document.get("fleet"), environ))
        validation = _validation(_section("validation", document.get("validation"), environ), base)
        log = _model("log", LogConfig, _section("log", document.get("log"), environ))
    except (PropertyError, SecretError) as error:
        raise ConfigError(str(error)) from error
    if store.path is not None:
        store = store.model_copy(update={"path": base / store.path})
    try:
        return Config(
            sidecar=sidecar,
            target=target,
            sources=sources,
            store=store,
            fleet=fleet,
            validation=validation,
            log=log,
        )
    except ValidationError as error:
        raise ConfigError(error.errors()[0]["msg"].removeprefix("Value error, ")) from error


def _target(raw: Mapping[str, str], environ: Mapping[str, str] | None) -> TargetConfig:
    known = section_keys("target")
    if "client.rack" in raw:
        raise ConfigError("target.client.rack is not known: the sidecar has one rack, sidecar.rack")
    for key in raw:
        if key not in known:
            raise ConfigError(f"unknown key target.{key}{nearest(key, known)}")
    properties = dict(raw)
    quorum = properties.pop("controller.quorum.bootstrap.servers", None)
    try:
        resolved = resolve_properties(properties, environ=environ)
        with hiding_values(properties):
            check_client_properties(
                {key: value for key, value in resolved.items() if not key.startswith("controller.")}
            )
    except (PropertyError, SecretError) as error:
        raise ConfigError(f"target: {error}") from error
    # Addresses now, so not secret; they may be built from the environment, and are wanted as they are in error lines.
    properties["bootstrap.servers"] = resolve(
        properties["bootstrap.servers"], key="bootstrap.servers", environ=environ
    )
    target = TargetConfig(
        properties=properties,
        controller_quorum_bootstrap_servers=quorum and resolve(quorum, key="target", environ=environ),
    )
    with hiding_values({} if quorum is None else {"controller.quorum.bootstrap.servers": quorum}):
        target.controller_bootstrap_servers()
    return target


def _sidecar(raw: dict[str, Any], base: Path) -> SidecarConfig:
    certificates = _certificates("sidecar", raw)
    sidecar = _model("sidecar", SidecarConfig, raw)
    _check_listeners("sidecar", certificates, sidecar, {"CONTROL"})
    return sidecar.model_copy(
        update={
            "state_dir": base / sidecar.state_dir,
            "links_dir": base / sidecar.links_dir,
            "exports_dir": None if sidecar.exports_dir is None else base / sidecar.exports_dir,
            "listener_ssl": certificates,
        }
    )


def _sources(raw: object, environ: Mapping[str, str] | None) -> dict[str, SourceConfig]:
    """A section for each link. Secrets towards its controllers stay references."""
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise ConfigError(
            "sources must hold a section for each link: its name, and below it broker.id and listeners"
        )
    return {str(link): _source(f"sources.{link}", str(link), one, environ) for link, one in raw.items()}


def _source(where: str, link: str, raw: object, environ: Mapping[str, str] | None) -> SourceConfig:
    try:
        check_link_name(link)
    except InvalidName as error:
        raise ConfigError(f"{where}: {error}") from error
    given = raw if isinstance(raw, dict) else {}
    overrides = _scalars(where, {key: one for key, one in given.items() if key in CONTROLLER_OVERRIDES})
    section = _section(
        where, {key: one for key, one in given.items() if key not in overrides} if given else raw, environ
    )
    certificates = _certificates(where, section)
    with _about(where):
        source = _model(where, SourceConfig, section)
        _check_listeners(where, certificates, source, set())
        resolve_properties(overrides, environ=environ)
        source.controller_bootstrap_servers()
    return source.model_copy(update={"listener_ssl": certificates, "overrides": overrides})


@contextlib.contextmanager
def _about(where: str) -> Iterator[None]:
    try:
        yield
    except (PropertyError, SecretError) as error:
        raise ConfigError(f"{where}: {error}") from error


def _certificates(where: str, raw: dict[str, Any]) -> dict[str, str]:
    """The ssl.* properties of listeners, taken out of a section."""
    found = {}
    for key in list(raw):
        if key.startswith(("ssl.", "listener.name.")):
            name = key if key.startswith("ssl.") else key.removeprefix("listener.name.").partition(".")[2]
            if name not in LISTENER_PROPERTIES:
                raise ConfigError(f"unknown key {where}.{key}{nearest(name, LISTENER_PROPERTIES)}")
            found[key] = str(raw.pop(key))
    return found


def _check_listeners(
    where: str, certificates: Mapping[str, str], section: ListenerSection, others: set[str]
) -> None:
    for key in certificates:
        if key.startswith("listener.name."):
            name = key.split(".")[2]
            if name.upper() not in {*others, *(one.name for one in section.client_listeners())}:
                raise ConfigError(f"{where}.{key}: there is no listener {name.upper()}")


def _store(raw: dict[str, Any]) -> StoreConfig:
    tls = {}
    for key in list(raw):
        if key.startswith("ssl."):
            if key not in STORE_SSL_PROPERTIES:
                raise ConfigError(f"unknown key store.{key}{nearest(key, STORE_SSL_PROPERTIES)}")
            tls[key] = str(raw.pop(key))
    store = _model("store", StoreConfig, raw)
    if tls and store.tls_properties() is None:
        raise ConfigError(f"store.{next(iter(tls))} needs type zookeeper with security.protocol SSL")
    return store.model_copy(update={"ssl": tls})


def _validation(raw: dict[str, Any], base: Path) -> ValidationConfig:
    validation = _model("validation", ValidationConfig, raw)
    directory = validation.evidence_dir
    return (
        validation if directory is None else validation.model_copy(update={"evidence_dir": base / directory})
    )


def _model(name: str, model: type[_S], raw: Mapping[str, Any]) -> _S:
    known = section_keys(name.partition(".")[0])
    for key in raw:
        if key not in known:
            raise ConfigError(f"unknown key {name}.{key}{nearest(key, known)}")
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join([name, *(str(part) for part in first["loc"])])
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "missing":
            message = "is missing"
        raise ConfigError(f"{where}: {message}" if first["loc"] else f"{name}.{message}") from error


def _section(name: str, raw: object, environ: Mapping[str, str] | None) -> dict[str, Any]:
    """A section with every reference in its strings resolved."""
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise ConfigError(f"{name} must be a section of keys and values")

    def walk(value: object, key: str) -> object:
        if isinstance(value, str):
            return resolve(value, key=key, environ=environ)
        if isinstance(value, list):
            return [walk(item, key) for item in value]
        if isinstance(value, dict):
            return {str(name): walk(item, f"{key}.{name}") for name, item in value.items()}
        return value

    return {str(key): walk(value, f"{name}.{key}") for key, value in raw.items()}


def _scalars(name: str, raw: object) -> dict[str, str]:
    """A section of Kafka properties: values become the strings that they are in Kafka's own files."""
    if not isinstance(raw, dict):
        raise ConfigError(f"{name} must be a section of keys and values")
    properties = {}
    for key, value in raw.items():
        if isinstance(value, bool):
            properties[str(key)] = "true" if value else "false"
        elif isinstance(value, list):
            properties[str(key)] = ",".join(str(item) for item in value)
        elif isinstance(value, (str, int, float)):
            properties[str(key)] = str(value)
        elif value is None:
            properties[str(key)] = ""
        else:
            raise ConfigError(f"{name}.{key} must be a plain value; keys are written dotted, on one line")
    return properties


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice instead of keeping the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if key is None:
                raise yaml.constructor.ConstructorError(
                    None, None, "a key must be plain text", key_node.start_mark
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key} is given twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def _load_yaml(text: str) -> dict[str, Any]:
    try:
        document = yaml.load(text, Loader=_Loader)  # _Loader is a SafeLoader
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark is not None else ""
        raise ConfigError(f"not valid YAML: {line}{error.problem or error.context}") from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ConfigError(
            f"not valid YAML: {str(error).splitlines()[0] if str(error) else 'nested too deep'}"
        ) from error
    if not isinstance(document, dict):
        raise ConfigError("not a configuration: the file must hold sections (sidecar, target, ...)")
    return {str(key): value for key, value in document.items()}
