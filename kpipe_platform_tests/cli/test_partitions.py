"""`kpipe partitions` against a real broker and a Dagster instance."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.storage.tags import GRPC_INFO_TAG
from typer.testing import CliRunner, Result

from kpipe_platform.cli.main import app
from kpipe_platform.cli.partitions import duration, summary, word
from kpipe_platform.jvm.ports import free_port
from kpipe_platform.partitions import lost
from kpipe_platform.partitions.pauses import Pause
from kpipe_platform.partitions.state import PartitionState
from kpipe_platform.testing.broker.embedded import EmbeddedBroker
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

    for command in ("show", "pause", "resume"):
        unknown = kpipe(command, "kpipe.a", topic)
        assert unknown.exit_code == 1
        assert f"group 'kpipe.a' has no offset of topic '{topic}'" in unknown.stderr
        assert "--new-group" in unknown.stderr
    done = kpipe("pause", "kpipe.a", topic, "-p", "1", "--reason", "broken producer", "--new-group")
    assert done.stdout == f"{topic}/1 paused\n"
    assert "was paused already" in kpipe("pause", "kpipe.a", topic, "-p", "1").stdout
    rows = json.loads(kpipe("show", "kpipe.a", topic, "--json").stdout)["partitions"]
    assert [(r["partition"], r["state"], r["committed"], r["end"], r["lag"]) for r in rows] == [
        (0, "idle", None, 0, 0),
        (1, "paused", None, 1, 1),
        (2, "idle", None, 0, 0),
    ]
    assert "broken producer" in rows[1]["pause"]
    shown = kpipe("show", "kpipe.a", topic)
    assert "broken producer" in shown.stdout
    assert shown.stderr.startswith("1 offsets wait in 1 of 3 partitions, the oldest record for ")
    assert f"{topic}/1: paused, and 1 offsets wait: kpipe partitions resume" in shown.stderr
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        instance.create_run_for_job(
            _job(),
            status=dg.DagsterRunStatus.STARTED,
            tags={"kpipe/group": "kpipe.a", "kpipe/ranges": json.dumps({topic: {"2": [0, 1]}})},
        )
    rows = json.loads(kpipe("show", "kpipe.a", topic, "--json").stdout)["partitions"]
    assert [r["state"] for r in rows] == ["idle", "paused", "in flight"]
    assert [len(r["in_flight"]) for r in rows] == [0, 0, 1]
    assert rows[1].keys() == {
        "partition",
        "state",
        "assigned",
        "owner",
        "draining",
        "paused",
        "in_flight",
        "highest_completed",
        "log_start",
        "committed",
        "end",
        "lag",
        "oldest_unprocessed_age_s",
        "pause",
    }
    assert rows[1]["oldest_unprocessed_age_s"] >= 0
    assert rows[0]["oldest_unprocessed_age_s"] is None
    assert json.loads(kpipe("show", "kpipe.a", topic, "--json").stdout)["lost_runs"] == []
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


def test_a_run_whose_process_is_gone_is_shown_and_released(
    kafka_broker: EmbeddedBroker, kafka_topic: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = kafka_topic("orders")
    home = {"DAGSTER_HOME": str(tmp_path), "KAFKA_BOOTSTRAP_SERVERS": kafka_broker.bootstrap_servers}
    (tmp_path / "dagster.yaml").touch()
    monkeypatch.setattr(lost, "_SILENT_S", 0.0)

    def kpipe(*words: str) -> Result:
        return CliRunner().invoke(app, ["partitions", *words], env=home)

    def started(server: str | None) -> str:
        tags = {"kpipe/group": "kpipe.a", "kpipe/ranges": json.dumps({topic: {"0": [0, 1]}})}
        with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
            run = instance.create_run_for_job(
                _job(),
                status=dg.DagsterRunStatus.STARTED,
                tags=tags if server is None else tags | {GRPC_INFO_TAG: server},
            )
            instance.report_engine_event("alive", run)
            return run.run_id

    gone = started(json.dumps({"host": "127.0.0.1", "port": free_port()}))
    elsewhere = started(None)
    found = json.loads(kpipe("show", "kpipe.a", topic, "--new-group", "--json").stdout)["lost_runs"]
    assert [(each["run"], each["process"]) for each in found] == [(gone, "unreachable")]
    shown = kpipe("show", "kpipe.a", topic, "--new-group").stderr
    assert f"run {gone} has logged nothing for" in shown
    assert f"kpipe partitions release {gone[:8]}" in shown

    assert kpipe("release", gone[:8]).stdout == f"{gone} released\n"
    refused = kpipe("release", elsewhere)
    assert refused.exit_code == 1
    assert "--force" in refused.stderr
    assert kpipe("release", elsewhere, "--force").exit_code == 0
    rows = json.loads(kpipe("show", "kpipe.a", topic, "--new-group", "--json").stdout)["partitions"]
    assert [row["in_flight"] for row in rows] == [[]]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, None),
        (0.04, "0.0 s"),
        (9.96, "10.0 s"),
        (59.9, "59 s"),
        (61, "1 min 1 s"),
        (7_500, "2 h 5 min"),
        (172_800, "2 d 0 h"),
    ],
)
def test_durations_have_two_units_at_most(seconds: float | None, text: str | None) -> None:
    assert duration(seconds) == text


def state(partition: int = 0, **more: Any) -> PartitionState:
    common: dict[str, Any] = {
        "assigned": None,
        "owner": None,
        "draining": None,
        "pause": None,
        "in_flight": (),
        "highest_completed": 9,
        "committed": 10,
        "log_start": 0,
        "end": 20,
        "lag": 10,
        "oldest_unprocessed_age_s": 5.0,
    }
    return PartitionState("orders", partition, **(common | more))


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({}, "waiting"),
        ({"lag": 0}, "idle"),
        ({"in_flight": ("r",)}, "in flight"),
        ({"in_flight": ("r",), "pause": Pause(0)}, "paused, in flight"),
        ({"assigned": True}, "waiting"),
        ({"assigned": False, "log_start": 15}, "LOST RECORDS, no owner"),
    ],
)
def test_a_state_is_said_in_words(more: dict[str, Any], text: str) -> None:
    assert word(state(**more)) == text


def test_the_summary_names_the_worst_and_is_bounded() -> None:
    lines = summary([state(0), state(1, oldest_unprocessed_age_s=7_500.0), *(state(n, log_start=15) for n in range(9))])
    assert lines[0] == "110 offsets wait in 11 of 11 partitions, the oldest record for 2 h 5 min (partition 1)"
    assert "orders/0: retention deleted offsets [10, 15) unread" in lines[1]
    assert len(lines) == 7
    assert lines[-1] == "and 4 more like these"


def _job() -> dg.JobDefinition:
    @dg.op
    def nothing() -> None: ...

    @dg.job
    def any_job() -> None:
        nothing()

    return any_job
