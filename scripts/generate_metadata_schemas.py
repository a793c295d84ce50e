"""Generate wire/metadata/schemas.py from the schemas that ship inside Kafka's kafka-metadata jar.

python scripts/generate_metadata_schemas.py kafka-metadata-4.3.1.jar          # write
python scripts/generate_metadata_schemas.py kafka-metadata-4.3.1.jar --check  # compare
"""

import argparse
import difflib
import json
import re
import sys
import zipfile
from pathlib import Path

TARGET = Path(__file__).resolve().parent.parent / "wire" / "metadata" / "schemas.py"
SCALARS = {
    "bool",
    "int8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "float64",
    "string",
    "uuid",
    "bytes",
}
HEADER = '''"""Record types of KRaft's metadata log, by api key. Generated: do not edit.

From the schemas in kafka-metadata {version}, by scripts/generate_metadata_schemas.py.
"""

from wire.metadata.fields import NEWEST, Field, RecordSchema

KAFKA_VERSION = "{version}"

SCHEMAS: dict[int, RecordSchema] = {{
'''


class UnknownSchemaError(Exception):
    """The jar holds something this generator does not understand; it must be taught first."""


def snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def versions(text: str | None) -> tuple[int, int | None] | None:
    """Kafka's version ranges: "2+", "0-3", "1", "none"."""
    if text is None or text == "none":
        return None
    match = re.fullmatch(r"(\d+)(?:(\+)|-(\d+))?", text)
    if match is None:
        raise UnknownSchemaError(f"version range {text!r}")
    first = int(match[1])
    if match[2]:
        return first, None
    return first, int(match[3] or first)


def render_versions(span: tuple[int, int | None] | None) -> str:
    if span is None:
        return "None"
    return f"({span[0]}, {'NEWEST' if span[1] is None else span[1]})"


def default_of(field: dict, kind: str) -> str:
    """The value of a field the record's version lacks, or of a tagged field that was not sent."""
    given = field.get("default")
    if given == "null":
        return "None"
    if kind.startswith("[]"):
        return "()"
    if kind == "bool":
        return "True" if str(given).lower() == "true" else "False"
    if kind == "float64":
        return repr(float(given or 0))
    if kind == "string":
        return repr(given or "")
    if kind == "uuid":
        return "bytes(16)"
    if kind == "bytes":
        return 'b""'
    if kind in SCALARS:
        return str(int(str(given), 0) if given is not None else 0)
    return "None"


def render_field(field: dict, indent: str) -> list[str]:
    known = {
        "name",
        "type",
        "versions",
        "nullableVersions",
        "taggedVersions",
        "tag",
        "default",
        "fields",
        "about",
        "entityType",
        "mapKey",
        "ignorable",
    }
    if set(field) - known:
        raise UnknownSchemaError(f"field {field['name']}: {sorted(set(field) - known)}")
    element = field["type"].removeprefix("[]")
    array = "[]" if field["type"].startswith("[]") else ""
    nested = field.get("fields", [])
    if element not in SCALARS:
        if not nested:
            raise UnknownSchemaError(f"field {field['name']} of type {element} without fields")
        element = "struct"
    kind = array + element
    arguments = [
        f'"{snake_case(field["name"])}"',
        f'"{kind}"',
        render_versions(versions(field["versions"])),
        default_of(field, kind),
    ]
    if field.get("nullableVersions"):
        arguments.append(f"nullable={render_versions(versions(field['nullableVersions']))}")
    if "tag" in field:
        arguments.append(f"tag={int(field['tag'])}")
        arguments.append(f"tagged={render_versions(versions(field['taggedVersions']))}")
    if not nested:
        return [f"{indent}Field({', '.join(arguments)}),"]
    lines = [f"{indent}Field(", f"{indent}    {', '.join(arguments)},", f"{indent}    fields=("]
    for child in nested:
        lines += render_field(child, indent + "        ")
    return [*lines, f"{indent}    ),", f"{indent}),"]


def generate(jar: Path) -> str:
    schemas = {}
    with zipfile.ZipFile(jar) as archive:
        for name in archive.namelist():
            if name.startswith("common/metadata/") and name.endswith(".json"):
                text = re.sub(r"^\s*//.*$", "", archive.read(name).decode(), flags=re.MULTILINE)
                schema = json.loads(text)
                if schema["type"] != "metadata":
                    raise UnknownSchemaError(f"{name} is of type {schema['type']}")
                if schema["flexibleVersions"] != "0+" or schema.get("commonStructs"):
                    raise UnknownSchemaError(
                        f"{name}: only flexible versions without common structs are understood"
                    )
                schemas[schema["apiKey"]] = schema
    if not schemas:
        raise UnknownSchemaError(f"{jar} holds no common/metadata/*.json")
    match = re.search(r"kafka-metadata-(\d[\w.]*)\.jar$", jar.name)
    if match is None:
        raise UnknownSchemaError(f"{jar.name} is not named kafka-metadata-<version>.jar")
    lines = [HEADER.format(version=match[1])]
    for key, schema in sorted(schemas.items()):
        span = versions(schema["validVersions"])
        if span is None or span[1] is None:
            raise UnknownSchemaError(f"{schema['name']}: valid versions {schema['validVersions']}")
        head = f'    {key}: RecordSchema("{schema["name"]}", {span[1]}, ('
        if not schema["fields"]:
            lines.append(f"{head})),\n")
            continue
        lines.append(head + "\n")
        for field in schema["fields"]:
            lines += [line + "\n" for line in render_field(field, "        ")]
        lines.append("    )),\n")
    lines.append("}\n")
    return "".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("jar", type=Path, help="kafka-metadata-<version>.jar")
    parser.add_argument("--check", action="store_true", help="only compare with the committed file")
    arguments = parser.parse_args()
    try:
        text = generate(arguments.jar)
    except (OSError, zipfile.BadZipFile, UnknownSchemaError, KeyError, ValueError) as error:
        print(f"{arguments.jar}: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    if not arguments.check:
        TARGET.write_text(text)
        return 0
    current = TARGET.read_text() if TARGET.exists() else ""
    if current == text:
        return 0
    sys.stdout.writelines(
        difflib.unified_diff(current.splitlines(True), text.splitlines(True), str(TARGET), str(arguments.jar))
    )
    print(
        f"{TARGET} is not what {arguments.jar.name} holds; run {Path(__file__).name} again", file=sys.stderr
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
