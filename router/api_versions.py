"""ApiVersions as our clients see it: the real broker's answer, with the apis we serve ourselves cut to what
we serve.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Final

from wire.frames.error_codes import UNSUPPORTED_VERSION
from wire.schema import codec

API_VERSIONS: Final = 18
# api key -> lowest and highest version served here; never more than the real broker has, for the client may
# be sent there.
SERVED: Final[dict[int, tuple[int, int]]] = {
    # Produce. Versions 0 to 2 are served by nobody, and named by Kafka 4 all the same: librdkafka up to 2.11 compresses only
    # for brokers that name them (KAFKA-18659).
    0: (0, 13),
    1: (4, 18),  # Fetch
    2: (1, 11),  # ListOffsets
    17: (0, 1),  # SaslHandshake: version 0 is followed by bare tokens
    16: (0, 5),  # ListGroups
    API_VERSIONS: (0, 4),  # ours to read, too
    21: (0, 2),  # DeleteRecords
    23: (2, 4),  # OffsetForLeaderEpoch
    27: (1, 2),  # WriteTxnMarkers
    32: (1, 4),  # DescribeConfigs
    33: (0, 2),  # AlterConfigs
    34: (1, 2),  # AlterReplicaLogDirs
    35: (1, 5),  # DescribeLogDirs
    36: (0, 2),  # SaslAuthenticate: passed on, and its answers are read
    44: (0, 1),  # IncrementalAlterConfigs
    61: (0, 0),  # DescribeProducers
    66: (0, 2),  # ListTransactions
    78: (1, 2),  # ShareFetch
    79: (1, 2),  # ShareAcknowledge
}


def known(version: int) -> bool:
    """Whether ApiVersions of that version can be answered here."""
    low, high = SERVED[API_VERSIONS]
    return low <= version <= high


def unknown_version(correlation_id: int) -> bytes:
    """A broker's answer to a version of ApiVersions that is beyond it (KIP-511), in version 0: the client asks again, in
    one of those that are named. Without size prefix.
    """
    low, high = SERVED[API_VERSIONS]
    named = {"api_key": API_VERSIONS, "min_version": low, "max_version": high}
    fields = {"error_code": UNSUPPORTED_VERSION, "api_keys": [named]}
    return codec.encode_response("api_versions", 0, correlation_id, fields)


def restrict(version: int, reply: memoryview) -> bytes | memoryview:
    """The real broker's answer to ApiVersions of that version, restricted. Frames are without size prefix."""
    return b"".join((reply[:4], _restricted(version, bytes(reply[4:]))))


@functools.lru_cache(maxsize=32)
def _restricted(version: int, reply: bytes) -> bytes:
    """Both behind the correlation id. Kept: anybody may ask, without a login and as often as he likes, brokers say the same
    every time, and taking it apart costs a hundred times as much as passing it on.
    """
    if int.from_bytes(reply[:2], "big") == UNSUPPORTED_VERSION:
        version = 0  # Kafka answers an unknown version in version 0
    answer = codec.decode_response("api_versions", version, bytes(4) + reply)
    keys = []
    for item in answer.api_keys:
        low, high = item.min_version, item.max_version
        served = SERVED.get(item.api_key)
        if served is not None:
            low, high = max(low, served[0]), min(high, served[1])
        if low <= high:
            keys.append({"api_key": item.api_key, "min_version": low, "max_version": high})
    fields = {field.name: getattr(answer, field.name) for field in dataclasses.fields(answer)}
    fields["api_keys"] = keys
    return codec.encode_response("api_versions", version, 0, fields)[4:]
