"""Rights, quotas and users of a link's clients: compared, and carried to the target on request."""

from __future__ import annotations

from admin.models import AccessReport, Action, ApplyAccessRequest, ChangeResult, QuotaRow
from admin.service import PreflightFailed
from linker.access.cluster_access import set_quotas
from linker.access.options import acl_options
from linker.access.report import access_report, acl_text
from linker.service.base import ServiceBase
from wire.errors import LinkerError


class AccessChanges(ServiceBase):
    async def describe_access(self, link: str) -> AccessReport:
        report, _ = await access_report(self._runtime(link))
        return report

    async def apply_access(self, link: str, request: ApplyAccessRequest, *, dry_run: bool) -> ChangeResult:
        self._require_ready()
        runtime = self._runtime(link)
        async with self._changing:
            report, quotas = await access_report(runtime)
            actions = []
            if request.acls:
                actions += [Action(action="create ACL", resource=acl_text(one)) for one in report.missing]
                actions += [Action(action="delete ACL", resource=acl_text(one)) for one in report.removable]
            if request.quotas:
                actions += [
                    Action(action="set quota", resource=one.entity, detail=f"{one.quota} {one.source:g}")
                    for one in report.quotas_missing
                ]
            try:
                if not dry_run and request.acls and (report.missing or report.removable):
                    _, rules = acl_options(self._image.links[link].options)
                    await runtime.acls.look(rules, follow=True, at_once=True)
                if not dry_run and request.quotas:
                    await set_quotas(runtime.target.cluster, quotas.add, node=runtime.acls.node())
            except LinkerError as error:
                raise PreflightFailed(f"{error}; linker acl diff {link} shows what is there now") from error
        return ChangeResult(dry_run=dry_run, actions=actions, warnings=_warnings(report))


def _warnings(report: AccessReport) -> list[str]:
    told = [f"not carried: {acl_text(one.acl)}: {one.reason}" for one in report.left_out]
    told += [
        f"{acl_text(one)} reaches topics of the target that are no mirrors of this link"
        for one in report.wide
    ]
    told += [_differs(one) for one in report.quotas_differ]
    told += [
        f"SCRAM user {one.user} has no {' and '.join(one.mechanisms)} at the target, and brokers do not tell passwords: "
        f"kafka-configs.sh --alter --add-config '{one.mechanisms[0]}=[password=...]' --entity-type users "
        f"--entity-name {one.user}"
        for one in report.scram_users_missing
    ]
    return [*told, *(f"not known: {one}" for one in report.not_known)]


def _differs(row: QuotaRow) -> str:
    return f"quota {row.quota} of {row.entity} is {row.source:g} at the source and {row.target or 0:g} here, which stays"
