"""Names and patterns, and answers that several operations share."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    Field,
    StringConstraints,
)

from admin.base import Model
from controller.plan.topic_configs import COPIED

GroupName = Annotated[str, StringConstraints(min_length=1, max_length=255)]


Millis = Annotated[int, Field(ge=0)]

BrokerId = Annotated[int, Field(ge=0, le=2**31 - 1)]


def _check_rate(rate: int) -> int:
    if 0 < rate < LEAST_RATE:
        raise ValueError(f"a rate is 0, for no limit, or at least {LEAST_RATE} bytes per second")
    return rate


#: Less would be one fetch in seconds.
LEAST_RATE = 100_000
#: Bytes per second; 0: no limit.
Rate = Annotated[int, Field(ge=0, le=1 << 40), AfterValidator(_check_rate)]


_CLOSED_BY = {"{": "}", "[": "]", "(": ")"}


def patterns(text: str) -> list[str]:
    """Comma-separated regular expressions, as Kafka's tools take them. A comma inside {}, [] or (), or after a
    backslash, belongs to its expression. ValueError for brackets that do not match, because the end of such an
    expression is unclear."""
    parts = [""]
    open_: list[str] = []
    place = 0
    while place < len(text):
        one = text[place]
        if one == "\\":
            one = text[place : place + 2]
        elif one == "[":
            one = _set_at(text, place)
        elif one in _CLOSED_BY:
            open_.append(one)
        elif one in _CLOSED_BY.values() and (not open_ or _CLOSED_BY[open_.pop()] != one):
            raise _unbalanced(one, text)
        place += len(one)
        if one == "," and not open_:
            parts.append("")
        else:
            parts[-1] += one
    if open_:
        raise _unbalanced(open_[-1], text)
    return [one for part in parts if (one := part.strip())]


def compiled(text: str) -> tuple[re.Pattern[str], ...]:
    """The `patterns`, each by itself, as they were checked: joined, one with flags or a named group would be another pattern
    or none. Group ids, client ids and the like may have line breaks in them, which `.` takes too."""
    return tuple(re.compile(one, re.DOTALL) for one in patterns(text))


def _set_at(text: str, start: int) -> str:
    """The set of characters that begins there, as `re` reads it: a ] in front is one of them."""
    found = re.compile(r"\[\^?+\]?+(?:[^\\\]]|\\.)*\]", re.DOTALL).match(text, start)
    if found is None:
        raise _unbalanced("[", text)
    return found[0]


def _unbalanced(bracket: str, text: str) -> ValueError:
    return ValueError(
        f"in {text!r} a {bracket} has no partner: expressions are separated by commas outside {{}}, [] and (), and a "
        f"bracket that stands for itself is written \\{bracket}"
    )


def _check_patterns(text: str) -> str:
    for one in patterns(text):
        try:
            re.compile(one)
        except re.error as error:
            raise ValueError(f"{one!r} is not a regular expression: {error}") from None
    return text


Patterns = Annotated[str, StringConstraints(max_length=10_000), AfterValidator(_check_patterns)]


def principal_rules(text: str) -> list[tuple[str, str]]:
    """Rules `expression=>replacement`, separated by semicolons; ValueError names the one that is none."""
    found = []
    for rule in (one.strip() for one in text.split(";")):
        if not rule:
            continue
        expression, arrow, replacement = rule.partition("=>")
        if not arrow or not replacement.strip():
            raise ValueError(f"{rule!r} is no rule: write EXPRESSION=>REPLACEMENT, as in User:a=>User:b")
        try:
            re.compile(expression.strip()).sub(replacement.strip(), "")
        except (re.error, IndexError) as error:
            raise ValueError(f"{rule!r} is no rule: {error}") from None
        found.append((expression.strip(), replacement.strip()))
    return found


def _check_principal_rules(text: str) -> str:
    principal_rules(text)
    return text


PrincipalRules = Annotated[str, StringConstraints(max_length=10_000), AfterValidator(_check_principal_rules)]


def _words(text: str, known: frozenset[str], what: str) -> str:
    words = [one.strip().lower() for one in text.split(",") if one.strip()]
    unknown = sorted(set(words) - known)
    if unknown or not words:
        raise ValueError(f"{', '.join(unknown) or 'nothing'}: {what} are {', '.join(sorted(known))}")
    return ",".join(dict.fromkeys(words))


ACL_RESOURCES = frozenset({"topic", "group", "transactional_id", "cluster"})
ACL_OPERATIONS = frozenset(
    {"all", "read", "write", "create", "delete", "alter", "describe", "describe_configs", "alter_configs"}
    | {"idempotent_write", "two_phase_commit"}
)
AclResources = Annotated[str, AfterValidator(lambda text: _words(text, ACL_RESOURCES, "resources"))]
AclOperations = Annotated[str, AfterValidator(lambda text: _words(text, ACL_OPERATIONS, "operations"))]
AclSync = Literal["follow", "report", "off"]


def known_configs(names: list[str]) -> list[str]:
    """Sorted; ValueError for one that no mirror takes from its source."""
    unknown = sorted(set(names) - COPIED)
    if unknown:
        raise ValueError(
            f"{', '.join(unknown)}: no config that a mirror takes from its source; those are {', '.join(sorted(COPIED))}"
        )
    return sorted(set(names))


def _check_config_names(text: str) -> str:
    return ",".join(known_configs([one.strip() for one in text.split(",") if one.strip()]))


ConfigNames = Annotated[str, StringConstraints(max_length=10_000), AfterValidator(_check_config_names)]
ConfigSync = Literal["follow", "report", "off"]


GroupPromotePolicy = Literal["manual", "auto"]


GateChoice = Literal[
    "auto", "consumer", "classic", "transaction", "consumer+transaction", "classic+transaction"
]


TopicsDeleted = Literal["fail", "keep", "delete"]


#: The source's cluster id comes behind it.
HeartbeatTopic = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9._-]{0,200}$")]
ReadsPolicy = Literal["allow", "hold"]


# --- states


class Action(Model):
    """One thing that a change did, or with dry_run would do."""

    action: str = Field(description="The change, e.g. 'create topic'.")
    resource: str = Field(description="Its object, e.g. 'orders'.")
    detail: str = ""


class ChangeResult(Model):
    """Answer to every change except a promote."""

    dry_run: bool
    actions: list[Action]
    warnings: list[str] = []
    pending: bool = Field(
        default=False,
        description="The change is durable and goes on after this answer; describe the sidecar to follow it.",
    )


TopicPrefix = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9._-]{0,128}$")]


class Forwarding(Model):
    """Whether produces that arrive at the target are forwarded to this link's source."""

    enabled: bool
    reason: str | None = Field(default=None, description="Why they are not.")
    target_next_producer_id: int | None = None
    source_highest_producer_id: int | None = None


class Traffic(Model):
    """Counters since the sidecar's start, of topics that were switched, too. Two readings, `at` apart, give a rate."""

    fetched_bytes: int = 0
    served_bytes: int = 0
    forwarded_produces: int = 0
    forwarded_bytes: int = 0
    forward_errors: int = 0
