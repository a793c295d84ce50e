"""Only the sidecar's user may read its files: topics, groups and errors of all tenants are in them."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from linker.config.model import Config

log = logging.getLogger(__name__)

_OTHERS = 0o077


def be_private(config: Config) -> None:
    """From now on, children included; and what an earlier version left open is closed: its own files and directories.
    A directory that it was given may be for others too: that one is only named."""
    os.umask(_OTHERS)
    state = config.sidecar.state_dir
    ours = [config.validator_dir, *_below(state, "linker.db*"), *_below(config.validator_dir, "*.log*")]
    if config.validation.evidence_dir is None:
        ours.append(config.evidence_dir)
    for path in ours:
        _close(path)
    mode = _open_to(state)
    if mode is not None and mode & stat.S_IROTH:
        log.warning("sidecar.state.dir %s may be read by every user (mode %04o): chmod 700 it", state, mode)


def _below(directory: Path, pattern: str) -> list[Path]:
    return list(directory.glob(pattern)) if directory.is_dir() else []


def _open_to(path: Path) -> int | None:
    """The mode of a path that somebody else may use; None if nobody may, or there is none."""
    try:
        found = path.lstat()
    except OSError:
        return None
    mode = stat.S_IMODE(found.st_mode)
    return mode if mode & _OTHERS and not stat.S_ISLNK(found.st_mode) else None


def _close(path: Path) -> None:
    mode = _open_to(path)
    if mode is None:
        return
    try:
        path.chmod(mode & ~_OTHERS)
    except OSError as error:
        log.warning("%s may be read by other users (mode %04o): %s", path, mode, error.strerror or error)
