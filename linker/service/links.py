"""Creating, changing and deleting links."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

from admin.models import (
    Action,
    ChangeResult,
    CreateLinkRequest,
    LinkDescription,
    LinkOptions,
    LinkSummary,
    UpdateLinkRequest,
)
from admin.service import IllegalState, InvalidRequest, NameTaken, PreflightFailed
from controller import errors as refused
from controller.decide.deletions import before_link
from controller.decide.source_fence import owed_topics
from controller.errors import Refused
from controller.image import ControllerImage
from controller.plan.producer_ids import BLOCK, plan
from controller.state import Link, Record
from fleet.link_controller import wall_clock_ms
from linker.access.report import sync_status
from linker.checks import preflight
from linker.config.cluster_addresses import OF_A_LINK, check_addresses
from linker.config.link_secrets import LinkSecrets
from linker.links import status as view
from linker.links.runtime import LIVE_OPTIONS, LinkRuntime
from linker.links.source import source_cluster
from linker.links.source_ids import SourceIds, one_producer_id
from linker.links.traffic import traffic
from linker.manual_steps import undo_source_fence
from linker.service.base import ServiceBase, shown_as, still_closed
from linker.service.source_joins import refuse_join, refuse_leaving, refuse_options, wait_left
from wire.client.cluster import Cluster
from wire.client.properties import PropertyError, check_client_properties
from wire.client.secrets import SecretError, hiding_values, redact_properties, refuse_literal_secrets
from wire.errors import LinkerError


def _check(properties: Mapping[str, str], secrets: LinkSecrets) -> None:
    """Raise InvalidRequest unless a link may have these client properties.

    First as they are given, because these may be quoted in errors, and because addresses and protocols must not be
    references. Then resolved, only to see that every reference leads somewhere.
    """
    with shown_as(InvalidRequest, PropertyError, SecretError):
        check_client_properties(properties)
        secrets.check(properties)
        refuse_literal_secrets(properties)
        resolved = secrets.resolve(properties)
        with hiding_values(properties):
            check_client_properties(resolved)


class LinkChanges(ServiceBase):
    async def create_link(self, request: CreateLinkRequest, *, dry_run: bool) -> ChangeResult:
        self._require_ready()
        async with self._changing:
            _check(request.properties, self._sidecar.config.link_secrets)
            if request.name in self._image.links:
                raise NameTaken(f"link {request.name} exists already")
            refuse_options(request.name, request.options)
            source = source_cluster(request.name, dict(request.properties), self._sidecar.config.link_secrets)
            try:
                await source.connect(timeout=preflight.TIMEOUT)
                wanted = request.source_cluster_id
                if wanted is not None and wanted != source.cluster_id:
                    raise PreflightFailed(f"the source has cluster id {source.cluster_id}, not {wanted}")
                findings = await preflight.check_source(source, self._sidecar.target)
                findings += await check_addresses("source", source, "--bootstrap-servers")
                findings += await preflight.check_target_rights(self._sidecar.target)
                preflight.refuse(findings)
                cluster_id = source.cluster_id or ""
                if request.options.join_source:
                    wanted_link = Link(
                        name=request.name, source_cluster_id=cluster_id, properties=request.properties
                    )
                    await refuse_join(self._sidecar, wanted_link, source, ())
                blocks = await self._blocks(source, request.options) if dry_run else ""
            except preflight.PreflightError as error:
                raise PreflightFailed(str(error)) from error
            finally:
                await source.close()
            link = await self._sidecar.controller.create_link(
                request.name, cluster_id, request.properties, request.options.model_dump(), dry_run=dry_run
            )
            if not dry_run:
                self._sidecar.links.start(link)
        return ChangeResult(
            dry_run=dry_run,
            actions=[
                Action(action="create link", resource=request.name, detail=f"source cluster {cluster_id}"),
                Action(
                    action="move producer ids",
                    resource="target cluster",
                    detail=f"past everything the source hands out, before the first forwarded write{blocks}",
                ),
            ],
            warnings=[finding.detail for finding in findings if not finding.fatal],
        )

    async def _blocks(self, source: Cluster, options: LinkOptions) -> str:
        """How far that is. The source's brokers are asked for an id each, which is all that shows where they are."""
        ids = SourceIds(source, one_producer_id, time.monotonic)
        try:
            await ids.look()
            wanted = plan(
                ids.end or 0,
                max(0, self._sidecar.target.image.next_producer_id),
                {},
                margin=options.producer_id_margin,
                most_blocks=options.producer_id_blocks,
            )
        except Refused as error:
            raise PreflightFailed(str(error)) from error
        except LinkerError as error:
            return f" (how far is not known: {error})"
        return f": {wanted.blocks} blocks of {BLOCK}, from {ids.end} at the source"

    async def list_links(self) -> list[LinkSummary]:
        return [
            LinkSummary(**self._summary_fields(runtime, await self._mirrors(runtime)))
            for runtime in list(self._sidecar.links.values())
        ]

    async def describe_link(self, link: str) -> LinkDescription:
        runtime = self._runtime(link)
        since = runtime.unavailable_since
        return LinkDescription(
            **self._summary_fields(runtime, await self._mirrors(runtime)),
            target_cluster_id=self._sidecar.target.cluster.cluster_id or "",
            properties=redact_properties(dict(runtime.link.properties)),
            options=LinkOptions.model_validate(dict(self._image.links[link].options)),
            forwarding=view.forwarding(runtime),
            traffic=traffic(runtime, self._sidecar.fleet.fleet_controller, self._reverse(link)),
            acls=sync_status(runtime),
            created_at=view.moment(runtime.link.created_at),
            source_unavailable_since=None
            if since is None
            else view.moment(wall_clock_ms() - int((time.monotonic() - since) * 1000)),
        )

    async def update_link(self, link: str, request: UpdateLinkRequest, *, dry_run: bool) -> ChangeResult:
        self._require_ready()
        async with self._changing:
            runtime = self._runtime(link)  # as the update before this one left it
            await self._check_join(link, runtime, request)
            if not request.properties and request.options.named().keys() <= LIVE_OPTIONS:
                # Nothing that runs is interrupted, so neither a promote nor a source that is away is in the way.
                options = request.options.applied_to(
                    LinkOptions.model_validate(dict(self._image.links[link].options))
                ).model_dump()
                await self._sidecar.controller.update_link(link, None, options, dry_run=dry_run)
                return ChangeResult(
                    dry_run=dry_run, actions=[Action(action="update link", resource=link, detail="at once")]
                )
            if self._image.running_jobs(link):
                raise IllegalState(f"link {link} has a promote running: change it afterwards")
            properties = {**runtime.link.properties, **request.properties}
            kept = {name: value for name, value in properties.items() if value is not None}
            _check(kept, self._sidecar.config.link_secrets)
            source = source_cluster(link, kept, self._sidecar.config.link_secrets)
            try:
                await source.connect(timeout=preflight.TIMEOUT)
                if source.cluster_id != runtime.link.source_cluster_id:
                    raise PreflightFailed(
                        f"these properties lead to cluster {source.cluster_id}, link {link} was made for "
                        f"{runtime.link.source_cluster_id}"
                    )
                findings = await check_addresses("source", source, OF_A_LINK)
                preflight.refuse(findings)
            except preflight.PreflightError as error:
                raise PreflightFailed(str(error)) from error
            finally:
                await source.close()
            options = request.options.applied_to(
                LinkOptions.model_validate(dict(self._image.links[link].options))
            ).model_dump()
            await self._sidecar.controller.update_link(link, kept, options, dry_run=dry_run)
            if not dry_run:
                await self._sidecar.links.restart(link)
        return ChangeResult(
            dry_run=dry_run,
            actions=[Action(action="update link", resource=link)],
            warnings=[finding.detail for finding in findings],
        )

    async def _check_join(self, link: str, runtime: LinkRuntime, request: UpdateLinkRequest) -> None:
        """Refuse a join or a leave of the source that could not be carried out."""
        state = self._image.links[link]
        before = LinkOptions.model_validate(dict(state.options))
        after = request.options.applied_to(before)
        refuse_options(link, after)
        if before.join_source and not after.join_source:
            refuse_leaving(self._sidecar, link)
        elif after.join_source and not before.join_source:
            topics = [runtime.source.topic_names.there(one.topic) for one in self._image.link_mirrors(link)]
            await refuse_join(
                self._sidecar, replace(state, options=after.model_dump()), runtime.source, topics
            )

    async def delete_link(self, link: str, *, force: bool = False, dry_run: bool) -> ChangeResult:
        runtime = self._runtime(link)
        async with self._changing:
            if not force:
                refuse_leaving(self._sidecar, link)
            closed = sorted(owed_topics(self._image, link)) if force else []
            try:
                await self._sidecar.controller.delete_link(link, force=force, dry_run=True)
                if not dry_run:
                    await self._leave_source(runtime, force)
                    await self._delete_released(link, force)
            except refused.SourceClosed as error:
                raise IllegalState(still_closed(error)) from error
            except refused.Refused as error:
                raise IllegalState(str(error)) from error
            if not dry_run:
                await self._sidecar.links.stop(link)
        actions = [Action(action="delete link", resource=link)]
        if not closed:
            return ChangeResult(dry_run=dry_run, actions=actions)
        warning = (
            f"the source still refuses writes to {', '.join(closed)}, and nobody undoes that any more; at the source: "
            f"{undo_source_fence(closed)}"
        )
        return ChangeResult(dry_run=dry_run, actions=actions, warnings=[warning])

    async def _leave_source(self, runtime: LinkRuntime, force: bool) -> None:
        """The sidecars leave the source first, while the link still says how to reach it."""
        options = LinkOptions.model_validate(dict(self._image.links[runtime.name].options))
        if not options.join_source:
            return
        broker = self._sidecar.joined.get(runtime.name)
        ids = frozenset() if broker is None else broker.link_brokers()
        left = options.model_copy(update={"join_source": False}).model_dump()
        await self._sidecar.controller.update_link(runtime.name, None, left)
        try:
            await wait_left(self._sidecar, runtime.source, ids, runtime.name)
        except IllegalState:
            if not force:
                raise

    async def _delete_released(self, link: str, force: bool) -> None:
        """Release the groups first, while the link still runs; hold them again if the link stays after all."""
        groups = self._runtime(link).groups
        try:
            await groups.release_all()
            while await self._remove_portion(link, force):
                pass
            await self._sidecar.controller.delete_link(link, force=force)
        except BaseException:
            groups.hold_again()
            raise

    async def _remove_portion(self, link: str, force: bool) -> bool:
        """Of what is below the link, while that is more than a store takes in one commit. False: the rest goes with the
        link."""

        def decide(image: ControllerImage) -> tuple[list[Record], bool]:
            records = before_link(image, link, force)
            return records, bool(records)

        return await self._sidecar.controller.decide(decide)
