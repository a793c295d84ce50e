"""Write docs/reference/*.md from the code: CLI, admin API, configuration, metrics, errors; --check compares.

The other pages of docs/ say what cannot be read off the code: why, and how things belong together.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import typer

from admin import error_answers, service
from admin.metrics import CATALOGUE
from admin.openapi import document
from admin.operation import AdminOperation
from admin.operations import all_operations
from linker.cli.app import app as cli_app
from linker.cli.link_file import LinkEntry, MirrorEntry
from linker.config.file import SECTIONS, section_keys
from linker.config.store_section import STORE_SSL_PROPERTIES
from wire.client.properties import (
    CLIENT_PROPERTIES,
    LISTENER_PROPERTIES,
    SECURITY_PROPERTIES,
    TARGET_PROPERTIES,
)

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
NOTE = "<!-- Written by scripts/generate_reference.py from the code; a test compares. -->"
READERS = {
    "Command line": "For operators at a terminal: every command, its options and its exit codes.",
    "Admin API": "For programs that operate a sidecar: every request, its body and its answer.",
    "Configuration": "For operators who write `linker.yaml`: every key, its default and its meaning.",
    "Metrics": (
        "For engineers who build dashboards and alerts: every metric. "
        "Alerts worth having are in [operations](../operations.md#monitoring)."
    ),
    "Errors": (
        "For programs, and for operators with a code in hand: every error of the admin API. "
        "[Troubleshooting](../troubleshooting.md) says what to do."
    ),
}


def table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    def line(cells: Sequence[object]) -> str:
        return "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"

    return "\n".join([line(headers), line(["---"] * len(headers)), *(line(row) for row in rows)])


def page(title: str, *parts: str) -> str:
    return "\n\n".join([f"# {title}", NOTE, *map(wrapped, (READERS[title], *parts))]) + "\n"


def wrapped(part: str) -> str:
    """A paragraph in lines that a terminal and a diff can show; tables, lists and headings are as they are."""
    if part.startswith(("|", "#", "- ", "```")):
        return part
    return textwrap.fill(part, 120, break_long_words=False, break_on_hyphens=False)


# --- CLI


def cli() -> str:
    root: Any = typer.main.get_command(cli_app)
    common = {"admin_url", "token_file", "output", "dry_run"}
    shared: dict[str, Any] = {}
    parts: list[str] = []

    def option(one: Any) -> tuple[str, str]:
        names = f"`{', '.join(one.opts)}{'' if one.is_flag else f' {value(one)}'}`"
        variable = f" (`{one.envvar}`)" if isinstance(one.envvar, str) else ""
        default = getattr(one.default, "value", one.default)
        hidden = callable(default) or isinstance(default, (bool, tuple, type(None)))
        return names + variable, (one.help or "") + ("" if hidden else f" Default: `{default}`.")

    def value(one: Any) -> str:
        """The text behind the option's name."""
        if one.metavar is not None:
            return str(one.metavar)
        if not one.type_descriptor.choices:
            raise RuntimeError(f"{one.opts[0]} does not say what it takes: give it a metavar")
        return "|".join(choice.value for choice in one.type_descriptor.choices)

    def common_one(one: Any) -> bool:
        """A command may have its own meaning of a common name."""
        return one.name in common and one.help == shared[one.name].help

    def walk(command: Any, path: str) -> None:
        if hasattr(command, "commands"):
            for name, child in command.commands.items():
                walk(child, f"{path} {name}")
            return
        arguments = [one for one in command.params if one.param_type_name == "argument"]
        options = [one for one in command.params if one.param_type_name == "option" and one.name != "help"]
        for one in options:
            if one.name in common:
                shared.setdefault(one.name, one)
        takes = [one.name for one in options if common_one(one)]
        usage = " ".join([path, *(one.metavar or one.name.upper() for one in arguments)])
        parts.append(f"## `{usage}`")
        parts.append(" ".join((command.help or "").split()))
        own = [option(one) for one in options if not common_one(one)]
        if own:
            parts.append(table(("option", "meaning"), own))
        if "dry_run" in takes:
            parts.append("Takes `--dry-run`.")

    walk(root, "linker")
    rows = [option(shared[name]) for name in ("output", "dry_run", "admin_url", "token_file")]
    intro = (
        "Every command except `run`, `demo`, `store`, `convert` and `doctor --config` is a client of the "
        "[admin API](api.md). Exit codes: 0 done, 1 failed (one line why on stderr), 2 wrong use, 3 `apply --dry-run` has "
        "changes to make, 130 the watching of a promote, failover or demote was ended by Ctrl-C (it goes on). Progress and "
        "notes go to stderr, answers to stdout."
    )
    common_options = (
        "Options of all commands that ask the admin API (`--dry-run` where it is said); the token itself may be in "
        "`LINKER_ADMIN_TOKEN`. `LINKER_DEBUG=1` shows the traceback of an error."
    )
    demo = "Options of `linker demo` are shown by `linker demo --help`."
    return page(
        "Command line",
        intro,
        common_options,
        table(("option", "meaning"), rows),
        demo,
        *parts,
        *link_file(),
    )


def link_file() -> Iterable[str]:
    """The keys of the file that `linker apply` takes."""
    yield "## The link file"
    yield "A YAML file, see [links as a file](../link-file.md). It has one key, `links`: a list."
    for model in (LinkEntry, MirrorEntry):
        yield f"### {model.__name__}"
        yield " ".join((model.__doc__ or "").split())
        yield table(
            ("key", "default", "meaning"),
            [
                (
                    f"`{name}`",
                    "required"
                    if one.is_required()
                    else "none"
                    if name in ("options", "mirrors")
                    else _default(one.default),
                    one.description or "",
                )
                for name, one in model.model_fields.items()
            ],
        )


# --- admin API


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_type(one) for one in schema["anyOf"])
    kind = schema.get("type", "any")
    if kind == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"map to {_type(schema['additionalProperties'])}"
    return str(schema.get("format", kind)) if kind == "string" else str(kind)


def _operation_row(one: AdminOperation[..., Any]) -> tuple[str, str, str, str]:
    command = f"`linker {one.command}`" if one.command else f"none: {one.without_command}"
    codes = [str(getattr(service, name).error_code) for name in one.not_found]
    return f"`{one.name}`", one.sentence, command, ", ".join(codes)


def admin_api() -> str:
    described = document("1")
    rows = []
    for path, methods in described["paths"].items():
        for method, one in methods.items():
            content = one.get("requestBody", {}).get("content", {})
            body = _type(content["application/json"]["schema"]) if content else ""
            ok = next(code for code in one["responses"] if code.startswith("2"))
            answers = one["responses"][ok].get("content", {}).get("application/json", {}).get("schema")
            answer = _type(answers) if answers else "text"
            query = ", ".join(f"`{p['name']}`" for p in one.get("parameters", []) if p["in"] == "query")
            rows.append((f"`{method.upper()} {path}`", query, body, f"{ok} {answer}"))
    parts = [
        table(("request", "query", "body", "answer"), rows),
        (
            "The same operations by name, which is their `operationId`: their meaning, their command, and the error for a "
            "name in the path that does not exist. `plan_...` is the request with `dry_run=true`."
        ),
        table(("operation", "meaning", "command", "not found"), map(_operation_row, all_operations())),
    ]
    for name, schema in sorted(described["components"]["schemas"].items()):
        if name in ("HTTPValidationError", "ValidationError"):
            continue
        parts.append(f"### {name}")
        if "description" in schema:
            parts.append(" ".join(schema["description"].split()))
        if "enum" in schema:
            parts.append("One of " + ", ".join(f"`{value}`" for value in schema["enum"]) + ".")
            continue
        required = set(schema.get("required", ()))
        fields = [
            (
                f"`{field}`",
                _type(one),
                "required" if field in required else _default(one.get("default")),
                one.get("description", ""),
            )
            for field, one in schema.get("properties", {}).items()
        ]
        parts.append(table(("field", "type", "default", "meaning"), fields))
    intro = (
        "HTTP and JSON; the OpenAPI document is at `/openapi.json`. Bound to loopback by default. Every request except "
        "`/healthz` and `/readyz` needs `Authorization: Bearer <token>`: `admin.token` of the "
        "[configuration](config.md), or [one that the sidecar made](../operations.md#the-admin-apis-token), which "
        "`/metrics` does not ask for. With the latter the Host header has to name this machine, and requests of web "
        "pages of other sites are refused. The right to use this API is a right to use the secrets that [links may refer "
        "to](../operations.md#what-a-link-may-refer-to)."
    )
    limits = (
        "Bodies are JSON (`content-type: application/json`) of at most 1 MiB and unknown fields are refused, as are unknown "
        f"query names of a change. A request is given up after {error_answers.REQUEST_TIMEOUT:.0f} s; a promote answers at "
        "once and is read by its id. With `dry_run` a change answers 200 and changes nothing. Errors: [errors](errors.md)."
    )
    return page("Admin API", intro, limits, *parts)


# --- configuration


def configuration() -> str:
    parts = [
        (
            "One YAML file; relative paths in it are relative to the file. `${env:NAME}` and `${file:/path}` stand for a "
            "variable and for a file's content. An unknown key, a key given twice or a malformed value ends the start with "
            "one line. `linker run --check` only checks. A commented example is `deploy/linker.yaml`."
        )
    ]
    for name in ("sidecar", "sources", "store", "fleet", "validation", "log"):
        rows = []
        for field_name, field in SECTIONS[name].model_fields.items():
            if field.exclude:
                continue
            default = (
                "required" if field.is_required() else _default(field.get_default(call_default_factory=True))
            )
            rows.append((f"`{field.alias or field_name}`", default, field.description or ""))
        parts += [f"## `{name}`", table(("key", "default", "meaning"), rows)]
    listener = ", ".join(f"`{key}`" for key in sorted(LISTENER_PROPERTIES))
    parts.append(
        f"The section `sidecar` also takes {listener} for all TLS listeners, and the same with "
        "`listener.name.<name>.` in front for one of them. `sources` holds a section for each link whose source the sidecar "
        "joins, by the link's name, with the keys above; listeners are secured there in the same way, and `controller.` in "
        "front of a security property overrides the link's towards the controllers ([switching](../switching.md))."
    )
    store = ", ".join(f"`{key}`" for key in sorted(STORE_SSL_PROPERTIES))
    parts.append(
        f"With `type: zookeeper` and `security.protocol: SSL` the section `store` also takes {store}. An option of "
        "another type of store than the chosen one is refused."
    )
    client = ", ".join(f"`{key}`" for key in sorted(TARGET_PROPERTIES))
    more = ", ".join(f"`{key}`" for key in sorted(CLIENT_PROPERTIES - TARGET_PROPERTIES))
    overrides = {key for key in section_keys("target") if key.startswith("controller.")}
    if overrides != {f"controller.{key}" for key in SECURITY_PROPERTIES} | {
        "controller.quorum.bootstrap.servers"
    }:
        raise RuntimeError("the text about controller.* below is not true any more")
    parts += [
        "## `target`",
        (
            f"Client properties of the target cluster, with Kafka's names: {client}. Links take the same ones for their "
            f"source, and {more}; secrets by reference only."
        ),
        (
            "`controller.quorum.bootstrap.servers` names the controllers; brokers are asked only where none of these leads. "
            "`controller.` in front of a security property overrides it towards the controllers."
        ),
    ]
    return page("Configuration", *parts)


def _default(value: object) -> str:
    return "" if value in (None, "", [], {}) else f"`{value}`"


# --- metrics and errors


def metrics() -> str:
    rows = [
        (
            f"`{name}{'_total' if entry.kind == 'counter' else ''}`",
            entry.kind,
            ", ".join(f"`{label}`" for label in entry.labels),
            entry.help,
        )
        for name, entry in CATALOGUE.items()
    ]
    intro = (
        "Prometheus' text format at `/metrics` of the admin API. A number that is not known has no line, and neither "
        "has a link or partition that is gone. Counters start at 0 with the sidecar."
    )
    joined = (
        "Where the sidecar has [joined a source](../switching.md), the numbers of a broker (its heartbeats, the partitions "
        "that it leads, its connections and produce requests) have a second series, with the label `cluster`: the link "
        "whose source it is; those of the target have no such label. A link that runs back from there, for topics that "
        "were switched, is `east.reverse` in `link`, if the other is `east`."
    )
    return page("Metrics", intro, joined, table(("metric", "type", "labels", "meaning"), rows))


def errors() -> str:
    kinds = sorted(_subclasses(service.ServiceError), key=lambda one: one.error_code)
    rows = [(kind.error_code, kind.status, _sentence(kind)) for kind in kinds]
    edge = [
        (40300, 403, "The request is of a web page of another site; only asked without a token."),
        (40400, 404, "There is no such path."),
        (40500, 405, "The path does not take that method."),
        (40100, 401, "The token is missing or wrong."),
        (40800, 408, "The body did not arrive in time."),
        (41300, 413, "The body is too large."),
        (41500, 415, "The body is not said to be JSON: `content-type: application/json`."),
        (42100, 421, "The Host header names another machine; only asked without a token."),
        (50001, 500, "A bug; the sidecar's log has the details."),
        (50201, 502, "A cluster did not do what the request needs; the message is the cluster's."),
        (50401, 504, "No answer in time; the work may still be done."),
    ]
    intro = 'Every answer that is not 2xx is `{"error_code": ..., "message": "one line"}`. The CLI prints the message.'
    return page("Errors", intro, table(("error_code", "HTTP", "meaning"), sorted([*rows, *edge])))


def _subclasses(kind: type[service.ServiceError]) -> list[type[service.ServiceError]]:
    return [one for one in kind.__subclasses__() if one.__module__ == service.__name__]


def _sentence(kind: type[service.ServiceError]) -> str:
    known = {
        "InvalidRequest": "The request is malformed; the message names the field.",
        "GroupNotFound": "The link has no such group.",
        "LinkNotFound": "There is no such link.",
        "MirrorNotFound": "The link has no such mirror.",
        "PromoteNotFound": "There is no such promote.",
        "SidecarNotFound": "There is no such sidecar.",
        "SourceTopicNotFound": "The source has no such topic.",
        "ValidationNotFound": "The link controller remembers no such validation.",
    }
    text = kind.__dict__.get("__doc__") or known[kind.__name__]
    return " ".join(text.split())


PAGES = {
    "cli.md": cli,
    "api.md": admin_api,
    "config.md": configuration,
    "metrics.md": metrics,
    "errors.md": errors,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check: bool = parser.parse_args().check
    stale = []
    for name, build in PAGES.items():
        path = REFERENCE / name
        text = build()
        if check:
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                stale.append(name)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if stale:
        sys.stderr.write(f"stale: {', '.join(stale)}; run scripts/generate_reference.py\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
