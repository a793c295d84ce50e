"""The cost of the hand-written hot path: stamping batches, parsing fetches, building answers. No sockets.

python -m lab.bench.micro.hot_path
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable

from wire.frames import batch
from wire.frames.batch import Walk, patch_batches
from wire.frames.fetch import (
    FetchPartition,
    FetchPartitionResult,
    FetchRequest,
    encode_fetch_request,
    encode_fetch_response,
    parse_fetch_request,
    parse_fetch_response,
)
from wire.frames.produce import encode_produce_request, parse_produce_request

TOPIC = bytes(range(16))
RUN_BYTES = 8 << 20
CHUNK_BYTES = 1 << 20


def batches(size: int) -> bytearray:
    """A run of batches of `size` bytes; only the header matters here."""
    run = bytearray()
    for number in range(RUN_BYTES // size):
        batch = bytearray(size)
        struct.pack_into(">qiib", batch, 0, number * 10, size - 12, 3, 2)
        struct.pack_into(">i", batch, 23, 9)
        run += batch
    return run


def seconds(call: Callable[[], object]) -> float:
    """CPU seconds of one call: the best of five rounds of at least a twentieth of a second each."""
    rounds = 1
    best = float("inf")
    call()
    while True:
        start = time.process_time()
        for _ in range(rounds):
            call()
        if time.process_time() - start > 0.05:
            break
        rounds *= 2
    for _ in range(5):
        start = time.process_time()
        for _ in range(rounds):
            call()
        best = min(best, (time.process_time() - start) / rounds)
    return best


def walk_cost(size: int) -> tuple[float, Walk]:
    run = batches(size)
    epoch = 0

    def once() -> Walk:
        # Another epoch each time: every batch is really written.
        nonlocal epoch
        epoch += 1
        return patch_batches(run, 0, len(run), epoch, CHUNK_BYTES, 3)

    return seconds(once), once()


def main() -> None:
    for native in (batch.native_walk, None) if batch.native_walk is not None else (None,):
        batch.native_walk = native
        for size in (1 << 10, 16 << 10, 128 << 10):
            cost, walk = walk_cost(size)
            print(
                f"patch_batches in {'Python' if native is None else 'C':6} {size >> 10:4} kB batches:"
                f" {cost / walk.batches * 1e9:8.0f} ns/batch {cost / RUN_BYTES * 1e9:10.4f} CPU-s/GB"
            )
    for count in (1, 4, 1000):
        print(f"{count} partition(s), microseconds per request:")
        requests(count)


def requests(count: int) -> None:
    partitions = [FetchPartition(n, 1, 1 << 30, 1, 0, 1 << 20) for n in range(count)]
    request = FetchRequest(17, 1, 2, 500, 1, 10 << 20, topics=[(TOPIC, partitions)])
    frame = bytes(encode_fetch_request(17, 1, "broker-1-fetcher-0", request))[4:]
    body = 10 + len("broker-1-fetcher-0") + 1
    records = memoryview(bytearray(128 << 10))

    def build(with_data: bool) -> list[object]:
        views, size = ([records], len(records)) if with_data else ([], 0)
        results = [FetchPartitionResult(n, 0, 1 << 30, 1 << 30, 0, views, size) for n in range(count)]
        return list(encode_fetch_response(17, 1, [(TOPIC, results)])[0])

    answer = memoryview(b"".join(build(True)))[4:]  # type: ignore[arg-type]  # buffers, as bytes.join takes
    produce = encode_produce_request(
        13, 1, "producer", None, -1, 30_000, [(TOPIC, [(n, records) for n in range(count)])]
    )
    produce_frame = memoryview(b"".join(produce))[4:]
    for name, call in (
        ("parse fetch request", lambda: parse_fetch_request(frame, body, 17)),
        ("build empty fetch response", lambda: build(False)),
        ("build fetch response with data", lambda: build(True)),
        ("build source fetch request", lambda: encode_fetch_request(17, 1, "linker", request)),
        ("parse source fetch response", lambda: parse_fetch_response(answer, 17)),
        ("parse produce request", lambda: parse_produce_request(produce_frame, 19, 13)),
        (
            "build produce request",
            lambda: encode_produce_request(13, 1, "linker", None, -1, 30_000, [(TOPIC, [(0, records)])]),
        ),
    ):
        print(f"  {name:32} {seconds(call) * 1e6:9.1f}")


if __name__ == "__main__":
    main()
