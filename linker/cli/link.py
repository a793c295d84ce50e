"""`linker link ...`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from linker.cli import tables

if TYPE_CHECKING:
    from pydantic import BaseModel

    ModelT = TypeVar("ModelT", bound=BaseModel)

from linker.cli.options import (
    Asking,
    DryRun,
    asking,
    key_values,
    properties_file,
    usage,
)

app = typer.Typer(help="Links to source clusters.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="LINK", help="Name of the link.", show_default=False)]
Config = Annotated[
    list[str] | None,
    typer.Option(
        "--config", "-c", metavar="KEY=VALUE", help="Kafka client property of the source; repeatable."
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config-file", metavar="FILE", help="Properties file with the source's client properties."
    ),
]
Options = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="KEY=VALUE",
        help="Setting of the link itself, one of LinkOptions in the reference of the admin API; repeatable.",
    ),
]
ChangedOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="KEY=VALUE",
        help="Setting of the link itself, one of LinkOptionsUpdate in the reference of the admin API; repeatable. "
        "validation_interval_ms is changed by linker validate LINK --continuous.",
    ),
]

JoinSource = Annotated[
    bool | None,
    typer.Option(
        "--join-source/--no-join-source",
        help="Have the sidecars join the source as brokers (section sources of their configuration), or leave it.",
        show_default=False,
    ),
]

#: Of what is deleted.
Force = Annotated[
    bool,
    typer.Option(
        "--force",
        help="Delete although the source still refuses writes because of an abandoned promote --fence-source; the answer "
        "says how that is undone by hand.",
    ),
]


def validated(model: type[ModelT], **fields: object) -> ModelT:
    """A request model from what was typed; what is wrong with it is wrong use, before anything is sent."""
    from pydantic import ValidationError

    try:
        return model.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        raise usage(f"{where}: {message}" if where else message) from error


def _options(option: list[str] | None, **flags: object) -> dict[str, object]:
    """Those of --option and those that have a flag of their own, which counts."""
    return {
        **key_values(option or [], "--option"),
        **{name: value for name, value in flags.items() if value is not None},
    }


@asking(app, "create")
def create(
    ask: Asking,
    name: Name,
    bootstrap_servers: Annotated[
        str | None,
        typer.Option(
            "--bootstrap-servers", "-b", metavar="HOST:PORT,...", help="host:port,... of the source cluster."
        ),
    ] = None,
    config_file: ConfigFile = None,
    config: Config = None,
    option: Options = None,
    source_cluster_id: Annotated[
        str | None,
        typer.Option(
            "--source-cluster-id", metavar="ID", help="Refuse the link if the source has another id."
        ),
    ] = None,
    join_source: JoinSource = None,
    dry_run: DryRun = False,
) -> None:
    """Create a link to a source cluster.

    Give secrets by reference: the sidecar resolves ${env:LINKER_LINK_NAME}, and ${file:/path} of a file in its
    directory for links (sidecar.links.dir).
    """
    from admin.models import CreateLinkRequest

    properties = {} if config_file is None else properties_file(config_file)
    properties |= key_values(config or [], "--config")
    if bootstrap_servers is not None:
        properties["bootstrap.servers"] = bootstrap_servers
    if "bootstrap.servers" not in properties:
        raise usage("where is the source? Give --bootstrap-servers, or bootstrap.servers in --config-file")
    request = validated(
        CreateLinkRequest,
        name=name,
        properties=properties,
        options=_options(option, join_source=join_source),
        source_cluster_id=source_cluster_id,
    )
    ask.answer(lambda client: client.create_link(request, dry_run=dry_run), tables.change)


@asking(app, "list")
def list_(ask: Asking) -> None:
    """List links."""
    ask.answer(lambda client: client.list_links(), tables.links)


@asking(app, "describe")
def describe(ask: Asking, name: Name) -> None:
    """Show one link: state, source, properties, forwarding."""
    ask.answer(lambda client: client.describe_link(name), tables.link)


@asking(app, "update")
def update(
    ask: Asking,
    name: Name,
    config_file: ConfigFile = None,
    config: Config = None,
    remove_config: Annotated[
        list[str] | None,
        typer.Option("--remove-config", metavar="KEY", help="Property to remove; repeatable."),
    ] = None,
    option: ChangedOptions = None,
    replication_bytes_per_second: Annotated[
        int | None,
        typer.Option(
            "--replication-bytes-per-second",
            metavar="BYTES",
            min=0,
            help="Most bytes per second that all sidecars together read from the source; 0: no limit.",
        ),
    ] = None,
    replication_bytes_per_second_beside_writes: Annotated[
        int | None,
        typer.Option(
            "--replication-bytes-per-second-beside-writes",
            metavar="BYTES",
            min=0,
            help="Most bytes per second that each sidecar reads for the link while clients write through it; 0: no limit.",
        ),
    ] = None,
    join_source: JoinSource = None,
    dry_run: DryRun = False,
) -> None:
    """Change properties or options of a link; what is not named stays."""
    from admin.models import UpdateLinkRequest

    properties: dict[str, str | None] = dict(properties_file(config_file)) if config_file else {}
    properties |= key_values(config or [], "--config")
    for key in remove_config or []:
        if key in properties:
            raise usage(f"{key} is both set and removed")
        properties[key] = None
    options = _options(
        option,
        join_source=join_source,
        replication_bytes_per_second=replication_bytes_per_second,
        replication_bytes_per_second_beside_writes=replication_bytes_per_second_beside_writes,
    )
    request = validated(UpdateLinkRequest, properties=properties, options=options)
    ask.answer(lambda client: client.update_link(name, request, dry_run=dry_run), tables.change)


@asking(app, "delete")
def delete(ask: Asking, name: Name, force: Force = False, dry_run: DryRun = False) -> None:
    """Delete a link whose mirrors are all promoted or deleted."""
    ask.answer(lambda client: client.delete_link(name, force=force, dry_run=dry_run), tables.change)
