"""Errors that the service behind the admin API may raise, each with its HTTP status and its finer code."""

from __future__ import annotations

from collections.abc import Sequence

from wire.errors import LinkerError
from wire.shown_id import shown_id


class ServiceError(LinkerError):
    """A refused request: `status` is the HTTP status, `error_code` the finer code (status * 100 + n)."""

    status = 500
    error_code = 50001


class InvalidRequest(ServiceError):
    status, error_code = 400, 40001


class LinkNotFound(ServiceError):
    status, error_code = 404, 40401

    def __init__(self, link: str) -> None:
        super().__init__(f"link {link} does not exist")


class MirrorNotFound(ServiceError):
    status, error_code = 404, 40402

    def __init__(self, link: str, topic: str, called: str | None = None) -> None:
        """`called`: the mirror's own name, if `topic` is that of its source topic."""
        told = "" if called is None else f"; the mirror of the source's {topic} is called {called} here"
        super().__init__(f"link {link} has no mirror of topic {topic}{told}")


class PromoteNotFound(ServiceError):
    status, error_code = 404, 40403

    def __init__(self, promote_id: str) -> None:
        super().__init__(f"promote {promote_id} does not exist")


class SidecarNotFound(ServiceError):
    status, error_code = 404, 40404

    def __init__(self, sidecar_id: int) -> None:
        super().__init__(f"sidecar {sidecar_id} does not exist")


class ValidationNotFound(ServiceError):
    status, error_code = 404, 40407

    def __init__(self, run: str) -> None:
        super().__init__(
            f"validation {run} does not exist (the link controller remembers only its own last ones)"
        )


class SourceTopicNotFound(ServiceError):
    status, error_code = 404, 40405

    def __init__(self, topics: Sequence[str]) -> None:
        super().__init__(f"the source has no topic {', '.join(topics)}")


class GroupNotFound(ServiceError):
    status, error_code = 404, 40406

    def __init__(self, link: str, group: str) -> None:
        super().__init__(f"link {link} has no group {shown_id(group)}")


class NameTaken(ServiceError):
    """A link, mirror or target topic of this name is there already."""

    status, error_code = 409, 40901


class IllegalState(ServiceError):
    """Refused in the present state, as pausing while promoting, or leaving while leading."""

    status, error_code = 409, 40902


class PreflightFailed(ServiceError):
    """The clusters do not allow it: same cluster id, missing ACL, segment.bytes too small, target too old."""

    status, error_code = 422, 42201


class NotReady(ServiceError):
    """The sidecar is starting, stopping or without its lease; the same request may work later."""

    status, error_code = 503, 50301


class NoLinkController(ServiceError):
    """No link controller takes the change now: another sidecar has just taken over, or the state store does not
    answer; the same request may work later."""

    status, error_code = 503, 50302


class ControllerAway(ServiceError):
    """The link controller of the fleet does not answer the sidecar that was asked; the message says which one and
    why."""

    status, error_code = 503, 50303


class OutcomeUnknown(ServiceError):
    """The state store did not say in time whether a promote or failover was written down. If it was, it ends ABANDONED
    by itself and nothing of it happens; the message says where to look."""

    status, error_code = 503, 50304
