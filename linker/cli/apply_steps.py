"""Carrying out the steps of a link file, and what came of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from admin.client import AdminError
from admin.models import Action, ChangeResult, Model
from linker.cli.link_plan import Step, StepKind
from wire.shown_id import listed

if TYPE_CHECKING:
    from admin.client import AdminClient

Outcome = Literal["done", "would", "unchanged", "not in the file", "failed", "conflict", "skipped"]
_LINK_STEPS = (StepKind.CREATE_LINK, StepKind.UPDATE_LINK, StepKind.CONTINUE_VALIDATION, StepKind.CONFLICT)
_MOST_NAMED = 5


class AppliedStep(Model):
    """One step of a file, and its outcome."""

    step: StepKind
    link: str
    topics: list[str] = Field(default=[])
    outcome: Outcome
    differences: list[str] = Field(default=[], description="There, and in the file.")
    actions: list[Action] = Field(default=[], description="As the sidecar tells them.")
    warnings: list[str] = Field(default=[])
    reason: str | None = None

    def lines(self, told: Callable[[ChangeResult], list[str]]) -> list[str]:
        """For people; `told` is how the sidecar's own actions read."""
        whole = f"link {self.link}"
        if self.topics:
            whole = f"{listed(self.topics, _MOST_NAMED)} of {whole}"
        step = self.step.removesuffix(" link")
        differences = [f"  {one}" for one in self.differences]
        if self.outcome in ("unchanged", "not in the file"):
            return [f"{self.outcome}: {whole}"]
        if self.outcome in ("failed", "conflict", "skipped"):
            verb = "" if self.outcome == "conflict" else f" {step}"
            reason = f": {self.reason}" if self.reason else ""
            return [f"{self.outcome}:{verb} {whole}{reason}", *differences]
        would = self.outcome == "would"
        done = told(ChangeResult(dry_run=would, actions=self.actions, warnings=self.warnings))
        if not self.actions:
            reason = f" ({self.reason})" if self.reason else ""
            done = [f"{'would ' if would else ''}{step} {whole}{reason}", *done]
        return done[:1] + differences + done[1:]


class AppliedFile(Model):
    """A file that was applied, or with dry_run would be."""

    dry_run: bool
    changes: int
    unchanged: int
    failed: int = Field(
        description="Steps that failed, were refused, skipped after such a one, or are in conflict."
    )
    steps: list[AppliedStep]


def carry_out(client: AdminClient, steps: Iterable[Step], *, dry_run: bool) -> AppliedFile:
    """One after the other. After a step that failed those of its link are skipped; without an answer all that follow."""
    run = _Run(client, dry_run)
    done = [run.step(one) for one in steps]

    def count(*outcomes: Outcome) -> int:
        return sum(max(1, len(one.topics)) for one in done if one.outcome in outcomes)

    return AppliedFile(
        dry_run=dry_run,
        changes=count("done", "would"),
        unchanged=count("unchanged"),
        failed=sum(one.outcome in ("failed", "conflict", "skipped") for one in done),
        steps=done,
    )


class _Run:
    def __init__(self, client: AdminClient, dry_run: bool) -> None:
        self._client = client
        self._dry_run = dry_run
        self._failed: set[str] = set()
        self._lost: str | None = None  # the sidecar does not answer any more
        self._planned: set[str] = set()  # links that a dry run would have made
        self._emptied: set[str] = set()  # links whose mirrors a dry run would have deleted

    def step(self, step: Step) -> AppliedStep:
        match step.kind:
            case StepKind.UNCHANGED:
                return _applied(step, "unchanged")
            case StepKind.NOT_IN_FILE:
                return _applied(step, "not in the file")
            case StepKind.CONFLICT:
                if not step.topics:
                    self._failed.add(step.link)
                return _applied(step, "conflict")
        if self._lost is not None:
            return _applied(step, "skipped", reason=self._lost)
        if step.link in self._failed:
            return _applied(step, "skipped", reason=f"link {step.link} is not as the file has it")
        if self._dry_run and (reason := self._not_asked(step)) is not None:
            return _applied(step, "would", reason=reason)
        try:
            result = self._ask(step)
        except AdminError as error:
            if error.unreachable:
                self._lost = "the admin API does not answer"
            if step.kind in _LINK_STEPS or step.kind is StepKind.DELETE_MIRROR:
                self._failed.add(step.link)
            return _applied(step, "failed", reason=str(error))
        if step.kind is StepKind.CREATE_LINK:
            self._planned.add(step.link)
        elif step.kind is StepKind.DELETE_MIRROR:
            self._emptied.add(step.link)
        return _applied(step, "would" if self._dry_run else "done", result=result)

    def _not_asked(self, step: Step) -> str | None:
        """Why the sidecar cannot say now what a step would do."""
        if step.kind is StepKind.CREATE_MIRRORS and step.link in self._planned:
            return "its topics are checked once the link is there"
        if step.kind is StepKind.DELETE_LINK and step.link in self._emptied:
            return "checked once its mirrors are deleted"
        return None

    def _ask(self, step: Step) -> ChangeResult:
        client, dry_run = self._client, self._dry_run
        match step.kind:
            case StepKind.CREATE_LINK:
                return client.create_link(step.request, dry_run=dry_run)  # type: ignore[arg-type]
            case StepKind.UPDATE_LINK:
                return client.update_link(step.link, step.request, dry_run=dry_run)  # type: ignore[arg-type]
            case StepKind.CONTINUE_VALIDATION:
                return client.continue_validation(step.link, step.request, dry_run=dry_run)  # type: ignore[arg-type]
            case StepKind.CREATE_MIRRORS:
                return client.create_mirrors(step.link, step.request, dry_run=dry_run)  # type: ignore[arg-type]
            case StepKind.DELETE_MIRROR:
                return client.delete_mirror(step.link, step.topics[0], dry_run=dry_run)
        return client.delete_link(step.link, dry_run=dry_run)


def _applied(
    step: Step, outcome: Outcome, *, result: ChangeResult | None = None, reason: str | None = None
) -> AppliedStep:
    return AppliedStep(
        step=step.kind,
        link=step.link,
        topics=list(step.topics),
        outcome=outcome,
        differences=list(step.differences),
        actions=[] if result is None else result.actions,
        warnings=[] if result is None else result.warnings,
        reason=reason,
    )
