"""Rights, quotas and users of a link's clients: the difference between source and target."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from admin.base import Model
from admin.models.common import AclSync


class AclRow(Model):
    """One ACL as it is, or is to be, at the target; the words are Kafka's."""

    principal: str
    host: str
    operation: str
    permission: str
    resource_type: str
    pattern_type: str
    resource_name: str


class LeftOutAcl(Model):
    """An ACL of the source that is not carried although the filters take it."""

    acl: AclRow
    reason: str


class LackingRight(Model):
    """A right that a principal has at the source, and has not at the target."""

    principal: str = Field(description="At the source.")
    target_principal: str
    operation: str
    host: str
    resource_type: str
    names: list[str] = Field(description="Mirrored topics, held groups, or transactional ids.")


class QuotaRow(Model):
    """One client quota."""

    entity: str = Field(description="E.g. 'user alice and client-id etl'.")
    quota: str
    source: float
    target: float | None = None


class MissingScramUser(Model):
    """A SCRAM user that the target has not, or not with these mechanisms. Brokers do not tell passwords."""

    user: str
    mechanisms: list[str]


class AclSyncStatus(Model):
    """Where a link stands with the ACLs of its source."""

    mode: AclSync
    compared_at: datetime | None = None
    missing: int = Field(default=0, description="ACLs of the source that the target has not.")
    carried: int = Field(default=0, description="ACLs at the target that the link has made.")
    left_out: int = 0
    trouble: str | None = Field(default=None, description="Why ACLs are not compared or carried.")


class AccessReport(Model):
    """ACLs, quotas and SCRAM users of the link's clients at both clusters."""

    link: str
    at: datetime
    acl_sync: AclSync
    missing: list[AclRow] = Field(default=[], description="ACLs of the source that the target has not.")
    removable: list[AclRow] = Field(
        default=[], description="ACLs that the link has made and that the source has no more."
    )
    present: int = Field(default=0, description="ACLs of the source that the target has.")
    left_out: list[LeftOutAcl] = []
    wide: list[AclRow] = Field(
        default=[],
        description="ACLs that give rights on topics of the target that are no mirrors of this link.",
    )
    lacking: list[LackingRight] = []
    quotas_missing: list[QuotaRow] = []
    quotas_differ: list[QuotaRow] = Field(default=[], description="The target's value stays.")
    quotas_not_copied: list[QuotaRow] = Field(
        default=[], description="Defaults and addresses: they would bind clients that the link does not know."
    )
    scram_users_missing: list[MissingScramUser] = []
    note: str | None = Field(
        default=None, description="Why ACLs do not matter, where the target has no authorizer."
    )
    not_known: list[str] = Field(
        default=[], description="Parts that a cluster does not tell, with the reason."
    )


class ApplyAccessRequest(Model):
    """Which differences are to be removed."""

    acls: bool = True
    quotas: bool = True
