import subprocess
import sys

import pytest

from kpipe_platform.jvm.folders import cache_dir

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.broker

# Looked up before pytester makes an empty folder the home of the tests that it runs.
CACHE = cache_dir()


@pytest.fixture(autouse=True)
def _same_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KPIPE_CACHE_DIR", str(CACHE))


def test_fixtures_settings_and_overrides(pytester: pytest.Pytester) -> None:
    pytester.makeini("""
        [pytest]
        kpipe_broker_settings =
            message.max.bytes = 2000
            num.partitions=3
    """)
    pytester.makeconftest("""
        import pytest

        @pytest.fixture(scope="session")
        def kafka_broker_settings(kafka_broker_settings):
            return {**kafka_broker_settings, "auto.create.topics.enable": "true"}
    """)
    pytester.makepyfile("""
        import pytest
        from confluent_kafka.admin import AdminClient, ConfigResource
        from kpipe_platform.errors import DeliveryError

        def test_settings(kafka_broker_settings):
            assert kafka_broker_settings == {
                "message.max.bytes": "2000", "num.partitions": "3", "auto.create.topics.enable": "true"
            }

        def test_round_trip(kafka_topic, produce, consume):
            topic, other = kafka_topic("a", partitions=2), kafka_topic("a")
            assert topic != other
            assert produce(topic, [("k", "v")] * 10) == 10
            assert [each.value for each in consume(topic)] == [b"v"] * 10
            assert consume(other) == []

        def test_broker_has_the_settings(kafka_broker, produce, consume):
            produce("made", ["x"])
            assert len(consume("made")) == 1
            with pytest.raises(DeliveryError, match="[Mm]essage size"):
                produce("made", [b"x" * 3000])

        def test_no_record_is_deleted_for_its_age_while_tests_run(kafka_broker):
            admin = AdminClient({"bootstrap.servers": kafka_broker.bootstrap_servers})
            broker = ConfigResource(ConfigResource.Type.BROKER, "0")
            found = admin.describe_configs([broker])[broker].result(30)
            assert found["log.retention.check.interval.ms"].value == "86400000"
            assert found["log.initial.task.delay.ms"].value == "86400000"
    """)
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=4)


def test_a_broken_setting_is_a_usage_error(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nkpipe_broker_settings = nonsense\n")
    pytester.makepyfile("def test(kafka_broker_settings): pass")
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*nonsense*name = value*"])


def test_the_plugin_costs_nothing_until_a_fixture_is_used() -> None:
    heavy = "{'dagster', 'pyspark', 'confluent_kafka', 'pandas'}"
    code = f"import sys, kpipe_platform.testing.plugin; print({heavy} & set(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "set()"
