"""DescribeConfigs answers, without the schema codec: the configs of thousands of mirrored topics are read again and again.

With the schema codec a config costs some ten microseconds. kio still handles older versions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from wire.errors import MalformedFrame
from wire.frames.primitives import INT16, read_array_count, read_compact_string, read_name, skip_tags
from wire.schema.fast_messages import Message, Messages


class DescribedConfig(NamedTuple):
    name: str
    value: str | None
    config_source: int


class ResourceConfigs(NamedTuple):
    error_code: int
    error_message: str | None
    resource_type: int
    resource_name: str
    configs: Sequence[DescribedConfig]


class ConfigsAnswer(NamedTuple):
    results: Sequence[ResourceConfigs]


_NONE: Sequence[DescribedConfig] = ()


def _signed(byte: int) -> int:
    return byte - 256 if byte > 127 else byte


def _config(data: bytes, pos: int) -> tuple[DescribedConfig, int]:
    name, pos = read_name(data, pos)
    value, pos = read_compact_string(data, pos)
    _read_only, source, _sensitive = data[pos], data[pos + 1], data[pos + 2]
    count, pos = read_array_count(data, pos + 3, 4)
    for _ in range(count):  # synonyms
        _, pos = read_name(data, pos)
        _, pos = read_compact_string(data, pos)
        pos = skip_tags(data, pos + 1)
    _, pos = read_compact_string(data, pos + 1)  # documentation, after the type
    return DescribedConfig(name, value, _signed(source)), skip_tags(data, pos)


def _configs(data: bytes, pos: int) -> tuple[Sequence[DescribedConfig], int]:
    size, pos = read_array_count(data, pos, 9)
    configs = []
    for _ in range(size):
        config, pos = _config(data, pos)
        configs.append(config)
    return configs, pos


def _describe_configs_answer(data: bytes, pos: int) -> tuple[ConfigsAnswer, int]:
    results = []
    before, same = b"", _NONE
    count, pos = read_array_count(data, pos + 4, 7)  # after the throttle time
    for _ in range(count):
        (error,) = INT16.unpack_from(data, pos)
        message, pos = read_compact_string(data, pos + 2)
        kind = _signed(data[pos])
        name, pos = read_name(data, pos + 1)
        # Most topics have the configs of the one before, and the same bytes mean the same.
        if before and data.startswith(before, pos):
            pos += len(before)
        else:
            start = pos
            same, pos = _configs(data, pos)
            before = data[start:pos]
        results.append(ResourceConfigs(error, message, kind, name, same))
        pos = skip_tags(data, pos)
    if pos > len(data):
        raise MalformedFrame("a message longer than its frame")
    return ConfigsAnswer(results), skip_tags(data, pos)


MESSAGES: Messages = {("describe_configs", 4): Message(decode=_describe_configs_answer)}
