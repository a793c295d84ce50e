"""Fields of a single batch (magic 2), for code that needs no more of it.

batch.py documents the layout. Nothing is checked here: the caller knows that a whole header (BATCH_OVERHEAD bytes) is there.
These are plain functions of `struct`, because every forwarded batch goes through them.
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
