"""Requests from plain dicts, responses as kio's schema entities. Off the hot path only.

Callers give the fields that they care about. Fields that a version lacks are dropped, and fields that are left out get the
schema's default or a neutral value, so one dict serves every version. A name that *no* version knows is a bug of ours.
"""

from __future__ import annotations

import datetime
import functools
import io
import struct
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

from kio.index import load_entity_schema
from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_writer
from kio.static.constants import EntityType

from wire.errors import LocalProtocolError, MalformedFrame
from wire.frames import alter_isr, config_messages, group_messages, partition_messages
from wire.frames.primitives import string
from wire.frames.request_header import RequestHeader
from wire.frames.types import Buffer
from wire.schema import fast_messages
from wire.schema.entity_fields import field_default, unwrap_annotation
from wire.schema.entity_reader import error_code, read_entity

_API_NAMES: dict[int, str] = dict(api_key_map)
_API_KEYS: dict[str, int] = {name: key for key, name in _API_NAMES.items()}
_VERSIONS: dict[str, tuple[int, int]] = {
    name: (min(schema_name_map[name]), max(schema_name_map[name])) for name in _API_KEYS
}

# Decoding takes about a second per 4 MiB of small structs, and meanwhile no connection is served. No legitimate request off
# the hot path comes near: 100,000 partitions in one ListOffsets are 2 MiB.
MAX_DECODED_REQUEST = 4 * 1024 * 1024

_FAST_MESSAGES: fast_messages.Messages = {
    **alter_isr.MESSAGES,
    **config_messages.MESSAGES,
    **group_messages.MESSAGES,
    **partition_messages.MESSAGES,
}
for _api, _version in _FAST_MESSAGES:  # also versions that kio has no more
    _VERSIONS[_api] = (min(_VERSIONS[_api][0], _version), _VERSIONS[_api][1])
_REQUEST_HEAD = struct.Struct(">hhi")
_NO_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def api_key(api: str) -> int:
    """The api key of kio's snake-case name."""
    try:
        return _API_KEYS[api]
    except KeyError:
        raise LocalProtocolError("no such api", api=api) from None


def api_name(key: int) -> str:
    """The snake-case name of an api key; MalformedFrame for an unknown key."""
    try:
        return _API_NAMES[key]
    except KeyError:
        raise MalformedFrame(f"unknown api key {key}") from None


def min_version(api: str) -> int:
    api_key(api)
    return _VERSIONS[api][0]


def max_version(api: str) -> int:
    """The newest version of the api this codec speaks."""
    api_key(api)
    return _VERSIONS[api][1]


def encode_request(
    api: str,
    version: int,
    fields: Mapping[str, object],
    *,
    correlation_id: int,
    client_id: str | None,
) -> bytes:
    """A request without its size prefix."""
    body = fast_messages.encode_body(_FAST_MESSAGES, api, version, fields)
    if body is not None:
        head = _REQUEST_HEAD.pack(api_key(api), version, correlation_id)
        return b"".join((head, string(client_id), b"\0", body))
    entity_type = _schema(api, version, EntityType.request)
    header_type = entity_type.__header_schema__
    out = io.BytesIO()
    header = {
        "request_api_key": api_key(api),
        "request_api_version": version,
        "correlation_id": correlation_id,
        "client_id": client_id,
    }
    entity_writer(header_type)(out, _build(header_type, header, "request_header"))
    _write(out, entity_type, fields, api, version)
    return out.getvalue()


def encode_response(api: str, version: int, correlation_id: int, fields: Mapping[str, object]) -> bytes:
    """A response without its size prefix."""
    entity_type = _schema(api, version, EntityType.response)
    header_type = entity_type.__header_schema__
    out = io.BytesIO()
    entity_writer(header_type)(out, header_type(correlation_id=correlation_id))
    _write(out, entity_type, fields, api, version)
    return out.getvalue()


def decode_response(api: str, version: int, frame: Buffer, *, whole: bool = False) -> Any:
    """The entity of a response frame that starts at its correlation id. `whole`: with all its fields, to be passed on."""
    # Off the hot path a copy is cheap, and the entity must not keep the receive buffer alive.
    data = bytes(frame)
    answer = None if whole else fast_messages.decode_answer(_FAST_MESSAGES, api, version, data)
    if answer is not None:
        return answer
    entity_type = _schema(api, version, EntityType.response)
    _, offset = _read(entity_type.__header_schema__, data, 0, api, version)
    return _read_all(entity_type, data, offset, api, version)


def decode_request(frame: Buffer) -> tuple[RequestHeader, Any]:
    """Header and entity of a request frame that starts at its api key."""
    if len(frame) > MAX_DECODED_REQUEST:
        raise MalformedFrame(f"a request of {len(frame)} bytes, at most {MAX_DECODED_REQUEST} are decoded")
    data = bytes(frame)
    if len(data) < _REQUEST_HEAD.size:
        raise MalformedFrame("a request shorter than its header")
    key, version, _ = _REQUEST_HEAD.unpack_from(data)
    api = api_name(key)
    low, high = _VERSIONS[api]
    if not low <= version <= high:
        raise MalformedFrame("a version nobody knows", api=api, version=version)
    entity_type = _schema(api, version, EntityType.request)
    raw, offset = _read(entity_type.__header_schema__, data, 0, api, version)
    header = RequestHeader(raw.request_api_key, raw.request_api_version, raw.correlation_id, raw.client_id)
    return header, _read_all(entity_type, data, offset, api, version)


@functools.cache
def _schema(api: str, version: int, kind: EntityType) -> Any:
    api_key(api)
    if version not in schema_name_map[api]:
        raise LocalProtocolError("no such version", api=api, version=version)
    return load_entity_schema(api, version, kind)  # type: ignore[arg-type]  # kind is request or response


def _write(out: io.BytesIO, entity_type: Any, values: Mapping[str, object], api: str, version: int) -> None:
    entity = _build(entity_type, values, api)
    try:
        entity_writer(entity_type)(out, entity)
    except LocalProtocolError:
        raise
    except Exception as error:
        raise LocalProtocolError(f"cannot encode: {error!r}", api=api, version=version) from error


def _read(entity_type: Any, data: bytes, offset: int, api: str, version: int) -> tuple[Any, int]:
    try:
        return read_entity(entity_type, data, offset)
    except MalformedFrame as error:
        raise MalformedFrame(error.message, api=api, version=version) from error


def _read_all(entity_type: Any, data: bytes, offset: int, api: str, version: int) -> Any:
    entity, end = _read(entity_type, data, offset, api, version)
    if end != len(data):
        raise MalformedFrame(f"{len(data) - end} bytes follow the message", api=api, version=version)
    return entity


# --- dicts to entities --------------------------------------------------------------------------------------


class _Field(NamedTuple):
    name: str
    convert: Callable[[Any], Any]
    default: Any


def _build(entity_type: Any, values: Mapping[str, object], api: str) -> Any:
    plan = _plan(entity_type)
    arguments: dict[str, Any] = {}
    used = 0
    for field in plan:
        if field.name in values:
            given = field.name
        elif f"{field.name}_ms" in values:  # Kafka's own name: kio renames timeout_ms to timeout
            given = f"{field.name}_ms"
        else:
            arguments[field.name] = field.default
            continue
        used += 1
        try:
            arguments[field.name] = field.convert(values[given])
        except LocalProtocolError:
            raise
        except Exception as error:
            raise LocalProtocolError(f"field {given}: {error!r}", api=api) from error
    if used != len(values):
        unknown = _unknown_name(api, entity_type, tuple(name for name in values if name not in arguments))
        if unknown is not None:
            raise LocalProtocolError(
                f"{entity_type.__name__} has no field {unknown!r} in any version", api=api
            )
    try:
        return entity_type(**arguments)
    except Exception as error:
        raise LocalProtocolError(f"{entity_type.__name__}: {error!r}", api=api) from error


@functools.cache
def _plan(entity_type: Any) -> tuple[_Field, ...]:
    return tuple(_plan_field(field) for field in fields(entity_type))


def _plan_field(field: Any) -> _Field:
    inner, array, nullable = unwrap_annotation(field.type)
    kafka_type = field.metadata.get("kafka_type")
    convert: Callable[[Any], Any]
    if kafka_type is None:
        convert = functools.partial(_convert_entity, inner)
    else:
        convert = _PRIMITIVES.get(kafka_type, _identity)
    if array:
        convert = functools.partial(_convert_array, convert)
    if nullable:
        convert = functools.partial(_convert_nullable, convert)
    return _Field(field.name, convert, field_default(field))


def _identity(value: Any) -> Any:
    return value


def _convert_entity(entity_type: Any, value: Any) -> Any:
    if isinstance(value, Mapping):
        return _build(entity_type, value, _api_of(entity_type))
    return value


def _convert_array(convert: Callable[[Any], Any], value: Any) -> tuple[Any, ...]:
    return tuple(convert(item) for item in value)


def _convert_nullable(convert: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else convert(value)


def _convert_milliseconds(value: Any) -> Any:
    return value if isinstance(value, datetime.timedelta) else datetime.timedelta(milliseconds=value)


def _convert_timestamp(value: Any) -> Any:
    if isinstance(value, int):
        return None if value == -1 else _NO_EPOCH + datetime.timedelta(milliseconds=value)
    return value


def _convert_uuid(value: Any) -> uuid.UUID | None:
    if value is None or isinstance(value, uuid.UUID):
        return value
    raw = bytes(value)
    return uuid.UUID(bytes=raw) if any(raw) else None


def _convert_error(value: Any) -> ErrorCode:
    return error_code(int(value))


def _convert_bytes(value: Any) -> bytes:
    return bytes(value)


_PRIMITIVES: dict[str, Callable[[Any], Any]] = {
    "timedelta_i32": _convert_milliseconds,
    "timedelta_i64": _convert_milliseconds,
    "datetime_i64": _convert_timestamp,
    "uuid": _convert_uuid,
    "error_code": _convert_error,
    "bytes": _convert_bytes,
    "records": _convert_bytes,
}


def _api_of(entity_type: Any) -> str:
    return _API_NAMES.get(entity_type.__api_key__, "request_header")


@functools.cache
def _unknown_name(api: str, entity_type: Any, absent: tuple[str, ...]) -> str | None:
    """One of the names that this version lacks and no other version has.

    The newest and the oldest version are tried first, because together they know nearly all names: the others then need not
    be loaded (megabytes, for Fetch).
    """
    versions = sorted(schema_name_map[api]) if api in _API_KEYS else []
    unknown = _without(absent, _names(entity_type))
    for version in [*versions[-1:], *versions[:-1]]:
        if not unknown:
            return None
        unknown = _without(unknown, _known_names(api, version, entity_type.__name__))
    return unknown[0] if unknown else None


def _without(names: Sequence[str], known: Collection[str]) -> list[str]:
    return [name for name in names if name not in known and name.removesuffix("_ms") not in known]


@functools.cache
def _known_names(api: str, version: int, class_name: str) -> frozenset[str]:
    """The field names a struct has in one version; nested structs are looked up on both sides of the exchange."""
    names: set[str] = set()
    for kind in (EntityType.request, EntityType.response):
        root = _schema(api, version, kind)
        module = __import__(root.__module__, fromlist=["_"])
        entity_type = getattr(module, class_name, None)
        if entity_type is not None:
            names |= _names(entity_type)
    return frozenset(names)


def _names(entity_type: Any) -> frozenset[str]:
    return frozenset(field.name for field in fields(entity_type))
