"""The walk in C against the one in Python: the same of everything, and nothing outside the buffer, whatever is in it."""

from __future__ import annotations

import importlib.util
import random
import shlex
import shutil
import struct
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.wire.test_batch import runs
from wire.frames import batch
from wire.frames.batch import BATCH_OVERHEAD, patch_batches

SOURCE = Path(batch.__file__).parent / "_walk.c"
GUARD = b"\x02" * 80  # of the magic's value, so that what goes too far does not stop at it
INT32 = st.sampled_from([-(2**31), -1, 0, 1, 48, 49, 50, 2**31 - 1]) | st.integers(-(2**31), 2**31 - 1)
INT64 = st.sampled_from([-(2**63), -1, 0, 1, 2**63 - 2, 2**63 - 1]) | st.integers(-(2**63), 2**63 - 1)


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """Built from the source that is here, not whatever was once installed."""
    compiler = shlex.split(sysconfig.get_config_var("CC") or "cc")
    include = sysconfig.get_paths()["include"]
    if shutil.which(compiler[0]) is None or not (Path(include) / "Python.h").exists():
        pytest.skip("no C compiler, or no headers of Python")
    built = tmp_path_factory.mktemp("native") / f"_walk{sysconfig.get_config_var('EXT_SUFFIX')}"
    flags = ["-Wall", "-Wextra", "-Werror", "-O2", "-shared", "-fPIC", f"-I{include}"]
    subprocess.run([*compiler, *flags, str(SOURCE), "-o", str(built)], check=True)
    return load(built)


def load(built: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("wire.frames._walk", built)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module", autouse=True)
def unchanged() -> Iterator[None]:
    kept = batch.native_walk
    yield
    batch.native_walk = kept


def outcome(
    walk: Callable[..., Any] | None, data: bytes | bytearray, *arguments: int
) -> tuple[object, bytes]:
    """What patch_batches says with that walk, and all the bytes afterwards, those around the buffer too."""
    whole = bytearray(GUARD + data + GUARD)
    batch.native_walk = walk
    try:
        said: object = patch_batches(memoryview(whole)[len(GUARD) : -len(GUARD)], *arguments)
    except Exception as error:
        said = type(error), str(error), vars(error)
    return said, bytes(whole)


@st.composite
def spoiled(draw: st.DrawFn) -> bytes:
    """A run of batches with some of what the walk reads replaced, perhaps cut short; or bytes of any kind."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=300))
    batches = draw(runs())
    data = bytearray(b"".join(batches))
    begins = [sum(map(len, batches[:number])) for number in range(len(batches))]
    for _ in range(draw(st.integers(0, 3)) if batches else 0):
        at = draw(st.sampled_from(begins))
        form, offset, values = draw(
            st.sampled_from(
                [
                    (">q", 0, INT64),
                    (">i", 8, INT32),
                    (">i", 12, INT32),
                    (">b", 16, st.integers(-128, 127)),
                    (">i", 23, INT32),
                    (">q", 35, INT64),
                ]
            )
        )
        struct.pack_into(form, data, at + offset, draw(values))
    keep = draw(st.just(len(data)) | st.integers(0, len(data)))
    return bytes(data[:keep])


@settings(max_examples=300)
@given(
    spoiled(),
    st.integers(-1, 70),
    st.integers(-1, 70),
    st.integers(-(2**31), 2**31 - 1),
    st.sampled_from([-(2**63), -1, 0, 1, 61, 200, 2**63 - 1]) | st.integers(1, 1000),
    st.integers(-1, 5),
)
def test_both_walks_are_one(
    native: ModuleType, data: bytes, skip: int, short: int, epoch: int, chunk_bytes: int, last_epoch: int
) -> None:
    for begin in {0, skip}:
        for end in {len(data), len(data) - short}:
            arguments = (begin, end, epoch, chunk_bytes, last_epoch)
            assert outcome(native.stamp, data, *arguments) == outcome(None, data, *arguments)


FIELDS = [
    (">q", 0, (-(2**63), -1, 0, 4, 5, 6, 2**63 - 2, 2**63 - 1)),
    (">i", 8, (-(2**31), -1, 48, 49, 50, 2**31 - 1)),
    (">i", 12, (-(2**31), -1, 2, 3, 9, 2**31 - 1)),
    (">b", 16, (-128, -1, 0, 1, 2, 3, 127)),
    (">i", 23, (-(2**31), -1, 0, 1, 2**31 - 1)),
]


@pytest.mark.parametrize(("form", "offset", "values"), FIELDS)
@pytest.mark.parametrize("spoiled_batch", [0, 1, 2])
def test_both_walks_draw_the_same_borders(
    native: ModuleType, form: str, offset: int, values: tuple[int, ...], spoiled_batch: int
) -> None:
    """Each field that is looked at, next to each value where something changes."""
    size = BATCH_OVERHEAD + 10
    for value in values:
        run = bytearray(3 * size)
        for number in range(3):
            struct.pack_into(">qiib", run, number * size, 5 * number, size - 12, 3, 2)
            struct.pack_into(">i", run, number * size + 23, 4)
        struct.pack_into(form, run, spoiled_batch * size + offset, value)
        for chunk_bytes in (size, 2 * size - 1, 2 * size, 2 * size + 1):
            for end in (*range(3 * size - 12, 3 * size + 1), size, 2 * size, 2 * size + 60, 2 * size + 61):
                arguments = (0, end, 9, chunk_bytes, 3)
                assert outcome(native.stamp, run, *arguments) == outcome(None, run, *arguments)


def test_it_walks_itself_and_does_not_leave_it_to_python(native: ModuleType) -> None:
    """Otherwise they would agree on anything."""
    header = bytearray(BATCH_OVERHEAD)
    struct.pack_into(">qiib", header, 0, 7, BATCH_OVERHEAD - 12, 3, 2)
    run = header + header
    struct.pack_into(">q", run, BATCH_OVERHEAD, 8)
    assert native.stamp(run, 0, len(run), 9, 1, -1) == (
        [(0, 61, 7, 8)],
        [(3, 7)],
        122,
        61,
        8,
        9,
        3,
        2,
        49,
        61,
    )
    assert run[12:16] == run[73:77] == bytes([0, 0, 0, 9])


def test_it_refuses_what_it_cannot_write_or_has_no_room_in(native: ModuleType) -> None:
    for begin, end in ((-1, 5), (0, 11), (5, 2**62)):
        with pytest.raises(ValueError, match="outside the buffer"):
            native.stamp(bytearray(10), begin, end, 1, 1, 1)
    with pytest.raises((TypeError, BufferError)):
        native.stamp(bytes(61), 0, 61, 1, 1, 1)


def test_it_reads_no_byte_behind_the_buffer(native: ModuleType) -> None:
    """In a process of its own, at the end of a page behind which nothing may be read: it would not survive that."""
    done = subprocess.run(
        [sys.executable, "-c", f"from {__name__} import at_the_edge; at_the_edge({native.__file__!r})"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "500 batches\n"), done


def at_the_edge(built: str) -> None:
    import ctypes
    import mmap

    page = mmap.PAGESIZE
    memory = mmap.mmap(-1, 2 * page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert ctypes.CDLL(None, use_errno=True).mprotect(ctypes.c_void_p(address + page), page, 0) == 0
    walk, chosen, batches = load(Path(built)).stamp, random.Random(3), 0
    for _ in range(500):
        size = chosen.randrange(BATCH_OVERHEAD, 300)
        data = bytearray(size)
        struct.pack_into(">qiib", data, 0, 5, size - 12, 3, 2)
        data += data[: chosen.randrange(BATCH_OVERHEAD)]  # the next one is cut short
        view = memoryview(memory)[page - len(data) : page]
        view[:] = data
        batches += walk(view, 0, len(view), 1, 1 << 20, -1)[7]
    print(batches, "batches")
