"""The validator's Spark has ports on loopback, where every user of the machine may ask it for its blocks."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.real.spark_stranger import listening_ports, steal_blocks
from tests.real.test_validation_spark import LOGIN, PASSWORD, run_of, two_clusters, until_reading
from tests.validator import logs
from tests.validator.process import command_line, descendants, environment, validator_process
from validator.messages import Configure, Finished

BLOCKS = [f"broadcast_{number}_piece0" for number in range(12)]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("secured", [True, False], ids=["as it comes", "as the attack shows it can"])
async def test_no_other_user_gets_the_passwords_out_of_spark(tmp_path: Path, secured: bool) -> None:
    conf = {"spark.broadcast.compress": "false"}  # so that they could be read as they are
    if not secured:
        conf |= {"spark.authenticate": "false", "spark.network.crypto.enabled": "false"}
    users = {"validator": PASSWORD}
    async with two_clusters(sasl_users=users) as (source, target), validator_process(tmp_path) as validator:
        await validator.ready(Configure(work_dir=str(tmp_path / "work"), conf=conf))
        target.inject("fetch", delay=20.0, match=lambda entity: entity.max_bytes > 1 << 20)
        await validator.send(run_of(source, target, **LOGIN))
        await until_reading(validator, target)
        processes = [validator.process.pid, *descendants(validator.process.pid)]
        ports = listening_ports(processes)
        shown = "".join(command_line(pid) + environment(pid) for pid in processes)
        loot = b""
        for port in ports:
            loot += await asyncio.to_thread(steal_blocks, port, BLOCKS)
        assert len(ports) >= 2
        assert (PASSWORD.encode() in loot) is not secured
        if secured:
            assert loot == b""
            properties = (tmp_path / "work" / "spark.properties").read_text().splitlines()
            secret = next(
                one for one in properties if one.startswith("spark.authenticate.secret=")
            ).partition("=")[2]
            assert len(secret) > 30 and secret not in shown
        end, _ = await validator.end("r")
        assert isinstance(end, Finished), end
        assert (end.mismatches, end.batches) == (0, 4 * logs.BATCHES)
