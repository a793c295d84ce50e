"""`linker convert ...`: files of other tools as link files. Asks nobody, neither a sidecar nor a cluster."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from linker.cli.apply import bad_file, read_text
from linker.cli.options import usage
from linker.cli.output import one_line

if TYPE_CHECKING:
    from linker.cli.mirrormaker import Flow

app = typer.Typer(help="Configurations of other tools as link files.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Makes mm2 a command of the group, although it is alone."""


@app.command("mm2")
def mm2(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="mm2.properties, or the configuration of a MirrorSourceConnector; - reads standard input.",
            show_default=False,
        ),
    ],
    link: Annotated[
        str | None,
        typer.Option("--link", "-l", metavar="LINK", help="Name of the link; default: the source's alias."),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            "--target", metavar="ALIAS", help="Only flows into this cluster, which is the sidecar's."
        ),
    ] = None,
) -> None:
    """Print the link file that does what MirrorMaker 2 does, with a comment for each key that is not the same here.

    It holds no secrets; each comment on one names the variable to set. Exit code 2: the file cannot be used.
    """
    from linker.cli.link_export import links_text
    from linker.cli.mirrormaker import MirrorMakerError, entry_for, flows_of

    name, text = read_text(file)
    properties = _properties(text, name)
    try:
        flows = [one for one in flows_of(properties) if target in (None, one.target)]
        targets = sorted({one.target for one in flows})
        if not flows:
            raise MirrorMakerError("no flow is enabled" + (f" into {target}" if target else ""))
        if len(targets) > 1:
            raise usage(
                f"the file has flows into {', '.join(targets)}, a link file is for one target: give --target"
            )
        if link is not None and len(flows) > 1:
            raise usage(
                f"--link names one link, and {len(flows)} flows are enabled into {targets[0]}: leave it out"
            )
        entries, comments = [], {}
        for flow in flows:
            entry, told = entry_for(flow, link or _link_name(flow.source))
            entries.append(entry)
            comments[entry.name] = [f"{flow.source}->{flow.target}", *(f"- {one}" for one in told)]
    except MirrorMakerError as error:
        bad_file(one_line(f"{name}: {error}"))
    except ValueError as error:
        bad_file(one_line(f"{name}: {_first_line(error)}"))
    head = [
        f"Made from {name} by linker convert mm2. Stop MirrorMaker first: docs/from-mirrormaker.md.",
        "Read each comment, then: linker apply --dry-run -f FILE",
        *(f"{key}: not of a flow into {targets[0]}" for key in properties if not _used(flows, key)),
    ]
    sys.stdout.write("".join(f"# {one_line(one)}\n" for one in head) + links_text(entries, comments))
    sys.stdout.flush()


def _used(flows: list[Flow], key: str) -> bool:
    return any(key in flow.used for flow in flows)


def _link_name(alias: str) -> str:
    return re.sub(r"[^a-zA-Z0-9._-]", "-", alias) or "source"


def _first_line(error: ValueError) -> str:
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg'].removeprefix('Value error, ')}"


def _properties(text: str, name: str) -> dict[str, str]:
    from linker.cli.java_properties import java_properties

    if not text.lstrip().startswith("{"):
        return java_properties(text)
    try:
        document: Any = json.loads(text)
        told = document.get("config", document)
        return {str(key): str(value) for key, value in told.items()}
    except (ValueError, AttributeError, RecursionError) as error:
        bad_file(f"{name} is neither properties nor a connector's JSON: {one_line(str(error))[:200]}")
