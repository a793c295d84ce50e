"""A few fields of a batch (magic 2) for those who have each forwarded one in their hands and need no more of it.

The layout is told in batch.py, which reads whole headers. Nothing is checked here: the caller knows that a whole
header (BATCH_OVERHEAD bytes) is there. These are the bare functions of `struct`, as this is done for every batch.
"""

import struct
from typing import Final

MAGIC_AT: Final = 16
MAGIC: Final = 2
TRANSACTIONAL: Final = 0x10
"""In the attributes."""

read_producing = struct.Struct(">21xh20xqhi").unpack_from
"""Attributes, producer id, producer epoch, base sequence."""

read_last_offset_delta = struct.Struct(">23xi").unpack_from
