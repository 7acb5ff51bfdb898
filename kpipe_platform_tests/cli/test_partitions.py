"""`kpipe partitions` against a real broker and a Dagster instance."""

from __future__ import annotations

import json
from collections.abc import Callable
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


KEY = dg.AssetKey(["shop", "orders_priced"])
GROUP = "kpipe.shop.orders_priced"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "dagster.yaml").touch()
    return tmp_path


@pytest.fixture
def kpipe(kafka_broker: EmbeddedBroker, home: Path) -> Callable[..., Result]:
    variables = {"DAGSTER_HOME": str(home), "KAFKA_BOOTSTRAP_SERVERS": kafka_broker.bootstrap_servers}

    def run(*words: str, **environment: str) -> Result:
        return CliRunner().invoke(app, list(words), env={**variables, **environment})

    return run


def materialize(home: Path, *topics: str, key: dg.AssetKey = KEY) -> None:
    """Store what a materialization leaves."""
    ranges = [{"topic": topic, "partition": 0, "start": 0, "end": 0, "topic_id": "id"} for topic in topics]
    metadata = {"kpipe/consumer_group": GROUP, "kpipe/ranges": dg.MetadataValue.json(ranges)}
    with dg.DagsterInstance.from_config(str(home)) as instance:
        instance.report_runless_asset_event(dg.AssetMaterialization(key, metadata=metadata))


def test_pause_show_and_resume(
    kpipe: Callable[..., Result], home: Path, kafka_topic: TopicFactory, produce: Produce
) -> None:
    topic = kafka_topic("orders", partitions=3)
    produce(topic, [{"value": b"1", "partition": 1}])
    materialize(home, topic)
    for command in ("show", "pause", "resume"):
        unknown = kpipe("partitions", command, "orders_priced")
        assert unknown.exit_code == 1
        assert "asset 'orders_priced' does not exist in Dagster; similar names: shop/orders_priced" in unknown.stderr

    done = kpipe("partitions", "pause", "shop/orders_priced", "-p", "1", "--reason", "broken producer")
    assert done.stdout == "shop/orders_priced partition 1 paused\n"
    assert "was paused already" in kpipe("partitions", "pause", "shop/orders_priced", "-p", "1").stdout
    shown = json.loads(kpipe("partitions", "show", "shop/orders_priced", "--json").stdout)
    assert (shown["asset"], shown["group"], shown["topics"]) == ("shop/orders_priced", GROUP, [topic])
    rows = shown["partitions"]
    assert [(r["partition"], r["state"], r["committed"], r["end"], r["lag"]) for r in rows] == [
        (0, "idle", None, 0, 0),
        (1, "paused", None, 1, 1),
        (2, "idle", None, 0, 0),
    ]
    assert "broken producer" in rows[1]["pause"]
    table = kpipe("partitions", "show", "shop/orders_priced")
    assert "broken producer" in table.stdout
    assert table.stderr.startswith("1 offsets wait in 1 of 3 partitions, the oldest record for ")
    assert f"{topic}/1: paused, and 1 offsets wait: kpipe partitions resume" in table.stderr
    with dg.DagsterInstance.from_config(str(home)) as instance:
        instance.create_run_for_job(
            _job(),
            status=dg.DagsterRunStatus.STARTED,
            tags={"kpipe/group": GROUP, "kpipe/ranges": json.dumps({topic: {"2": [0, 1]}})},
        )
    found = json.loads(kpipe("partitions", "show", "shop/orders_priced", "--json").stdout)
    rows = found["partitions"]
    assert [r["state"] for r in rows] == ["idle", "paused", "in flight"]
    assert [len(r["in_flight"]) for r in rows] == [0, 0, 1]
    assert rows[1].keys() == {
        "topic",
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
    assert found["lost_runs"] == []
    assert kpipe("partitions", "resume", "shop/orders_priced", "-p", "0", "-p", "1").stdout.splitlines() == [
        "shop/orders_priced partition 0 was not paused",
        "shop/orders_priced partition 1 resumed",
    ]
    assert "No partition of shop/orders_priced was paused" in kpipe("partitions", "resume", "shop/orders_priced").stderr
    wrong = kpipe("partitions", "pause", "shop/orders_priced", "-p", "7")
    assert wrong.exit_code == 1
    assert "has no partition 7" in wrong.stderr
    homeless = kpipe("partitions", "resume", "shop/orders_priced", DAGSTER_HOME="")
    assert homeless.exit_code == 1
    assert "DAGSTER_HOME" in homeless.stderr


def test_assets_are_listed_with_what_version_0_1_paused(kpipe: Callable[..., Result], home: Path) -> None:
    assert "has read a topic" in kpipe("partitions", "list").stderr
    materialize(home, "orders", "payments")
    name = f"kpipe/paused/{GROUP}/payments"
    with dg.DagsterInstance.from_config(str(home)) as instance:
        instance.daemon_cursor_storage.set_cursor_values({f"{name}/3": '{"since_ms": 1000, "reason": "then"}'})
        instance.add_dynamic_partitions(name, ["3"])
    assert json.loads(kpipe("partitions", "list", "--json").stdout) == [
        {
            "asset": "shop/orders_priced",
            "group": GROUP,
            "topics": ["orders", "payments"],
            "paused": {"3": "since 1970-01-01 00:00 UTC: then"},
        }
    ]
    assert "orders, payments" in kpipe("partitions", "list").stdout
    assert kpipe("partitions", "resume", "shop/orders_priced").stdout == "shop/orders_priced partition 3 resumed\n"


def test_an_asset_of_several_topics_is_paused_and_shown_as_one(
    kpipe: Callable[..., Result], home: Path, kafka_topic: TopicFactory
) -> None:
    one, other = kafka_topic("one", partitions=2), kafka_topic("other", partitions=2)
    materialize(home, one, other)
    kpipe("partitions", "pause", "shop/orders_priced", "-p", "1")
    rows = json.loads(kpipe("partitions", "show", "shop/orders_priced", "--json").stdout)["partitions"]
    assert [(r["topic"], r["partition"], r["paused"]) for r in rows] == [
        (one, 0, False),
        (one, 1, True),
        (other, 0, False),
        (other, 1, True),
    ]
    assert "topic" in kpipe("partitions", "show", "shop/orders_priced").stdout.splitlines()[0]
    only = json.loads(kpipe("partitions", "show", "shop/orders_priced", "--topic", other, "--json").stdout)
    assert [r["topic"] for r in only["partitions"]] == [other, other]
    assert "reads no topic 'third'" in kpipe("partitions", "show", "shop/orders_priced", "--topic", "third").stderr
    assert "reads several topics" in kpipe("offsets", "show", "--asset", "shop/orders_priced").stderr


def test_an_asset_that_has_not_run_is_known_by_the_module_of_its_definitions(
    kpipe: Callable[..., Result],
    home: Path,
    kafka_topic: TopicFactory,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = kafka_topic("orders", partitions=2)
    folder = tmp_path_factory.mktemp("location")
    (folder / "shop_definitions.py").write_text(
        "import dagster as dg\n"
        "from kpipe_platform import JsonCodec, KafkaTopic, kafka_asset, kafka_topic_asset\n"
        f"orders = kafka_topic_asset({topic!r}, name='orders', value_codec=JsonCodec('id LONG'))\n"
        "@kafka_asset(source=orders, topic=KafkaTopic('priced', value_codec=JsonCodec()), key_prefix='shop')\n"
        "def orders_priced(orders):\n"
        "    return orders\n"
        "defs = dg.Definitions([orders, orders_priced], resources={'kafka_io_manager': dg.mem_io_manager})\n"
    )
    monkeypatch.chdir(folder)
    refused = kpipe("partitions", "pause", "shop/orders_priced")
    assert "asset 'shop/orders_priced' does not exist" in refused.stderr
    assert "-m MODULE" in refused.stderr
    module = ("-m", "shop_definitions")
    mistyped = kpipe("partitions", "pause", "shop/order_priced", *module)
    assert "similar names: shop/orders_priced" in mistyped.stderr
    assert "has no partition 2" in kpipe("partitions", "pause", "shop/orders_priced", "-p", "2", *module).stderr
    paused = kpipe("partitions", "pause", "shop/orders_priced", *module)
    assert [line.split()[-2:] for line in paused.stdout.splitlines()] == [["0", "paused"], ["1", "paused"]]
    assert len(kpipe("partitions", "resume", "shop/orders_priced").stdout.splitlines()) == 2
    assert "cannot load the definitions" in kpipe("partitions", "pause", "a", "-m", "no_such_module_here").stderr


def test_offsets_are_shown_and_moved_by_the_name_of_the_asset(
    kpipe: Callable[..., Result], home: Path, kafka_topic: TopicFactory, produce: Produce
) -> None:
    topic = kafka_topic("orders")
    produce(topic, [b"1", b"2"])
    materialize(home, topic)
    asset = ("--asset", "shop/orders_priced")
    moved = kpipe("offsets", "set", *asset, "--to", "1", "--new-group", "--yes")
    assert moved.exit_code == 0, moved.stderr
    shown = json.loads(kpipe("offsets", "show", *asset, "--json").stdout)
    assert (shown["group"], shown["topic"], shown["partitions"][0]["committed"]) == (GROUP, topic, 1)
    assert "both GROUP and --asset" in kpipe("offsets", "show", GROUP, topic, *asset).stderr
    assert "neither GROUP TOPIC nor --asset" in kpipe("offsets", "show", GROUP).stderr
    assert "similar names: shop/orders_priced" in kpipe("offsets", "show", "--asset", "orders_priced").stderr


def test_a_run_whose_process_is_gone_is_shown_and_released(
    kpipe: Callable[..., Result], home: Path, kafka_topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = kafka_topic("orders")
    materialize(home, topic)
    monkeypatch.setattr(lost, "_SILENT_S", 0.0)

    def started(server: str | None) -> str:
        tags = {"kpipe/group": GROUP, "kpipe/ranges": json.dumps({topic: {"0": [0, 1]}})}
        with dg.DagsterInstance.from_config(str(home)) as instance:
            run = instance.create_run_for_job(
                _job(),
                status=dg.DagsterRunStatus.STARTED,
                tags=tags if server is None else tags | {GRPC_INFO_TAG: server},
            )
            instance.report_engine_event("alive", run)
            return run.run_id

    gone = started(json.dumps({"host": "127.0.0.1", "port": free_port()}))
    elsewhere = started(None)
    show = ("partitions", "show", "shop/orders_priced")
    found = json.loads(kpipe(*show, "--json").stdout)["lost_runs"]
    assert [(each["run"], each["process"]) for each in found] == [(gone, "unreachable")]
    shown = kpipe(*show).stderr
    assert f"run {gone} has logged nothing for" in shown
    assert f"kpipe partitions release {gone[:8]}" in shown

    assert kpipe("partitions", "release", gone[:8]).stdout == f"{gone} released\n"
    refused = kpipe("partitions", "release", elsewhere)
    assert refused.exit_code == 1
    assert "--force" in refused.stderr
    assert kpipe("partitions", "release", elsewhere, "--force").exit_code == 0
    rows = json.loads(kpipe(*show, "--json").stdout)["partitions"]
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
