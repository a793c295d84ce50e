"""WriteTxnMarkers from the transaction coordinators of the cluster that the mirrors lie in.

No transactional batch is ever forwarded, so there is nothing to mark; but a coordinator whose markers are
not answered well-formed retries for ever and its transactions hang. Every partition is answered NONE.

Only a partition that a switch has may have an open transaction from before: its marker cannot be written now, and one that
is taken for written would leave the transaction open for good. The coordinator is told to try again: given back, the
partition takes it.
"""

from __future__ import annotations

from router.produce.forwarding import ForwardingHub
from wire.frames.error_codes import NONE, NOT_ENOUGH_REPLICAS
from wire.frames.offset_requests import answer_write_txn_markers
from wire.server.listener import Exchange


def answer_txn_markers(exchange: Exchange, hub: ForwardingHub) -> tuple[bytearray, bool]:
    """The answer, and whether it says to try again."""
    again = False

    def error_of(topic: str, index: int) -> int:
        nonlocal again
        mirror = hub.ports.mirrors.by_name(topic)
        partition = None if mirror is None else mirror.partition(index)
        if partition is None or not partition.switching:
            return NONE
        again = True
        return NOT_ENOUGH_REPLICAS

    header = exchange.header
    answer = answer_write_txn_markers(
        exchange.frame, exchange.body_offset, header.api_version, header.correlation_id, error_of
    )
    return answer, again
