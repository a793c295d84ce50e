"""Consumer groups: showing them, and asking for promotes and demotes. They run in the link's group manager."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from admin.models import (
    Action,
    ChangeResult,
    DemoteGroupsRequest,
    GroupDescription,
    GroupSummary,
    PromoteGroupsRequest,
)
from admin.service import GroupNotFound, IllegalState, NotReady
from controller import errors as refused
from controller.decide import groups
from controller.decide.unheld_groups import carried, how_it_moves
from controller.group_phases import GroupPhase
from controller.image import ControllerImage
from controller.mirror_group import MirrorGroup
from controller.portions import portions
from fleet.link_controller import wall_clock_ms
from groups.excluded import in_one_line
from groups.group_reader import GroupReader
from groups.manager import GroupManager
from groups.views import GroupView
from linker.links.runtime import LinkRuntime
from linker.service.base import ServiceBase, shown_as
from linker.service.group_status import group_description, group_summaries
from wire.errors import LinkerError
from wire.shown_id import shown_id

_TIMEOUT = 5.0


class Groups(ServiceBase):
    def _manager(self, runtime: LinkRuntime) -> GroupManager:
        manager = runtime.groups.manager
        if manager is None:
            raise NotReady(
                f"the groups of link {runtime.name} are not looked after yet: {runtime.trouble or 'starting'}"
            )
        return manager

    def _group(self, link: str, name: str) -> MirrorGroup:
        manager = self._runtime(link).groups.manager
        group = self._image.groups.get((link, name))
        if group is None and manager is not None and (why := manager.excluded.why(name)) is not None:
            raise IllegalState(f"group {shown_id(name)} is not held by link {link}: {why}")
        if group is None:
            raise GroupNotFound(link, name)
        return group

    async def list_groups(self, link: str) -> list[GroupSummary]:
        runtime = self._runtime(link)
        return group_summaries(self._image.link_groups(link), runtime.groups.manager)

    async def describe_group(self, link: str, group: str) -> GroupDescription:
        found = self._group(link, group)
        runtime = self._runtime(link)
        at_source = await _looked(GroupReader(runtime.source), group)
        at_target = await _looked(GroupReader(self._sidecar.target.cluster), group)
        return group_description(found, runtime.groups.manager, at_source, at_target)

    async def promote_groups(
        self, link: str, request: PromoteGroupsRequest, *, dry_run: bool
    ) -> ChangeResult:
        async with self._changing:
            runtime = self._runtime(link)
            self._require_ready()
            manager = self._manager(runtime)
            for name in request.groups:
                self._group(link, name)
            now = wall_clock_ms()
            left_out = manager.excluded_readers() if request.all else []
            excluded = [in_one_line(left_out)] if left_out else []

            def decide(
                image: ControllerImage, chosen: Sequence[str] | None
            ) -> tuple[list[MirrorGroup], list[str]]:
                return groups.begin_promote(
                    image,
                    link,
                    chosen,
                    force=request.force,
                    partial=request.partial,
                    timeout_ms=request.timeout_ms,
                    now=now,
                )

            before = dict(self._image.groups)
            unheld = {one.group for one in self._image.link_groups(link) if carried(self._image, one)}
            try:
                names = await self._begin(decide, None if request.all else request.groups, dry_run)
            except refused.Refused as error:
                raise IllegalState("; ".join([str(error), *excluded])) from error
        actions, warnings = [], excluded
        warnings += [how_it_moves(before[link, name]) for name in names if name in unheld]
        for name in names:
            group = before[link, name]
            if group.phase in (GroupPhase.REFUSED, GroupPhase.FAILED) and name not in unheld:
                actions.append(
                    Action(action="take for promoted", resource=name, detail=f"it is {group.phase}")
                )
                continue
            actions.append(Action(action="promote group", resource=name, detail=_promise(request, group)))
            if group.unmirrored:
                warnings.append(
                    f"group {shown_id(name)}: its offsets of {', '.join(group.unmirrored)} stay behind"
                )
        return ChangeResult(dry_run=dry_run, actions=actions, warnings=warnings, pending=not dry_run)

    async def demote_groups(self, link: str, request: DemoteGroupsRequest, *, dry_run: bool) -> ChangeResult:
        async with self._changing:
            runtime = self._runtime(link)
            self._require_ready()
            self._manager(runtime)
            for name in request.groups:
                self._group(link, name)
            now = wall_clock_ms()
            chosen = (
                [one.group for one in self._image.link_groups(link) if one.phase is GroupPhase.PROMOTED]
                if request.all
                else request.groups
            )
            if not chosen:
                raise IllegalState(f"link {link} has no promoted group")
            with shown_as(IllegalState, refused.Refused):
                names = await self._begin(
                    lambda image, names: groups.begin_demote(
                        image, link, names or (), timeout_ms=request.timeout_ms, now=now
                    ),
                    chosen,
                    dry_run,
                )
        return ChangeResult(
            dry_run=dry_run,
            actions=[
                Action(
                    action="demote group",
                    resource=name,
                    detail="hold it on the target when it is empty there, return its offsets to the source",
                )
                for name in names
            ],
            pending=not dry_run,
        )

    async def _begin(
        self,
        decide: Callable[[ControllerImage, Sequence[str] | None], tuple[list[MirrorGroup], list[str]]],
        chosen: Sequence[str] | None,
        dry_run: bool,
    ) -> list[str]:
        """Refused, with none begun, if one of them cannot begin now. They are written in portions, because all groups of a
        link may be more than a store takes in one commit."""
        controller = self._sidecar.controller
        records, names = await controller.decide(lambda image: ((), decide(image, chosen)))
        begun = 0
        for portion in [] if dry_run else portions(records):
            some = [one.group for one in portion]
            try:
                await controller.decide(lambda image, some=some: decide(image, some))  # type: ignore[misc]
            except refused.Refused as error:
                if not begun:
                    raise
                raise refused.Refused(f"{begun} of {len(names)} groups have begun, then: {error}") from error
            begun += len(some)
        return names


def _promise(request: PromoteGroupsRequest, group: MirrorGroup) -> str:
    wait = "without waiting for the source" if request.force else "when nobody is in it at the source"
    return f"{wait}, at its committed offsets of {len(group.topics)} topics"


async def _looked(reader: GroupReader, name: str) -> GroupView | None:
    try:
        views, _ = await reader.describe([name], timeout=_TIMEOUT)
    except LinkerError:
        return None
    return views.get(name)
