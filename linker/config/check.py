"""The section `validation` of the configuration: how a promote uses the validator, and where its Spark runs."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from linker.config.store_section import Section

#: Said by the project itself on the sidecar's behalf; another value would break what depends on it.
_OURS = ("spark.master", "spark.submit.deployMode")


class ValidationConfig(Section):
    """The validator proves that source and replicas are equal. The same in all sidecars of a fleet."""

    policy: Literal["require", "warn", "skip"] = Field(
        default="require",
        description="The rule of a promote that names none: require proof, warn without, or skip it.",
    )
    max_distance: int = Field(
        default=10_000,
        alias="max.distance",
        ge=0,
        description="Offsets per partition that may be unproved when a promote holds writes.",
    )
    interval_ms: int = Field(
        default=30_000,
        alias="interval.ms",
        ge=1000,
        description="Between two runs of a continuous validation, where the link does not say otherwise.",
    )
    spark_master: str = Field(
        default="local[*]",
        alias="spark.master",
        pattern=r"^(local(\[.+\])?|local-cluster\[.+\]|yarn|spark://.+|k8s://.+)$",
        description="Where Spark runs: local[*] inside the validator process, spark://host:7077, k8s://..., yarn.",
    )
    spark_conf: dict[str, str] = Field(
        default={}, alias="spark.conf", repr=False, description="Properties of Spark, by their names."
    )
    python: str | None = Field(
        default=None, description="Interpreter on Spark's executors; default: the path of the sidecar's own."
    )
    idle_timeout_ms: int = Field(
        default=60_000,
        alias="idle.timeout.ms",
        ge=0,
        description="The validator process ends when it had nothing to do for so long.",
    )
    evidence_dir: Path | None = Field(
        default=None,
        alias="evidence.dir",
        description="Where promotes leave their evidence; default: evidence in sidecar.state.dir.",
    )

    @field_validator("spark_conf", mode="before")
    @classmethod
    def _plain(cls, value: object) -> object:
        """Values as Spark's own files have them."""
        if not isinstance(value, dict):
            return value
        return {
            str(name): str(one).lower() if isinstance(one, bool) else str(one) if _number(one) else one
            for name, one in value.items()
        }

    @field_validator("spark_conf")
    @classmethod
    def _sparks(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if not name.startswith("spark."):
                raise ValueError(f"{name} is no property of Spark")
            if name in _OURS:
                raise ValueError(
                    f"{name} is not set here" + ("; use spark.master above" * (name == _OURS[0]))
                )
        return value


def _number(value: object) -> bool:
    return isinstance(value, int | float)
