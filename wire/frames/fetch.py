"""The Fetch codec in one place to import from; see fetch_request.py and fetch_response.py."""

from wire.frames.fetch_request import (
    FetchPartition,
    FetchRequest,
    encode_fetch_request,
    parse_fetch_request,
)
from wire.frames.fetch_response import (
    FetchedPartition,
    FetchPartitionResult,
    FetchResponse,
    encode_fetch_response,
    parse_fetch_response,
)
from wire.frames.topic_key import TopicKey

__all__ = [
    "FetchPartition",
    "FetchPartitionResult",
    "FetchRequest",
    "FetchResponse",
    "FetchedPartition",
    "TopicKey",
    "encode_fetch_request",
    "encode_fetch_response",
    "parse_fetch_request",
    "parse_fetch_response",
]
