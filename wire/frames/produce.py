"""The Produce codec in one place to import from; see produce_request.py and produce_response.py."""

from wire.frames.produce_request import ProduceRequest, encode_produce_request, parse_produce_request
from wire.frames.produce_response import (
    ProduceResponse,
    ProduceResult,
    encode_produce_response,
    parse_produce_response,
)
from wire.frames.topic_key import TopicKey

__all__ = [
    "ProduceRequest",
    "ProduceResponse",
    "ProduceResult",
    "TopicKey",
    "encode_produce_request",
    "encode_produce_response",
    "parse_produce_request",
    "parse_produce_response",
]
