"""`linker doctor --config`: both clusters, before there is a sidecar."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from linker.cli.options import properties_file, usage

if TYPE_CHECKING:
    from admin.models import DoctorReport


def examine(
    config: Path, source_config: Path | None, bootstrap_servers: str | None, topics: list[str]
) -> DoctorReport:
    """LinkerError for a configuration or properties that cannot be read; clusters that do not answer are findings."""
    from linker.checks import doctor_alone
    from linker.config.file import load_config

    properties = {} if source_config is None else properties_file(source_config)
    if bootstrap_servers is not None:
        properties["bootstrap.servers"] = bootstrap_servers
    if "bootstrap.servers" not in properties:
        raise usage("where is the source? Give --bootstrap-servers, or bootstrap.servers in --source-config")
    return asyncio.run(doctor_alone.examine(load_config(config), properties, topics))
