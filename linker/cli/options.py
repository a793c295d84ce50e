"""Options that many commands share, and how they become a client and an output format."""

from __future__ import annotations

import getpass
import os
import socket
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from linker.cli.output import Format

if TYPE_CHECKING:
    from admin.client import AdminClient

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
        help="File with the API's token; or set LINKER_ADMIN_TOKEN. As the sidecar's user on its machine: found without.",
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


def usage(message: str) -> typer.BadParameter:
    """Wrong use that the parser cannot see; exit code 2."""
    return typer.BadParameter(message)


def connect(url: str, token_file: Path | None) -> AdminClient:
    from admin.client import AdminClient, AdminError

    token = os.environ.get("LINKER_ADMIN_TOKEN") or None
    if token_file is not None:
        try:
            token = token_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise AdminError(f"cannot read the token file {token_file}: {error}") from error
    if token is not None and not (token.isascii() and token.isprintable()):
        raise AdminError("the token holds characters that cannot be sent")
    return AdminClient(url, token=token)


def alone(option: str, **others: object) -> None:
    """Wrong use if something was given beside an option that only follows what was started before: it would be ignored."""
    given = [
        f"--{name.replace('_', '-')}" if name != "topics" else name
        for name, value in others.items()
        if value is not None and value is not False and value != []
    ]
    if given:
        raise usage(
            f"{option} follows what was started before, as it was started: it takes no {', '.join(given)}"
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


def confirm(question: str) -> None:
    """Ask before data is dropped; exit code 1 if the answer is no."""
    if not typer.confirm(question, err=True):
        raise typer.Exit(1)
