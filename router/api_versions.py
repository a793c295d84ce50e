"""ApiVersions as our clients see it: the real broker's answer, with the apis we serve ourselves cut to what
we serve.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from wire import codec

# api key -> lowest and highest version served here; never more than the real broker has, for the client may
# be sent there.
SERVED: Final[dict[int, tuple[int, int]]] = {
    0: (3, 13),  # Produce
    1: (4, 18),  # Fetch
    2: (1, 11),  # ListOffsets
    17: (1, 1),  # SaslHandshake: version 0 is followed by bare tokens, which cannot be relayed as frames
    23: (2, 4),  # OffsetForLeaderEpoch
    27: (1, 2),  # WriteTxnMarkers
}
UNSUPPORTED_VERSION: Final = 35


def restrict(version: int, reply: memoryview) -> bytes | memoryview:
    """The real broker's answer to ApiVersions of that version, restricted. Frames are without size prefix."""
    if len(reply) >= 6 and int.from_bytes(reply[4:6], "big") == UNSUPPORTED_VERSION:
        version = 0  # Kafka answers an unknown version in version 0
    answer = codec.decode_response("api_versions", version, reply)
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
    return codec.encode_response(
        "api_versions", version, int.from_bytes(reply[:4], "big", signed=True), fields
    )
