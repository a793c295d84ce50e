"""Versions and limits that Produce requests and responses share."""

API = "produce"
MIN_VERSION, MAX_VERSION = 3, 13
MAX_ENTRIES = 50_000
"""The most topics plus partitions in one request: parsed entries take far more memory than their bytes on the wire."""

ONE = 2
"""The compact length of an array of one element. The usual forwarded write, one batch without optional fields, is read and
written in one go, in the layout that the general functions produce for it.
"""

SINGLE_END = b"\0\0\0"
"""The bytes after the only batch of a request: no tagged fields of the partition, the topic and the message."""
