import subprocess
import sys

import pytest
from confluent_kafka.admin import AdminClient

from kpipe_platform.jvm.folders import cache_dir
from kpipe_platform.testing import plugin
from kpipe_platform.testing.broker.embedded import EmbeddedBroker

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.broker

# Looked up before pytester makes an empty folder the home of the tests that it runs.
CACHE = cache_dir()


@pytest.fixture(autouse=True)
def _same_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KPIPE_CACHE_DIR", str(CACHE))
    monkeypatch.delenv("KPIPE_TEST_KAFKA", raising=False)


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


def test_a_broker_that_runs_already_is_used(
    pytester: pytest.Pytester, kafka_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = kafka_broker.bootstrap_servers
    admin = AdminClient({"bootstrap.servers": servers})
    cluster = admin.list_topics(timeout=30).cluster_id
    monkeypatch.setenv("KPIPE_TEST_KAFKA", f"127.0.0.1:9,{servers}")
    pytester.makepyfile(
        f"""
        import pytest
        from confluent_kafka.admin import AdminClient
        from kpipe_platform.errors import ConfigError

        def test_round_trip(kafka_broker, kafka_topic, produce, consume):
            assert kafka_broker.bootstrap_servers == "127.0.0.1:9,{servers}"
            topic = kafka_topic("shared", partitions=2)
            assert AdminClient({{"bootstrap.servers": "{servers}"}}).list_topics(topic, 10).cluster_id == "CLUSTER"
            assert produce(topic, ["v"]) == 1
            assert [each.value for each in consume(topic)] == [b"v"]

        def test_it_is_not_stopped(kafka_broker):
            for use in (lambda: kafka_broker.stop(), lambda: kafka_broker.restart({{}}), lambda: kafka_broker.pids):
                with pytest.raises(ConfigError, match="KPIPE_TEST_KAFKA"):
                    use()
            assert not hasattr(kafka_broker, "nothing")
    """.replace("CLUSTER", cluster)
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=2)

    assert [name for name in admin.list_topics(timeout=30).topics if name.startswith("shared-")] == []


@pytest.mark.parametrize(
    ("servers", "words"),
    [("127.0.0.1", "*KPIPE_TEST_KAFKA=127.0.0.1: *not host:port*"), ("127.0.0.1:9", "*:9: no Kafka broker answered*")],
)
def test_a_broker_that_does_not_answer_is_one_usage_error(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, servers: str, words: str
) -> None:
    monkeypatch.setenv("KPIPE_TEST_KAFKA", servers)
    monkeypatch.setattr(plugin, "_ANSWER_DEADLINE_S", 1.0)
    pytester.makepyfile("def test_one(kafka_broker): pass\ndef test_two(kafka_broker): pass")
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([words, "*How to fix: *"])
    assert result.stderr.str().count("KPIPE_TEST_KAFKA=") == 1


def test_the_plugin_costs_nothing_until_a_fixture_is_used() -> None:
    heavy = "{'dagster', 'pyspark', 'confluent_kafka', 'pandas'}"
    code = f"import sys, kpipe_platform.testing.plugin; print({heavy} & set(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "set()"
