"""Starting, following and ending validations; the continuous one is an option of its link."""

from __future__ import annotations

from collections.abc import Sequence

from admin.models import Action, ChangeResult
from admin.service import IllegalState, NotReady, PreflightFailed, ValidationNotFound
from admin.validation_models import (
    ContinuousValidationRequest,
    LinkValidationDescription,
    StartValidationRequest,
    ValidationRun,
)
from controller.phases import ENDED, SWITCHING
from linker.links import proved
from linker.links.runtime import LinkRuntime
from linker.service.base import ServiceBase
from linker.validation.needs import missing_parts
from linker.validation.runner import INTERVAL_OPTION, NotRunning
from linker.validation.runs import RunStatus
from validator.mode import Mode
from wire.shown_id import listed


class Validations(ServiceBase):
    async def validation(self, link: str) -> LinkValidationDescription:
        return proved.link_description(self._runtime(link), self._reverse(link))

    async def start_validation(self, link: str, request: StartValidationRequest) -> ValidationRun:
        self._runtime(link)
        self._require_ready()
        found = self._by_direction(link, list(dict.fromkeys(request.topics)))
        if not found:
            raise IllegalState(f"link {link} has no mirrors to validate")
        if len(found) > 1:
            forward = listed(found.pop(self._runtime(link)))
            back = listed(next(iter(found.values())))
            raise IllegalState(
                f"the source owns {forward} and the target {back}, which are two runs: name those of one of them"
            )
        ((runtime, topics),) = found.items()
        _refuse_without_parts()
        try:
            return proved.run(link, runtime.validation.start(topics, Mode(request.mode)))
        except NotRunning as error:
            raise NotReady(str(error)) from error

    async def continue_validation(
        self, link: str, request: ContinuousValidationRequest, *, dry_run: bool
    ) -> ChangeResult:
        self._require_ready()
        async with self._changing:
            runtime = self._runtime(link)
            before = self._image.links[link].options
            wanted = (
                request.interval_ms or self._sidecar.config.validation.interval_ms
                if request.enabled
                else None
            )
            if request.enabled:
                _refuse_without_parts()
            if before.get(INTERVAL_OPTION) == wanted:
                return ChangeResult(dry_run=dry_run, actions=[])
            await self._sidecar.controller.update_link(
                link, None, {**before, INTERVAL_OPTION: wanted}, dry_run=dry_run
            )
            if not dry_run:
                for one in (runtime, self._reverse(link)):
                    if one is not None:
                        one.validation.options_changed()
        what = "begin continuous validation" if wanted is not None else "end continuous validation"
        detail = "" if wanted is None else f"every {wanted / 1000:g} s"
        return ChangeResult(dry_run=dry_run, actions=[Action(action=what, resource=link, detail=detail)])

    async def describe_validation(self, run: str) -> ValidationRun:
        runtime, found = self._run(run)
        return proved.run(self._named(runtime), found)

    async def cancel_validation(self, run: str) -> ValidationRun:
        runtime, found = self._run(run)
        if found.kind != "once" and not found.state.final:
            raise IllegalState(
                f"validation {run} was begun by "
                + ("the continuous validation: end that" if found.kind == "continuous" else "a promote")
            )
        runtime.validation.cancel(run)
        return proved.run(self._named(runtime), found)

    def _named(self, runtime: LinkRuntime) -> str:
        """The link as people name it."""
        return self._image.links[runtime.name].reverse_of or runtime.name

    def _by_direction(self, link: str, topics: Sequence[str]) -> dict[LinkRuntime, list[str]]:
        """The topics (all, where none is named) by the link that mirrors them now: this one, or the one that runs the other
        way, whose replicas are the source's."""
        forward, reverse = self._runtime(link), self._reverse(link)
        found: dict[LinkRuntime, list[str]] = {}
        back = [] if reverse is None else [one.topic for one in self._image.link_mirrors(reverse.name)]
        back = [topic for topic in back if reverse is not None and self._follows(reverse.name, topic)]
        if not topics:
            there = [one.topic for one in self._image.link_mirrors(link)]
            topics = list(dict.fromkeys([*there, *back]))
        for topic in topics:
            if reverse is not None and topic in back:
                found.setdefault(reverse, []).append(topic)
            else:
                self._mirror(link, topic)
                found.setdefault(forward, []).append(topic)
        return found

    def _follows(self, link: str, topic: str) -> bool:
        return any(
            state.phase not in ENDED | SWITCHING for state in self._image.topic_partitions(link, topic)
        )

    def _run(self, name: str) -> tuple[LinkRuntime, RunStatus]:
        for link in self._sidecar.links:
            for runtime in (self._sidecar.links[link], self._reverse(link)):
                for one in () if runtime is None else runtime.validation.runs:
                    if runtime is not None and one.id == name:
                        return runtime, one
        raise ValidationNotFound(name)

    def _unproved(self, runtime: LinkRuntime, topics: list[str]) -> list[str]:
        """The part of these topics that a promote would have the validator prove first, the worst of each topic."""
        lines = []
        for topic in topics:
            for state in self._image.topic_partitions(runtime.name, topic):
                if state.phase in ENDED:
                    continue
                reason = runtime.ports.unproved(state.tp)
                if reason is not None:
                    lines.append(f"{state.tp}: {reason}")
        return lines


def _refuse_without_parts() -> None:
    missing = missing_parts()
    if missing is not None:
        raise PreflightFailed(missing)
