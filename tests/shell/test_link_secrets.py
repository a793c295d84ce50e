"""What the properties of a link may refer to: they come with a request, and are sent to an address of the same request."""

from __future__ import annotations

from pathlib import Path

import pytest

from linker.config.link_secrets import LinkSecrets
from wire.client.secrets import SecretError

ENVIRONMENT = {"LINKER_LINK_EAST": "of-the-link", "LINKER_TARGET_PASSWORD": "of-the-sidecar"}


@pytest.fixture
def links(tmp_path: Path) -> LinkSecrets:
    directory = tmp_path / "links"
    directory.mkdir()
    (directory / "east").write_text("hush\n")
    (directory / "east").chmod(0o600)
    (tmp_path / "outside").write_text("the sidecar's own")
    return LinkSecrets(directory)


def resolved(links: LinkSecrets, key: str, value: str) -> str:
    return links.resolve({key: value}, ENVIRONMENT)[key]


def test_files_of_the_directory_and_variables_of_the_prefix_are_to_be_had(links: LinkSecrets) -> None:
    file = f"${{file:{links.directory}/east}}"
    assert resolved(links, "sasl.password", file) == "hush"
    assert resolved(links, "sasl.password", "${env:LINKER_LINK_EAST}") == "of-the-link"
    assert resolved(links, "sasl.jaas.config", f'x required username="u" password="{file}";') == (
        'x required username="u" password="hush";'
    )
    location = str(links.directory / "east")
    assert resolved(links, "ssl.keystore.location", location) == location


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("sasl.password", "${env:LINKER_TARGET_PASSWORD}", "begin with LINKER_LINK_ only"),
        ("sasl.password", "${file:DIRECTORY/../outside}", "is not below"),
        ("sasl.password", "${file:/etc/passwd}", "is not below"),
        ("sasl.password", "${file:DIRECTORY/elsewhere}", "leads by a symbolic link out of"),
        ("sasl.password", "${file:DIRECTORY}", "cannot read"),
        ("sasl.password", "${file:DIRECTORY/none}", "cannot read"),
        ("sasl.password", "${file:DIRECTORY/a\0b}", "null character"),
        ("ssl.keystore.location", "DIRECTORY/a\0b", "null character"),
        ("ssl.keystore.location", "DIRECTORY/elsewhere", "leads by a symbolic link out of"),
        ("client.id", "${env:LINKER_LINK_EAST}", "is no secret"),
        ("sasl.username", "${file:DIRECTORY/east}", "is no secret"),
        (
            "sasl.jaas.config",
            'x required username="${env:LINKER_LINK_EAST}" password="p";',
            "stand for its password alone",
        ),
    ],
)
def test_nothing_else_is(links: LinkSecrets, key: str, value: str, why: str) -> None:
    (links.directory / "elsewhere").symlink_to(links.directory.parent / "outside")
    with pytest.raises(SecretError, match=why) as told:
        resolved(links, key, value.replace("DIRECTORY", str(links.directory)))
    assert "of-the-sidecar" not in str(told.value)
