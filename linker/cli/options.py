"""Options that many commands share, and how they become a client and an output format."""

from __future__ import annotations

import getpass
import inspect
import os
import socket
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer

from linker.cli.output import Format, emit

if TYPE_CHECKING:
    from pydantic import BaseModel

    from admin.client import AdminClient
    from admin.models import FailoverPlan, PromotePlan, RestorePlan

    Answer = TypeVar("Answer", bound=BaseModel | Sequence[BaseModel])
    Plan = TypeVar("Plan", FailoverPlan, PromotePlan, RestorePlan)

DEFAULT_URL = "http://127.0.0.1:8080"

AdminUrl = Annotated[
    str,
    typer.Option(
        "--admin-url",
        metavar="URL",
        envvar="LINKER_ADMIN_URL",
        help="Address of the sidecar's admin API.",
        show_default=True,
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        envvar="LINKER_ADMIN_TOKEN_FILE",
        help="File with the API's token, or set LINKER_ADMIN_TOKEN; the sidecar's user on its machine needs neither.",
    ),
]
Output = Annotated[Format, typer.Option("-o", "--output", help="How to print the answer.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Check everything, say what would be done, change nothing.")
]
LinkOption = Annotated[str, typer.Option("--link", "-l", metavar="LINK", help="Name of the link.")]
TopicArgument = Annotated[
    str, typer.Argument(metavar="TOPIC", help="Name of the mirrored topic.", show_default=False)
]
Topics = Annotated[list[str] | None, typer.Argument(metavar="[TOPIC]...", help="Topics.", show_default=False)]
OnlyLink = Annotated[str | None, typer.Option("--link", "-l", metavar="LINK", help="Only this link.")]
OfLink = Annotated[str | None, typer.Option("--link", "-l", metavar="LINK", help="Only of this link.")]
NamedLink = Annotated[str | None, typer.Option("--link", "-l", metavar="LINK", help="Name of the link.")]
AsOwnTopic = Annotated[
    bool,
    typer.Option(
        "--as-own-topic",
        help="For a link with a prefix: the topic is the target's own from now on, its source goes on by itself.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Start it, print its id and return.")]


class ValidationChoice(StrEnum):
    REQUIRE = "require"
    WARN = "warn"
    SKIP = "skip"


# Options of both promote and switch.
FenceTimeout = Annotated[
    int | None,
    typer.Option(
        "--fence-timeout-ms",
        metavar="MS",
        min=0,
        help="Longest time that writes are held; default: 10000.",
    ),
]
BatchPartitions = Annotated[
    int | None,
    typer.Option(
        "--batch-partitions",
        metavar="PARTITIONS",
        min=1,
        help="Most partitions whose writes are held together; default: 32, and 100 of a switch, which takes whole topics.",
    ),
]
Validation = Annotated[
    ValidationChoice | None,
    typer.Option(
        "--validation",
        help="require: refuse unless all replicas are proved equal; warn: say which are not; skip; default: as configured.",
    ),
]
TransactionTimeout = Annotated[
    int | None,
    typer.Option(
        "--transaction-timeout-ms",
        metavar="MS",
        min=0,
        help="Longest time that an open transaction is waited for; default: 600000.",
    ),
]


@dataclass(frozen=True)
class Asking:
    """The sidecar that a command asks, and the form in which it prints the answer."""

    output: Format
    admin_url: str
    token_file: Path | None

    def client(self) -> AdminClient:
        return connect(self.admin_url, self.token_file)

    def show(self, answer: Answer, table: Callable[[Answer], str]) -> None:
        emit(answer, self.output, lambda: table(answer))

    def answer(self, call: Callable[[AdminClient], Answer], table: Callable[[Answer], str]) -> None:
        """Ask, and print the answer."""
        with self.client() as client:
            answer = call(client)
        self.show(answer, table)

    def planned(self, plan: Plan, table: Callable[[Plan], str]) -> NoReturn:
        """Print what would be done; exit code 1 if something is in the way."""
        self.show(plan, table)
        raise typer.Exit(1 if plan.blockers else 0)


def asking(app: typer.Typer, name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of a function that takes an Asking first. Its options stand behind those of the command."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        def command(*, output: Format, admin_url: str, token_file: Path | None, **given: Any) -> None:
            function(Asking(output, admin_url, token_file), **given)

        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
        command.__name__, command.__doc__ = function.__name__, function.__doc__
        command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in (*own, *_COMMON)]
        )
        app.command(name)(command)
        return function

    return register


_COMMON = [
    inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)
    for name, kind, default in (
        ("output", Output, Format.TABLE),
        ("admin_url", AdminUrl, DEFAULT_URL),
        ("token_file", TokenFile, None),
    )
]


def usage(message: str) -> typer.BadParameter:
    """Wrong use that the parser cannot see; exit code 2."""
    return typer.BadParameter(message)


def chosen(topics: list[str] | None, all_: bool) -> dict[str, Any]:
    """The fields `topics` and `all` of a request, of which exactly one is given."""
    if bool(topics) == all_:
        raise usage("give either topics or --all")
    return {"topics": topics or [], "all": all_}


def given(**options: object) -> dict[str, Any]:
    """The options that were given: the sidecar has the defaults of the others."""
    return {name: value for name, value in options.items() if value is not None and value is not False}


def links_of(client: AdminClient, link: str | None) -> list[str]:
    """That link, or all of them."""
    return [one.name for one in client.list_links()] if link is None else [link]


def connect(url: str, token_file: Path | None) -> AdminClient:
    from admin.client import AdminClient, AdminError

    token = os.environ.get("LINKER_ADMIN_TOKEN") or None
    if token_file is not None:
        try:
            token = token_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise AdminError(f"cannot read the token file {token_file}: {error}") from error
    if token is not None and not (token.isascii() and token.isprintable()):
        raise AdminError(
            "the admin API's token holds characters that no HTTP header can carry: check --token-file or LINKER_ADMIN_TOKEN"
        )
    return AdminClient(url, token=token)


def alone(option: str, **others: object) -> None:
    """Wrong use if something was given beside an option that only follows what was started before: it would be ignored."""
    ignored = [
        f"--{name.replace('_', '-')}" if name != "topics" else name
        for name, value in given(**others).items()
        if value != []
    ]
    if ignored:
        raise usage(
            f"{option} follows what was started before, as it was started: it takes no {', '.join(ignored)}"
        )


def key_values(items: Iterable[str], option: str) -> dict[str, str]:
    result: dict[str, str] = {}
    for item in items:
        key, separator, value = item.partition("=")
        if not separator or not key.strip():
            raise usage(f"{option} {item!r}: write KEY=VALUE")
        if key.strip() in result:
            raise usage(f"{option} {key.strip()} is given twice")
        result[key.strip()] = value.strip()
    return result


def properties_file(path: Path) -> dict[str, str]:
    """A properties file as Kafka's tools take it: comments, `key=value`, lines continued by a backslash."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        from admin.client import AdminError

        raise AdminError(f"cannot read {path}: {error}") from error
    result: dict[str, str] = {}
    pending = ""
    for number, raw in enumerate(text.splitlines(), 1):
        line = pending + raw.strip()
        pending = ""
        if not line or line[0] in "#!":
            continue
        if line.endswith("\\"):
            pending = line[:-1]
            continue
        key, separator, value = line.partition("=")
        if not separator:
            raise usage(f"{path}, line {number}: not key=value")
        result[key.strip()] = value.strip()
    if pending:
        raise usage(f"{path} ends in the middle of a continued line")
    return result


def whoever_asks() -> str:
    """For records of who did it, as far as this machine knows."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"[:200]


def can_ask(question: str) -> None:
    """Exit code 2 without a terminal: a script has to say --yes."""
    if sys.stdin.isatty():
        return
    sys.stderr.write(
        f"linker: nothing was done: there is no terminal to ask at ({question}); give --yes to do it without asking, "
        "--dry-run to see what it would do\n"
    )
    raise typer.Exit(2)


def ask_first(question: str) -> None:
    """Ask at a terminal; without one nothing is done."""
    can_ask(question)
    confirm(question)


def confirm(question: str) -> None:
    """Ask before data is dropped; exit code 1 if the answer is no."""
    if not typer.confirm(question, err=True):
        raise typer.Exit(1)
