"""The command tree, and the commands that stand at its root."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

import linker
from linker import __version__
from linker.cli import (
    acl,
    apply,
    controller,
    convert,
    group,
    link,
    mirror,
    sidecar,
    store,
    tables,
    validate,
    verdict,
)
from linker.cli.examine import examine
from linker.cli.options import (
    Asking,
    OnlyLink,
    asking,
    links_of,
    usage,
)
from linker.cli.output import Format, emit
from linker.cli.run_command import run

app = typer.Typer(
    name="linker",
    help="Move Kafka topics and clients to another cluster without downtime and with every offset unchanged.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(link.app, name="link")
app.add_typer(mirror.app, name="mirror")
app.add_typer(group.app, name="group")
app.add_typer(acl.app, name="acl")
app.add_typer(sidecar.app, name="sidecar")
app.add_typer(controller.app, name="controller")
app.add_typer(store.app, name="store")
app.add_typer(convert.app, name="convert")
app.add_typer(validate.app, name="validate")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"linker {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


app.command("run")(run)


@app.command(
    "demo", context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, add_help_option=False
)
def demo(context: typer.Context) -> None:
    """Watch live clients move between two real clusters (starts both; needs Java 17 or 21, and Maven)."""
    # An editable installation maps the packages of a sidecar only; the lab lies beside them in a checkout.
    checkout = Path(linker.__file__).parents[1]
    if not (checkout / "lab" / "__init__.py").exists():
        from wire.errors import LinkerError  # with kio; help has to be quick

        raise LinkerError(
            "linker demo is a command of a source checkout, and this is an installed package: "
            "clone the repository, and run `make demo` there"
        )
    sys.path.insert(0, str(checkout))
    import lab.demo.demo as scenario

    raise typer.Exit(scenario.main(context.args))


asking(app, "apply")(apply.apply)
app.command("export")(apply.export)


@asking(app, "status")
def status(
    ask: Asking,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Keep it on the screen until Ctrl-C.")] = False,
    interval: Annotated[
        float,
        typer.Option("--interval", metavar="SECONDS", min=0.2, max=3600, help="Seconds between readings."),
    ] = 1.0,
) -> None:
    """Show links, mirrors, lag, forwarding and running promotes; the worst state wins."""
    if watch and ask.output is not Format.TABLE:
        raise usage("--watch redraws a table: leave out -o, or repeat the command without --watch")
    with ask.client() as client:
        if watch:
            from linker.cli.watch import watch as redraw

            try:
                redraw(client, interval)
            except KeyboardInterrupt:
                raise typer.Exit(0) from None
        found = client.status()
    ask.show(found, tables.status)


@asking(app, "topology")
def topology(ask: Asking) -> None:
    """Show the clusters that links reach, directly and behind their sources, and the ways that topics come."""
    from linker.cli.topology import topology as shown

    ask.answer(lambda client: client.topology(), shown)


@asking(app, "lag")
def lag(
    ask: Asking,
    topics: Annotated[
        list[str] | None, typer.Argument(metavar="[TOPIC]...", help="Only these topics.", show_default=False)
    ] = None,
    link: OnlyLink = None,
) -> None:
    """Show the lag of every partition: how far its slowest target replica is behind the source's end."""
    with ask.client() as client:
        names = links_of(client, link)
        if topics and len(names) > 1:
            raise usage(
                f"topics belong to a link, and there are several: give --link too ({', '.join(names)})"
            )
        found = [client.lag(name, topics or ()) for name in names]
    ask.show(found, tables.lag)


@asking(app, "doctor")
def doctor(
    ask: Asking,
    link: OnlyLink = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            metavar="FILE",
            help="Ask the clusters without a sidecar, by the configuration that one would have.",
        ),
    ] = None,
    source_config: Annotated[
        Path | None,
        typer.Option(
            "--source-config",
            metavar="FILE",
            help="With --config: client properties of the source, as a link has them.",
        ),
    ] = None,
    bootstrap_servers: Annotated[
        str | None,
        typer.Option(
            "--bootstrap-servers",
            "-b",
            metavar="HOST:PORT,...",
            help="With --config: host:port,... of the source.",
        ),
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            metavar="TOPIC",
            help="With --config: look at this topic; repeatable. Default: all that are seen.",
        ),
    ] = None,
) -> None:
    """Check versions, rights, sizes, ids, groups and clocks on both clusters; exit code 1 if something would not work.

    With --config no sidecar is asked, and none is needed: the clusters are, before anything is begun.
    """
    if config is not None:
        if link is not None:
            raise usage("--link names a link of a sidecar, and --config asks none: give one of them")
        report = examine(config, source_config, bootstrap_servers, topic or [])
        emit([report], ask.output, lambda: verdict.doctor([report]))
        raise typer.Exit(1 if report.failed else 0)
    if source_config is not None or bootstrap_servers is not None or topic:
        raise usage("--source-config, --bootstrap-servers and --topic go with --config")
    with ask.client() as client:
        names = links_of(client, link)
        found = [client.doctor(name) for name in names]
    ask.show(found, verdict.doctor)
    if any(report.failed for report in found):
        raise typer.Exit(1)
