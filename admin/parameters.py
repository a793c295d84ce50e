"""Parameters of the admin API's paths and queries. Bodies are in models/."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query
from pydantic import Field

from admin.base import TopicName
from admin.models import LINK_NAME_PATTERN, TOPIC_NAME_PATTERN, GroupName, Model

LinkPath = Annotated[str, Path(pattern=LINK_NAME_PATTERN)]
SidecarPath = Annotated[int, Path(ge=0, le=2**31 - 1)]
GroupPath = Annotated[GroupName, Path()]
JobPath = Annotated[str, Path(pattern=r"^[A-Za-z0-9._-]{1,128}$")]
TopicPath = Annotated[str, Path(pattern=TOPIC_NAME_PATTERN)]


class ChangeQuery(Model):
    """Query of a change. Unknown names are refused: a misspelt dry_run must not become the real thing."""

    dry_run: bool = False


class DeleteLinkQuery(ChangeQuery):
    force: bool = False


class DeleteMirrorQuery(ChangeQuery):
    keep_data: bool = False
    force: bool = False


class DrainQuery(ChangeQuery):
    undo: bool = False


class LeaveQuery(ChangeQuery):
    dead: bool = False


class ResumeMirrorQuery(ChangeQuery):
    restart: bool = False


class RepairMirrorQuery(ChangeQuery):
    drop_target_records: bool = False


class LagQuery(Model):
    topic: list[TopicName] = Field(default=[])


Change = Annotated[ChangeQuery, Query()]
