"""WriteTxnMarkers from the target's transaction coordinators.

No transactional batch is ever forwarded, so there is nothing to mark; but a coordinator whose markers are
not answered well-formed retries for ever and its transactions hang. Every partition is answered NONE.
"""

from __future__ import annotations

from wire.frames.offset_requests import answer_write_txn_markers
from wire.server.listener import Exchange


def answer_txn_markers(exchange: Exchange) -> bytearray:
    header = exchange.header
    return answer_write_txn_markers(
        exchange.frame, exchange.body_offset, header.api_version, header.correlation_id
    )
