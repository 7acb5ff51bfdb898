"""Keys of metadata: one list in the code, the same list in the reference, and those of older releases."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

import kpipe_platform
from kpipe_platform import JsonCodec, KafkaTopic, kafka_topic_asset, metadata_keys
from kpipe_platform.assets.dead_letters import dead_letter_asset
from kpipe_platform.assets.observation import Observed, last_observations
from kpipe_platform.checks.dead_letter_ratio import _finding
from kpipe_platform.checks.findings import Finding, result_of
from kpipe_platform.checks.rules import _read, _rows
from kpipe_platform.errors import ConfigError
from kpipe_platform.io_managers.step import Step, topic_of
from kpipe_platform.partitions.groups import Reads, reads_of
from kpipe_platform.slices.plan.ranges import LastMaterialization

PACKAGE = Path(kpipe_platform.__file__).parent
REFERENCE = Path(__file__).parents[1] / "docs/reference/metadata.md"
KEY, GROUP = dg.AssetKey("orders"), "kpipe.orders"


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


def literals(path: Path) -> set[str]:
    """The texts in a module that are a key of kpipe."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return {text for text in texts if re.fullmatch(r"kpipe/[a-z_0-9]+", text)}


def test_the_reference_lists_every_key_and_tag_and_no_other() -> None:
    in_code = {key for path in PACKAGE.rglob("*.py") for key in literals(path)}
    rows = re.findall(r"^\| (`[^|]+) \|", REFERENCE.read_text(encoding="utf-8"), re.MULTILINE)
    in_reference = {key for row in rows for key in re.findall(r"`(kpipe/[a-z_0-9]+)`", row)}
    assert in_reference == in_code


def test_every_key_is_used() -> None:
    paths = (path for path in PACKAGE.rglob("*.py") if path.stem != "metadata_keys")
    words = {word for path in paths for word in re.findall(r"\w+", path.read_text(encoding="utf-8"))}
    names = [name for name, value in vars(metadata_keys).items() if name.isupper() and isinstance(value, str)]
    assert [name for name in names if name not in words] == []
    assert len(names) == len({getattr(metadata_keys, name) for name in names})


def test_definitions_have_kpipes_keys_only() -> None:
    topic = kafka_topic_asset("orders", value_codec=JsonCodec("id BIGINT"), partitions=1)
    made = dead_letter_asset(topic)
    for metadata in (topic.get_asset_spec().metadata, made.metadata_by_key[made.key], KafkaTopic("t").as_metadata()):
        assert [key for key in metadata if not key.startswith(("kpipe/", "dagster/"))] == []


def test_check_results_have_kpipes_keys_only_and_their_tables_short_names() -> None:
    findings = [Finding(f"t/{number}", "", {metadata_keys.LAG: 5}) for number in range(2)]
    for found in (findings[:1], findings):
        metadata = result_of(found, dg.AssetCheckSeverity.WARN).metadata
        assert [key for key in metadata if not key.startswith("kpipe/")] == []
    table: Any = metadata["kpipe/by_partition"]
    assert table.records[0].data == {"partition": "t/0", "passed": True, "lag": 5}


@pytest.mark.parametrize(
    "metadata", [{"kpipe/topic": "t"}, {"kpipe/topic_settings": {}}, {"kpipe/topic": {"name": "t"}}]
)
def test_half_a_declaration_of_a_topic_is_refused(metadata: dict[str, Any]) -> None:
    with pytest.raises(
        ConfigError, match=r"asset orders has incomplete topic metadata: 'kpipe/topic' is .*\n.*as_metadata\(\)"
    ):
        topic_of(metadata, KEY)


def test_a_declared_topic_comes_back_the_same() -> None:
    topic = KafkaTopic("t", key_column="id", value_codec=JsonCodec("id BIGINT"))
    assert topic.as_metadata()["kpipe/topic"] == "t"
    assert topic_of(topic.as_metadata(), KEY) == topic


# ------------------------------------------------------------------------------- what a release before 0.2 stored


def old_materialization() -> dg.AssetMaterialization:
    ranges = [{"topic": "t", "partition": 0, "start": 0, "end": 7, "topic_id": "id"}]
    rules = [dg.TableRecord({"rule": "r", "action": "skip", "checked": 10, "failed": 2})]
    metadata = {
        "records_read": 10,
        "records_written": 7,
        "dead_letters": 1,
        "skipped": 2,
        "rules": dg.MetadataValue.table(rules),
        "consumer_group": GROUP,
        "kpipe/ranges": dg.MetadataValue.json(ranges),
    }
    return dg.AssetMaterialization(KEY, partition="0", metadata=metadata)


def test_old_materializations_are_read(instance: dg.DagsterInstance) -> None:
    old = old_materialization()
    instance.report_runless_asset_event(old)
    step = Step(KEY, GROUP, "", "", 1, ("0",), instance)
    assert step.earlier(("t", 0)) == LastMaterialization(7, "id", GROUP)
    assert reads_of(instance, KEY) == Reads(GROUP, ("t",))
    assert _finding("partition 0", [old], 0.5).numbers == {
        "kpipe/records_read": 10,
        "kpipe/dead_letters": 1,
        "kpipe/records_skipped": 2,
        "kpipe/dead_letter_ratio": 0.3,
    }
    assert (_read(old), [row["rule"] for row in _rows(old)]) == (10, ["r"])


@pytest.mark.parametrize("keys", [("end", "topic_id"), ("kpipe/log_end", "kpipe/topic_id")])
def test_old_and_new_observations_of_a_topic_are_read(instance: dg.DagsterInstance, keys: tuple[str, str]) -> None:
    metadata = dict(zip(keys, (42, "id"), strict=True))
    instance.report_runless_asset_event(dg.AssetObservation(KEY, partition="3", metadata=metadata))
    [(number, found)] = last_observations(instance, KEY).items()
    assert (number, found) == (3, Observed(42, "id", found.at_s))


def test_a_stages_own_metadata_is_not_taken_for_kpipes() -> None:
    stored = {"kpipe/records_read": 1, "kpipe/consumer_group": GROUP, "rules": "of the stage"}
    assert "kpipe/rules" not in metadata_keys.stored_metadata(stored)
