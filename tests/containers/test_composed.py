"""The part that needs no engine: the skip, and the configuration that containers are given."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from lab.clusters.child_process import ChildError
from lab.clusters.kafka_cluster import KafkaClusterSpec, properties_text
from lab.clusters.kafka_containers import container_properties, container_spec, sidecar_config
from linker.config.file import load_config

ROOT = Path(__file__).parents[2]


def test_no_engine_is_one_line_and_no_failure(tmp_path: Path) -> None:
    environment = {
        **{name: value for name, value in os.environ.items() if name != "MAKER"},
        "DOCKER_HOST": f"unix://{tmp_path}/none.sock",
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.containers"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("tests/containers skipped: no Docker engine answers here")
    assert len(done.stdout.splitlines()) == 1


def test_a_broker_is_reached_inside_and_from_this_machine() -> None:
    spec = container_spec(KafkaClusterSpec(name="target", brokers=2, racks=("a",), properties={"x": "y"}))
    properties = container_properties(spec, 1, "broker,controller", "1@target-1:29093", "localhost:40001")
    assert properties["listeners"] == (
        "CONTROLLER://target-1:29093,INSIDE://target-1:19092,HOST://0.0.0.0:9092"
    )
    assert properties["advertised.listeners"] == "INSIDE://target-1:19092,HOST://localhost:40001"
    assert properties["inter.broker.listener.name"] == "INSIDE"
    assert properties["listener.security.protocol.map"] == (
        "INSIDE:PLAINTEXT,HOST:PLAINTEXT,CONTROLLER:PLAINTEXT"
    )
    assert properties["controller.quorum.voters"] == "1@target-1:29093"
    assert properties["offsets.topic.replication.factor"] == "2"
    assert (properties["broker.rack"], properties["x"]) == ("a", "y")
    assert "log.dirs=/var/lib/kafka/data\n" in properties_text(properties)


def test_a_controller_alone_is_published_nowhere() -> None:
    # The image refuses advertised listeners of a node that is only a controller.
    spec = container_spec(KafkaClusterSpec(name="target", controllers=1))
    properties = container_properties(spec, 101, "controller", "101@target-101:29093", None)
    assert properties["listeners"] == "CONTROLLER://target-101:29093"
    assert "advertised.listeners" not in properties
    assert "inter.broker.listener.name" not in properties


@pytest.mark.parametrize(
    "spec",
    [
        KafkaClusterSpec(name="a", listeners={"TLS": "SSL"}),
        KafkaClusterSpec(name="a", metadata_version="3.9-IV0"),
        KafkaClusterSpec(name="a", format_arguments=("--add-scram", "x")),
    ],
)
def test_a_spec_that_containers_cannot_have_is_refused(spec: KafkaClusterSpec) -> None:
    with pytest.raises(ChildError, match="for clusters on loopback only"):
        container_spec(spec)


def test_the_sidecar_accepts_its_configuration(tmp_path: Path) -> None:
    file = tmp_path / "linker.yaml"
    file.write_text(yaml.safe_dump(sidecar_config("target-1:19092", "localhost:40003")))
    config = load_config(file)
    assert [str(one) for one in config.sidecar.listeners] == [
        "INSIDE://0.0.0.0:19092",
        "HOST://0.0.0.0:9092",
    ]
    assert [str(one) for one in config.sidecar.advertised_listeners] == [
        "INSIDE://linker:19092",
        "HOST://localhost:40003",
    ]


def test_the_image_has_what_the_maker_counts_on() -> None:
    """Its readiness is the health check, and its configuration stands where the maker puts it."""
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")
    assert "HEALTHCHECK" in dockerfile
    assert "LINKER_CONFIG=/etc/linker/linker.yaml" in dockerfile
    assert "VOLUME /var/lib/linker" in dockerfile
