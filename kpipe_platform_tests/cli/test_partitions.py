"""`kpipe partitions` against a real broker and a Dagster instance."""

from __future__ import annotations

import json
from pathlib import Path

import dagster as dg
import pytest
from typer.testing import CliRunner, Result

from kpipe_platform.cli.main import app
from kpipe_platform.testing.broker import EmbeddedBroker
from kpipe_platform.testing.plugin import Produce, TopicFactory

pytestmark = pytest.mark.broker


def test_pause_show_and_resume(
    kafka_broker: EmbeddedBroker, kafka_topic: TopicFactory, produce: Produce, tmp_path: Path
) -> None:
    topic = kafka_topic("orders", partitions=3)
    produce(topic, [{"value": b"1", "partition": 1}])
    home = {"DAGSTER_HOME": str(tmp_path), "KAFKA_BOOTSTRAP_SERVERS": kafka_broker.bootstrap_servers}
    (tmp_path / "dagster.yaml").touch()

    def kpipe(*words: str, **environment: str) -> Result:
        return CliRunner().invoke(app, ["partitions", *words], env={**home, **environment})

    done = kpipe("pause", "kpipe.a", topic, "-p", "1", "--reason", "broken producer")
    assert done.stdout == f"{topic}/1 paused\n"
    assert "was paused already" in kpipe("pause", "kpipe.a", topic, "-p", "1").stdout
    rows = json.loads(kpipe("show", "kpipe.a", topic, "--json").stdout)["partitions"]
    assert [(r["partition"], r["state"], r["committed"], r["end"], r["lag"]) for r in rows] == [
        (0, "idle", None, 0, 0),
        (1, "paused", None, 1, 1),
        (2, "idle", None, 0, 0),
    ]
    assert "broken producer" in rows[1]["pause"]
    assert "broken producer" in kpipe("show", "kpipe.a", topic).stdout
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        instance.create_run_for_job(
            _job(),
            status=dg.DagsterRunStatus.STARTED,
            tags={"kpipe/group": "kpipe.a", "kpipe/ranges": json.dumps({topic: {"2": [0, 1]}})},
        )
    rows = json.loads(kpipe("show", "kpipe.a", topic, "--json").stdout)["partitions"]
    assert [r["state"] for r in rows] == ["idle", "paused", "in flight"]
    assert kpipe("resume", "kpipe.a", topic).stdout.splitlines() == [
        f"{topic}/0 was not paused",
        f"{topic}/1 resumed",
        f"{topic}/2 was not paused",
    ]
    wrong = kpipe("pause", "kpipe.a", topic, "-p", "7")
    assert wrong.exit_code == 1
    assert "has no partition 7" in wrong.stderr
    homeless = kpipe("resume", "kpipe.a", topic, DAGSTER_HOME="")
    assert homeless.exit_code == 1
    assert "DAGSTER_HOME" in homeless.stderr


def _job() -> dg.JobDefinition:
    @dg.op
    def nothing() -> None: ...

    @dg.job
    def any_job() -> None:
        nothing()

    return any_job
