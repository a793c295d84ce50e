"""Rights, quotas and users as tables for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from linker.cli.output import columns, pairs
from wire.shown_id import listed, shown_id

if TYPE_CHECKING:
    from admin.models import AccessReport, AclRow, QuotaRow

_ACL = ("PRINCIPAL", "PERMISSION", "OPERATION", "HOST", "RESOURCE", "NAME")


def access(found: AccessReport) -> str:
    """Sections that have something to say, below the totals."""
    head = pairs(
        [
            ("link", found.link),
            ("acl sync", found.acl_sync),
            ("note", found.note),
            ("ACLs there", found.present),
            ("ACLs missing", len(found.missing)),
            ("ACLs gone at the source", len(found.removable) or None),
            ("not known", "; ".join(found.not_known) or None),
        ]
    )
    sections = [
        ("ACLs missing at the target", _acls(found.missing)),
        ("ACLs that the link made, gone at the source", _acls(found.removable)),
        (
            "Rights that principals have at the source, and not at the target",
            columns(
                ("PRINCIPAL", "AT THE TARGET", "OPERATION", "HOST", "RESOURCE", "NAMES"),
                [
                    (
                        shown_id(one.principal),
                        shown_id(one.target_principal),
                        one.operation,
                        one.host,
                        one.resource_type,
                        listed(map(shown_id, one.names)),
                    )
                    for one in found.lacking
                ],
                empty="",
            ),
        ),
        (
            "ACLs that are not carried",
            columns((*_ACL, "REASON"), [(*_acl(one.acl), one.reason) for one in found.left_out], empty=""),
        ),
        ("ACLs that reach topics of the target which are no mirrors of this link", _acls(found.wide)),
        ("Quotas missing at the target", _quotas(found.quotas_missing)),
        ("Quotas that differ; the target's stay", _quotas(found.quotas_differ)),
        ("Quotas that are not copied: they bind other clients, too", _quotas(found.quotas_not_copied)),
        (
            "SCRAM users missing at the target (passwords cannot be carried)",
            columns(
                ("USER", "MECHANISMS"),
                [(shown_id(one.user), ", ".join(one.mechanisms)) for one in found.scram_users_missing],
                empty="",
            ),
        ),
    ]
    return "\n\n".join([head, *(f"{title}:\n{table}" for title, table in sections if table)])


def incomplete(found: AccessReport) -> bool:
    """Whether the target lacks something, or a cluster does not tell."""
    return bool(
        found.missing
        or found.removable
        or found.lacking
        or found.quotas_missing
        or found.scram_users_missing
        or found.not_known
    )


def _acls(rows: Iterable[AclRow]) -> str:
    return columns(_ACL, [_acl(row) for row in rows], empty="")


def _acl(row: AclRow) -> tuple[str, ...]:
    name = shown_id(row.resource_name) + ("*" if row.pattern_type == "PREFIXED" else "")
    return (shown_id(row.principal), row.permission, row.operation, row.host, row.resource_type, name)


def _quotas(rows: Iterable[QuotaRow]) -> str:
    return columns(
        ("ENTITY", "QUOTA", "SOURCE", "TARGET"),
        [(shown_id(row.entity), row.quota, f"{row.source:g}", _number(row.target)) for row in rows],
        empty="",
    )


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:g}"
