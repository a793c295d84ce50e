"""The walk of wire/frames/batch.py in C (_walk.c); not there where it was installed without a compiler."""

def stamp(
    buf: bytearray | memoryview, start: int, end: int, leader_epoch: int, chunk_bytes: int, last_epoch: int, /
) -> tuple[
    list[tuple[int, int, int, int]],  # chunks that are complete
    list[tuple[int, int]],  # epochs
    int,  # where it stopped
    int,  # where the chunk begins that is open there
    int,  # that one's base offset, -1 if there is none
    int,  # least offset of the next batch
    int,  # epoch of the last batch
    int,  # batches
    int,  # the largest one's length field
    int,  # where the last one begins, -1 if there is none
]: ...
