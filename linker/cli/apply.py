"""`linker apply` and `linker export`: links as a file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from linker.cli import tables
from linker.cli.options import DEFAULT_URL, AdminUrl, Asking, TokenFile, can_ask, confirm, connect, usage
from linker.cli.output import complain, note, prose

if TYPE_CHECKING:
    from admin.client import AdminClient
    from linker.cli.apply_steps import AppliedFile
    from linker.cli.link_file import LinkFile
    from linker.cli.link_plan import SeenLink, Step

CHANGES_TO_MAKE = 3


def apply(
    ask: Asking,
    file: Annotated[
        str, typer.Option("--file", "-f", metavar="FILE", help="The link file; - reads standard input.")
    ],
    delete_missing: Annotated[
        bool,
        typer.Option(
            "--delete-missing",
            help="Delete mirrors and links that the file does not name, as mirror delete and link delete do: target topics "
            "too, unless they are promoted.",
        ),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask before --delete-missing deletes.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Check everything, say what would be done, change nothing; exit code 3 if there are changes to make.",
        ),
    ] = False,
) -> None:
    """Make links and mirrors as a file has them; what is so already stays as it is.

    Exit codes: 0 nothing to do, or all done; 1 something failed, was refused or cannot be changed; 2 wrong use or a file
    that cannot be used; 3 with --dry-run: there are changes to make.
    """
    from linker.cli.apply_steps import carry_out
    from linker.cli.link_plan import StepKind, compare_links

    wanted = _read(file)
    with ask.client() as client:
        steps = compare_links(wanted, _seen(client, wanted), delete_missing=delete_missing)
        deleted = [one for one in steps if one.kind in (StepKind.DELETE_MIRROR, StepKind.DELETE_LINK)]
        if deleted and not (dry_run or yes):
            _ask(client, deleted, from_stdin=file == "-")
        applied = carry_out(client, steps, dry_run=dry_run)
    ask.show(applied, _text)
    if applied.failed:
        complain(
            f"{applied.failed} of {len(applied.steps)} steps failed, were refused or are in conflict with the file"
        )
        raise typer.Exit(1)
    if dry_run and applied.changes:
        raise typer.Exit(CHANGES_TO_MAKE)


def export(
    links: Annotated[
        list[str] | None, typer.Argument(metavar="[LINK]...", help="Only these links.", show_default=False)
    ] = None,
    admin_url: AdminUrl = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """Print links and their mirrors as a file that `linker apply` takes; without secrets.

    Options that have their default are left out.
    """
    from linker.cli.link_export import entry_of, links_text, reference_for

    entries, comments = [], {}
    with connect(admin_url, token_file) as client:
        for name in links or [one.name for one in client.list_links()]:
            found = client.describe_link(name)
            mirrors = [client.describe_mirror(name, one.topic) for one in client.list_mirrors(name)]
            entry, replaced = entry_of(found, mirrors)
            entries.append(entry)
            comments[name] = [
                f"{key} holds a secret in clear: set {reference_for(name, key)} for every sidecar before this is applied"
                for key in replaced
            ]
    sys.stdout.write(links_text(entries, comments))
    sys.stdout.flush()


def _read(file: str) -> LinkFile:
    from linker.cli.link_file import LinkFileError, parse_links

    name, text = read_text(file)
    try:
        return parse_links(text)
    except LinkFileError as error:
        bad_file(f"{name}: {error}")


def read_text(file: str) -> tuple[str, str]:
    """The name that people know a file by, and its text; - is standard input. Exit code 2 if there is none."""
    from linker.cli.link_file import MAX_FILE_BYTES

    name = "standard input" if file == "-" else file
    try:
        if file == "-":
            raw = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
        else:
            with Path(file).open("rb") as opened:
                raw = opened.read(MAX_FILE_BYTES + 1)
        text = raw.decode("utf-8-sig")
    except OSError as error:
        bad_file(f"cannot read {name}: {error.strerror or error}")
    except UnicodeDecodeError:
        bad_file(f"{name} is not UTF-8 text")
    if len(raw) > MAX_FILE_BYTES:
        bad_file(f"{name} is larger than {MAX_FILE_BYTES} bytes")
    return name, text


def bad_file(problem: str) -> NoReturn:
    """One line, without the usage of the command: that was right."""
    complain(problem)
    raise typer.Exit(2)


def _seen(client: AdminClient, file: LinkFile) -> dict[str, SeenLink]:
    """All links that are there; of mirrors only those in detail whose settings the file names."""
    from linker.cli.link_plan import SeenLink

    entries = {one.name: one for one in file.links}
    found = {}
    for one in client.list_links():
        mirrors = {mirror.topic: mirror for mirror in client.list_mirrors(one.name)}
        named = entries[one.name].mirrors if one.name in entries else []
        details = {
            topic: client.describe_mirror(one.name, topic)
            for mirror in named
            if (topic := entries[one.name].called(mirror)) in mirrors and not mirror.plain
        }
        found[one.name] = SeenLink(client.describe_link(one.name), mirrors, details)
    return found


def _ask(client: AdminClient, deleted: list[Step], *, from_stdin: bool) -> None:
    from linker.cli.apply_steps import carry_out

    if from_stdin:
        raise usage(
            "with -f - nobody can be asked, as standard input holds the file: give --yes with --delete-missing"
        )
    question = "Delete what the file does not name?"
    can_ask(question)
    note(_text(carry_out(client, deleted, dry_run=True), last=False))
    confirm(question)


def _text(applied: AppliedFile, *, last: bool = True) -> str:
    lines = [line for step in applied.steps for line in step.lines(tables.change_lines)]
    if last:
        ends = "nothing was changed (--dry-run)" if applied.dry_run else ""
        would = "to make" if applied.dry_run else "made"
        lines.append(
            f"{applied.changes} changes {would}, {applied.unchanged} unchanged"
            + (f"; {ends}" if ends else "")
        )
    return prose(lines)
