from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

import pytest

from lab.bench.page_cache import give_back

MIB = 1 << 20


def resident(path: Path) -> int:
    """Bytes of a file that the page cache holds (mincore)."""
    size = path.stat().st_size
    with path.open("r+b") as file, mmap.mmap(file.fileno(), size) as view:
        pages = -(-size // mmap.PAGESIZE)
        found = (ctypes.c_ubyte * pages)()
        start = (ctypes.c_char * size).from_buffer(view)
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            assert libc.mincore(ctypes.byref(start), ctypes.c_size_t(size), found) == 0
        finally:
            del start
        return mmap.PAGESIZE * sum(page & 1 for page in found)


def in_memory(path: Path) -> bool:
    """Whether the files there have no disk to be read from again."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    _, kind = max((len(at), kind) for _, at, kind, *_ in mounts if path.is_relative_to(at))
    return kind in ("tmpfs", "ramfs")


def test_what_was_written_is_not_in_the_page_cache_any_more(tmp_path: Path) -> None:
    if in_memory(tmp_path):
        pytest.skip("temporary files are in memory here")
    kept, dropped = tmp_path / "kept", tmp_path / "dropped"
    for directory in (kept, dropped):
        directory.mkdir()
        (directory / "0.log").write_bytes(b"x" * 8 * MIB)
    give_back([dropped, tmp_path / "not there"])
    assert resident(kept / "0.log") == 8 * MIB
    assert resident(dropped / "0.log") == 0
    assert (dropped / "0.log").read_bytes() == b"x" * 8 * MIB
