"""What the process does about its files, its certificates and its descriptors."""

from __future__ import annotations

import logging
import os
import resource
import stat
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from admin.metrics import Metrics
from admin.samples import Snapshot
from linker.config.file import parse_config
from linker.config.link_secrets import LinkSecrets
from linker.config.model import Config
from linker.process import descriptors
from linker.process.descriptors import DescriptorWatch
from linker.process.own_certificates import own_certificates
from linker.process.private_files import be_private
from tests.fakes.certs import Authority
from wire.client.certificates import first_end
from wire.client.secrets import resolve
from wire.errors import InvalidSecurityConfig


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def config(base: Path, sidecar: str = "", target: str = "") -> Config:
    text = (
        f"sidecar: {{broker.id: 900, listeners: 'PLAINTEXT://h:1'{sidecar}}}\n"
        f"target: {{bootstrap.servers: 'h:1'{target}}}\n"
    )
    return parse_config(text, base=base)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_nobody_else_reads_what_a_sidecar_writes(
    tmp_path: Path, umask: None, caplog: pytest.LogCaptureFixture
) -> None:
    state = tmp_path / "state"
    for directory in ("validator", "evidence"):  # as an earlier version left them
        (state / directory).mkdir(parents=True)
    for name in ("linker.db", "linker.db-wal", "validator/validator.log"):
        (state / name).write_text("x")
    (state / "linker.db-link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").write_text("not ours")
    assert mode(state) == 0o755
    be_private(config(tmp_path))
    assert [mode(state / name) for name in ("linker.db", "linker.db-wal", "validator/validator.log")] == [
        0o600
    ] * 3
    assert mode(state / "validator") == mode(state / "evidence") == 0o700
    assert mode(tmp_path / "elsewhere") == 0o644
    assert mode(state) == 0o755 and "chmod 700" in caplog.text  # it was given to us, it is not ours
    (state / "new").mkdir()
    (state / "new" / "file").write_text("x")
    assert (mode(state / "new"), mode(state / "new" / "file")) == (0o700, 0o600)


def test_a_secret_that_everybody_can_read_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "password").write_text("hunter2")
    (tmp_path / "certificate").write_text("public")
    for name in ("password", "certificate"):
        (tmp_path / name).chmod(0o644)
    for _ in range(2):
        resolve(f"${{file:{tmp_path}/password}}", key="sasl.password")
        LinkSecrets(tmp_path).resolve({"sasl.password": f"${{file:{tmp_path}/password}}"})
        LinkSecrets(tmp_path).resolve({"ssl.truststore.certificates": f"${{file:{tmp_path}/certificate}}"})
    assert caplog.text.count("every user of this machine can read") == 1
    assert "0644" in caplog.text and "hunter2" not in caplog.text
    caplog.clear()
    (tmp_path / "closed").write_text("hunter2")
    (tmp_path / "closed").chmod(0o640)
    resolve(f"${{file:{tmp_path}/closed}}", key="sasl.password")
    assert not caplog.text


def test_when_the_own_certificates_end_is_a_metric(tmp_path: Path) -> None:
    issued = Authority().issue("h")
    pem = tmp_path / "own.pem"
    pem.write_text(issued.key + issued.certificate)
    tls = f", listener.security.protocol.map: 'PLAINTEXT:SSL', ssl.keystore.location: {pem}"
    ends = own_certificates(config(tmp_path, tls, f", security.protocol: SSL, ssl.keystore.location: {pem}"))
    assert ends.keys() == {"PLAINTEXT", "target"}
    from cryptography import x509

    wanted = x509.load_pem_x509_certificate(issued.certificate.encode()).not_valid_after_utc.timestamp()
    assert set(ends.values()) == {wanted}
    page = Metrics(lambda: Snapshot(version="1", certificate_ends=ends)).render().decode()
    [line] = [
        one for one in page.splitlines() if one.startswith('linker_certificate_expiry_seconds{of="target"}')
    ]
    assert float(line.split()[-1]) == wanted
    assert own_certificates(config(tmp_path)) == {}


@pytest.mark.parametrize("year", [1999, 2026, 2049, 2050, 2999])
def test_the_end_of_a_chain_is_its_first(year: int) -> None:
    from datetime import timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "h" * 60)])

    def made(end: datetime) -> str:
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(end - timedelta(days=1))
            .not_valid_after(end)
            .sign(key, hashes.SHA256())
        )
        return certificate.public_bytes(serialization.Encoding.PEM).decode()

    end = datetime(year, 5, 6, 7, 8, 9, tzinfo=UTC)
    assert first_end(made(end + timedelta(days=900)) + "text\n" + made(end)) == end
    assert first_end("no certificate") is None
    cut = (
        made(end).replace("MII", "AAA", 1)
        if "MII" in made(end)
        else "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"
    )
    with pytest.raises(InvalidSecurityConfig, match="cannot be read"):
        first_end(cut)


@pytest.mark.parametrize("body", ["MII", "MII\N{LATIN SMALL LETTER E WITH ACUTE}"])
def test_a_certificate_that_is_no_base64(body: str) -> None:
    """A metric stops nothing: whoever asks for it catches this error only."""
    with pytest.raises(InvalidSecurityConfig, match="cannot be read"):
        first_end(f"-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----")


def test_running_out_of_descriptors_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = descriptors._least_free() + 40
    held: list[int] = []
    watch = DescriptorWatch()
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (low, before[1]))
        watch.look()
        assert "in use" not in caplog.text
        while len(held) < 1000:
            held.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        watch.look()
        watch.look()
    finally:
        for one in held:
            os.close(one)
        held.clear()
        said = caplog.text
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert said.count("new connections will be closed") == 1
    watch.look()
    assert "free again" in caplog.text
