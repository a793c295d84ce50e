"""The errors of this package. Each is one line that a person can act on."""

from __future__ import annotations

from collections.abc import Mapping

from wire.errors import LinkerError
from wire.frames.types import TopicPartition


class ControllerError(LinkerError):
    """Base of this package's errors."""


class InvalidName(ControllerError):
    """A link or topic name that could not be a key of the state store."""


class AlreadyExists(ControllerError):
    """The thing to create is there already."""


class NotFound(ControllerError):
    """The thing to change does not exist."""


class Refused(ControllerError):
    """A decision that must not be taken in the present state; nothing was changed."""


class SourceClosed(Refused):
    """The source still refuses writes because of a promote that is over, and the requested deletion would forget that."""

    def __init__(self, owed: Mapping[str, int]) -> None:
        """`owed`: topic -> the promote that closed it."""
        jobs = sorted(set(owed.values()))
        super().__init__(
            f"the source may still refuse writes to {', '.join(sorted(owed))}, because promote "
            f"{', '.join(map(str, jobs))} was abandoned while it could not be reached or had not answered, or was cut off "
            "by a restart; that is undone as soon as it can be, and two minutes later it is certain"
        )
        self.topics = sorted(owed)


class NotTheLeader(ControllerError):
    """A report from a sidecar that does not lead the partition, as far as the link controller knows. The link controller may
    learn of a new leader later than the leader itself.
    """


class IllegalTransition(Refused):
    """A phase change that the table does not have; the state stayed as it was."""

    def __init__(self, subject: str, current: str, wanted: str) -> None:
        super().__init__(f"{subject} is {current} and cannot become {wanted}")


class CorruptState(ControllerError):
    """A value in the store that this version cannot read. The message names the path."""


class PromoteAbandoned(ControllerError):
    """The batch goes back to ACTIVE; the reason names partitions and brokers."""

    def __init__(self, reason: str, partitions: Mapping[TopicPartition, str] | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.partitions: Mapping[TopicPartition, str] = partitions or {}


class PromoteStuck(ControllerError):
    """A step that can neither be undone nor skipped did not succeed in time. The phase stays; resume() continues."""
