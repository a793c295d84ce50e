"""The difference of both clusters, for people: what is missing, who may not, what is left out."""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Iterable
from datetime import UTC, datetime
from typing import TypeVar

from admin.models import (
    AccessReport,
    AclRow,
    AclSyncStatus,
    Check,
    CheckResult,
    LackingRight,
    LeftOutAcl,
    MissingScramUser,
    QuotaRow,
)
from controller.access.acls import Acl, Resource
from controller.access.carry import AclRules
from controller.access.lacking import Lacking, lacking
from controller.access.quotas import QuotaPlan, compare, missing_users, users_of
from linker.access.cluster_access import NoAuthorizer, read_quotas, read_scram_users
from linker.access.keeper import AclState
from linker.access.options import acl_options
from linker.links.runtime import LinkRuntime
from wire.errors import LinkerError
from wire.shown_id import listed

T = TypeVar("T")

_SHOWN = 5
_OPEN_SOURCE = (
    "the source has no authorizer and the target has one: at the source everybody may, at the target only principals that "
    "have ACLs there"
)
_NOT_KNOWN = "whether the target lets in everybody that the source lets in is not known"
_RIGHT = "give the link's principal DESCRIBE on Cluster at both, or set acl_sync=off"
_REMEDY = "linker acl diff LINK lists what is missing, --apply makes it; --option acl_sync=follow keeps it so"


async def access_report(runtime: LinkRuntime) -> tuple[AccessReport, QuotaPlan]:
    """Both clusters are asked now. A part that is not told is named in `not_known`."""
    options, rules = acl_options(runtime.controller.image.links[runtime.name].options)
    not_known: list[str] = []
    state, note = None, None
    try:
        state = await runtime.acls.compare(rules)
    except NoAuthorizer as error:
        if error.cluster is runtime.target.cluster:
            note = "the target has no authorizer: everybody may do everything there"
        else:
            not_known.append(_OPEN_SOURCE)
    except LinkerError as error:
        not_known.append(f"ACLs: {error}")
    quotas, users = QuotaPlan(), []
    target, node = runtime.target.cluster, runtime.acls.node()
    here = await _told("quotas", read_quotas(runtime.source), not_known)
    there = await _told("quotas", read_quotas(target, node=node), not_known)
    scram_here = await _told("SCRAM users", read_scram_users(runtime.source), not_known)
    scram_there = await _told("SCRAM users", read_scram_users(target, node=node), not_known)
    if state is None:
        # No ACL tells the link's clients from others: all users that the source knows.
        known = {f"User:{name}" for name in (*users_of(here or {}), *(scram_here or {}))}
        principals = {one: rules.mapped(one) for one in sorted(known)}
    else:
        principals = dict(state.selection.principals)
    if here is not None and there is not None:
        quotas = compare(here, there, principals)
    if scram_here is not None and scram_there is not None:
        users = missing_users(scram_here, scram_there, principals, rules.mapped)
    report = AccessReport(
        link=runtime.name,
        at=datetime.now(UTC),
        acl_sync=options.acl_sync,
        missing=[] if state is None else _rows(state.plan.add),
        removable=[] if state is None else _rows(state.plan.remove),
        present=0 if state is None else state.plan.present,
        left_out=[]
        if state is None
        else [LeftOutAcl(acl=_row(one.acl), reason=one.reason) for one in state.selection.left_out],
        wide=[] if state is None else _rows(state.selection.wide),
        lacking=[
            LackingRight(
                principal=one.principal,
                target_principal=one.mapped,
                operation=one.operation,
                host=one.host,
                resource_type=one.kind,
                names=list(one.names),
            )
            for one in ([] if state is None else lacking_now(runtime, state, rules))
        ],
        quotas_missing=[
            QuotaRow(entity=str(entity), quota=key, source=value)
            for entity, values in quotas.add.items()
            for key, value in values.items()
        ],
        quotas_differ=[
            QuotaRow(entity=str(entity), quota=key, source=value, target=there_)
            for entity, key, value, there_ in quotas.differ
        ],
        quotas_not_copied=[
            QuotaRow(entity=str(entity), quota=key, source=value) for entity, key, value in quotas.not_copied
        ],
        scram_users_missing=[
            MissingScramUser(user=one.user, mechanisms=list(one.mechanisms)) for one in users
        ],
        note=note,
        not_known=not_known,
    )
    return report, quotas


async def _told(what: str, asked: Awaitable[T], not_known: list[str]) -> T | None:
    try:
        return await asked
    except LinkerError as error:
        not_known.append(f"{what}: {error}")
        return None


def lacking_now(
    runtime: LinkRuntime, state: AclState, rules: AclRules, topics: Collection[str] | None = None
) -> list[Lacking]:
    """topics: None for all that are followed."""
    return lacking(
        state.source,
        state.target,
        runtime.acls.topics() if topics is None else topics,
        [group.group for group in runtime.controller.image.link_groups(runtime.name)],
        rules.mapped,
    )


async def who_may_not(runtime: LinkRuntime, topics: Collection[str]) -> list[str]:
    """A line for each principal that may use one of these topics at the source and not at the target, or one that says why
    that is not known; for dry runs and doctor. The topics need not be mirrored yet."""
    options, rules = acl_options(runtime.controller.image.links[runtime.name].options)
    if options.acl_sync == "off":
        return []
    try:
        state = await runtime.acls.compare(rules)
    except NoAuthorizer as error:
        if error.cluster is runtime.target.cluster:
            return []
        return [_OPEN_SOURCE]
    except LinkerError as error:
        return [f"{_NOT_KNOWN}: {error}; {_RIGHT}"]
    return in_lines(lacking_now(runtime, state, rules, topics))


def in_lines(found: Iterable[Lacking]) -> list[str]:
    """A line for each principal."""
    by_principal: dict[str, list[Lacking]] = {}
    for one in found:
        by_principal.setdefault(one.who, []).append(one)
    lines = []
    for who, rights in by_principal.items():
        told = listed((one.right for one in rights), _SHOWN, apart="; ", last="; and ")
        lines.append(f"{who} may at the source, and not at the target: {told}")
    return lines


async def access_checks(runtime: LinkRuntime, topics: Collection[str]) -> list[Check]:
    """For doctor: a line for each principal, and one if ACLs are not followed."""
    if not topics:
        return []
    lines = await who_may_not(runtime, topics)
    checks = [Check(name="acls", result=CheckResult.WARN, detail=line, remedy=_REMEDY) for line in lines]
    if runtime.acls.trouble is not None and not lines:
        checks.append(Check(name="acls", result=CheckResult.WARN, detail=runtime.acls.trouble))
    return checks


def sync_status(runtime: LinkRuntime) -> AclSyncStatus:
    """As the link controller's last comparison has it."""
    options, _ = acl_options(runtime.controller.image.links[runtime.name].options)
    keeper = runtime.acls
    noted = runtime.controller.image.acls
    last = keeper.last
    return AclSyncStatus(
        mode=options.acl_sync,
        compared_at=None
        if keeper.compared_at is None
        else datetime.fromtimestamp(keeper.compared_at / 1000, UTC),
        missing=0 if last is None else len(last.plan.add),
        carried=sum(len(one.grants) for (link, _), one in noted.items() if link == runtime.name),
        left_out=0 if last is None else len(last.selection.left_out),
        trouble=keeper.trouble,
    )


def acl_text(row: AclRow) -> str:
    """An ACL in one line."""
    resource = Resource(row.resource_type, row.pattern_type, row.resource_name)
    return str(Acl(resource, row.principal, row.host, row.operation, row.permission))


def _rows(acls: Iterable[Acl]) -> list[AclRow]:
    return [_row(acl) for acl in acls]


def _row(acl: Acl) -> AclRow:
    return AclRow(
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission=acl.permission,
        resource_type=acl.resource.kind,
        pattern_type=acl.resource.pattern,
        resource_name=acl.resource.name,
    )
