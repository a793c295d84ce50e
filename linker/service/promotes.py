"""Starting and showing promotes. They run in the link's runtime."""

from __future__ import annotations

from collections.abc import Sequence

from admin.models import (
    PromoteJobStatus,
    PromoteRequest,
)
from admin.service import IllegalState, NotReady, PreflightFailed, PromoteNotFound
from controller import errors as refused
from controller.proof import ValidationPolicy
from fleet.link_controller import wall_clock_ms
from linker.checks import preflight
from linker.links import job_status
from linker.links.runtime import LinkRuntime
from linker.promote.ports import PromoteSettings
from linker.service.base import shown_as, source_away
from linker.service.promote_plans import PromotePlans, heartbeats_stay
from linker.validation.needs import missing_parts
from wire.errors import LinkerError

_FENCE_DRAIN_TIMEOUT = 5.0


class Promotes(PromotePlans):
    async def promote(self, link: str, request: PromoteRequest) -> PromoteJobStatus:
        # One lock from the first check to the start: a job that is durable must also run, and on this runtime.
        async with self._changing:
            return await self._begin_promote(link, request)

    async def _begin_promote(
        self, link: str, request: PromoteRequest, *, switch: bool = False
    ) -> PromoteJobStatus:
        runtime = self._runtime(link)
        self._require_ready()
        if not runtime.source_available:
            raise NotReady(
                await source_away(runtime)
                or f"the source of link {link} answers, but nothing of what is mirrored can be read there"
            )
        if runtime.settling:
            raise NotReady(f"link {link} still settles a promote that nobody runs; try again in a moment")
        topics = self._promote_topics(link, request)
        if not topics:
            raise IllegalState(f"link {link} has nothing to promote")
        if (why := heartbeats_stay(runtime, topics)) is not None:
            raise IllegalState(why)
        if (own := self._own_topics(runtime, request.options.as_own_topic)) is not None:
            raise IllegalState(own)
        grown = await self._grown(runtime, topics)
        if grown:
            raise IllegalState("; ".join(grown))
        late = await self._late_replicas(runtime, topics, request.options.accept_missing)
        if late:
            raise PreflightFailed("; ".join(late))
        policy = self._policy(request)
        missing = missing_parts() if policy is ValidationPolicy.REQUIRE else None
        if missing is not None:
            raise PreflightFailed(
                f"{missing}; or promote with --validation=warn or skip, which prove nothing before the hand-over"
            )
        with shown_as(PreflightFailed, preflight.PreflightError):
            preflight.refuse(await preflight.check_mirror_rights(runtime.target, topics))
            warnings = await self._follow_configs(runtime, topics)
            preflight.refuse(await self._refused_configs(runtime, topics))
            if request.options.fence_source:
                preflight.refuse(await self._source_fence(runtime, topics))
            # Checked last: a job that ran until now may have left some.
            preflight.refuse(self._still_closed(runtime, topics))
        options = request.options
        settings = PromoteSettings(
            max_lag=options.max_lag,
            catch_up_timeout=options.catch_up_timeout_ms / 1000,
            fence_deadline=options.fence_timeout_ms / 1000,
            transaction_timeout=options.transaction_timeout_ms / 1000,
            abort_open_transactions=options.abort_open_transactions,
            fence_source=options.fence_source,
            fence_drain_timeout=min(_FENCE_DRAIN_TIMEOUT, options.fence_timeout_ms / 1000),
            validation=policy,
        ).in_batches(options.batch_partitions)
        controller = self._sidecar.controller
        if request.all:
            warnings += await runtime.came.lines(topics, wall_clock_ms())
        with shown_as(IllegalState, refused.Refused):
            job = await self._write_down(
                runtime,
                lambda: controller.begin_promote(
                    link,
                    topics,
                    validation=policy,
                    accept_missing=options.accept_missing,
                    requested_by=request.requested_by,
                    warnings=warnings,
                    switch=switch,
                ),
                settings,
                "promote",
            )
        return job_status.promote_job(runtime, job)

    async def _follow_configs(self, runtime: LinkRuntime, topics: Sequence[str]) -> list[str]:
        """A promote sets what the source has now, not what it had when somebody looked last. A way back is not kept from
        anybody because of them: then that is a warning."""
        try:
            await runtime.configs.follow(topics)
        except LinkerError as error:
            if self._image.links[runtime.name].reverse_of is not None:
                return [
                    f"the topics get the configs that they had before they were switched, not their owner's: {error}"
                ]
            raise preflight.PreflightError(
                f"a promote gives the topics the configs of their source, and these cannot be read: {error}"
            ) from error
        return []

    async def list_promotes(self, link: str) -> list[PromoteJobStatus]:
        runtime = self._runtime(link)
        jobs = sorted(
            (job for (name, _), job in self._image.jobs.items() if name == link), key=lambda job: -job.id
        )
        return [job_status.promote_job(runtime, job) for job in jobs]

    async def describe_promote(self, promote_id: str) -> PromoteJobStatus:
        job = job_status.find_job(self._image, promote_id)
        if job is None:
            raise PromoteNotFound(promote_id)
        return job_status.promote_job(self._runtime(job.link), job)
