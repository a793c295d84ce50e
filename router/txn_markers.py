"""WriteTxnMarkers from the target's transaction coordinators.

No transactional batch is ever forwarded, so there is nothing to mark; but a coordinator whose markers are
not answered well-formed retries for ever and its transactions hang. Every partition is answered NONE.
"""

from __future__ import annotations

from wire import codec
from wire.server import Exchange


def answer_txn_markers(exchange: Exchange) -> None:
    header, request = codec.decode_request(exchange.frame)
    markers = [
        {
            "producer_id": marker.producer_id,
            "topics": [
                {
                    "name": topic.name,
                    "partitions": [
                        {"partition_index": index, "error_code": 0} for index in topic.partition_indexes
                    ],
                }
                for topic in marker.topics
            ],
        }
        for marker in request.markers
    ]
    frame = codec.encode_response(
        "write_txn_markers", header.api_version, header.correlation_id, {"markers": markers}
    )
    exchange.reply([len(frame).to_bytes(4, "big"), frame])
