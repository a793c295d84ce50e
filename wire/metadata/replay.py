"""Batches of the metadata log and of its snapshots, applied to a ClusterImage: order, offsets, control batches, CRC."""

from typing import Final

from wire.errors import MalformedFrame, WireError
from wire.frames.batch import BatchHeader, iter_batch_headers, iter_records
from wire.frames.primitives import INT16
from wire.frames.types import Buffer
from wire.metadata.decode import MetadataRecord, decode_metadata_value
from wire.metadata.image import ClusterImage

SNAPSHOT_HEADER: Final = 3
SNAPSHOT_FOOTER: Final = 4


def replay_batches(
    image: ClusterImage, buf: Buffer, *, high_watermark: int | None = None
) -> frozenset[bytes]:
    """Replay the whole batches in buf. Returns the ids of the topics that they touched.

    Records that the image has already are skipped (an answer begins with the batch that holds the fetch offset). A partial
    batch at the end is left for the next fetch. With high_watermark, batches at or above it are left too, because an
    observer is sent uncommitted records. A batch is replayed as a whole, or not at all if its bytes are damaged.
    """
    touched: set[bytes] = set()
    for header in iter_batch_headers(buf, 0, len(buf)):
        if header.last_offset <= image.offset:
            continue
        if high_watermark is not None and header.last_offset >= high_watermark:
            break
        if header.base_offset > image.offset + 1 and image.offset >= 0:
            raise MalformedFrame(f"metadata log jumps from offset {image.offset}", offset=header.base_offset)
        for offset, record in _records(buf, header):
            if offset > image.offset:
                touched |= _replay(image, record, offset)
                # The image advances record by record: if a later one is refused, a second try must not count epochs twice.
                image.advance(offset, header.leader_epoch)
        image.advance(header.last_offset, header.leader_epoch)
    return frozenset(touched)


def load_snapshot(image: ClusterImage, buf: Buffer, end_offset: int, epoch: int) -> frozenset[bytes]:
    """Replace the image by the whole snapshot. Returns the ids of the topics before and after.

    On any error the image stays unchanged.
    """
    fresh = ClusterImage()
    last_control = -1
    end = 0
    for header in iter_batch_headers(buf, 0, len(buf)):
        control = _control_type(buf, header)
        if (end == 0) is not (control == SNAPSHOT_HEADER) or last_control == SNAPSHOT_FOOTER:
            raise MalformedFrame(
                "metadata snapshot: header or footer at a wrong place", offset=header.base_offset
            )
        for offset, record in _records(buf, header):
            _replay(fresh, record, offset)
        last_control = control
        end = header.end
    if last_control != SNAPSHOT_FOOTER or end != len(buf):
        raise MalformedFrame(f"metadata snapshot {end_offset}-{epoch} of {len(buf)} bytes is not complete")
    if fresh.in_transaction:
        raise MalformedFrame(f"metadata snapshot {end_offset}-{epoch} ends inside a transaction")
    fresh.advance(end_offset - 1, epoch)
    touched = frozenset((*image.topics_by_id, *fresh.topics_by_id))
    image.adopt(fresh)
    return touched


def _records(buf: Buffer, header: BatchHeader) -> list[tuple[int, MetadataRecord]]:
    """A data batch's records, all decoded before the first one is used; none of a control batch."""
    if not header.crc_ok(buf):
        raise MalformedFrame("metadata batch fails its CRC", offset=header.base_offset)
    records = []
    for record in iter_records(buf, header):
        if header.is_control:
            continue
        if record.value is None:
            raise MalformedFrame("metadata record without a value", offset=record.offset)
        try:
            records.append((record.offset, decode_metadata_value(record.value)))
        except WireError as error:
            error.offset = record.offset
            raise
    return records


def _replay(image: ClusterImage, record: MetadataRecord, offset: int) -> frozenset[bytes]:
    try:
        return image.replay(record)
    except WireError as error:
        error.offset = offset
        raise


def _control_type(buf: Buffer, header: BatchHeader) -> int:
    """Type of a control batch's first record (-1: a data batch). Its key is (version i16, type i16). Behind the header of a
    snapshot come the quorum's version and its voters, in the same batch, where these may change
    (`RecordsSnapshotWriter`, KIP-853)."""
    if header.is_control:
        for record in iter_records(buf, header):
            if record.key is None or len(record.key) < 4:
                raise MalformedFrame("control record without a type", offset=record.offset)
            return int(INT16.unpack_from(record.key, 2)[0])
    return -1
