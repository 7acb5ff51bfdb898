"""Options of the destinations: what is refused at once, and what before any work."""

from __future__ import annotations

from typing import Any

import dagster as dg
import pytest
from dagster._core.errors import DagsterResourceFunctionError
from pydantic import ValidationError

from kpipe_platform import KafkaConnection, KafkaDeadLetterDestination, KafkaDestination
from kpipe_platform.errors import ConfigError
from kpipe_platform.policies.limits import DEFAULT_MINIMUM, DeadLetterLimit

CONNECTION = KafkaConnection(bootstrap_servers="localhost:1")


@pytest.mark.parametrize(
    ("producer", "says"),
    [
        pytest.param({"bootstrap.servers": "other:9092"}, "KafkaConnection(bootstrap_servers=...)", id="cluster"),
        pytest.param({"metadata.broker.list": "other:9092"}, "KafkaConnection(bootstrap_servers=...)", id="alias"),
        pytest.param({"message.timeout.ms": "1"}, "KafkaDestination(delivery_timeout_s=...)", id="timeout"),
        pytest.param({"delivery.timeout.ms": "1"}, "KafkaDestination(delivery_timeout_s=...)", id="timeout's alias"),
        pytest.param({"transaction.timeout.ms": "1"}, "KafkaDestination(transaction_timeout_s=...)", id="transaction"),
        pytest.param({"compression.codec": "gzip"}, "KafkaDestination(compression=...)", id="compression"),
        pytest.param({"enable.idempotence": "false"}, "'enable.idempotence' is set by kpipe", id="idempotence"),
        pytest.param({"acks": "1"}, "'acks' is set by kpipe", id="acks"),
        pytest.param({"request.required.acks": "1"}, "'request.required.acks' is set by kpipe", id="acks' alias"),
        pytest.param({"transactional.id": "mine"}, "'transactional.id' is set by kpipe", id="transactional id"),
        pytest.param({"delivery.report.only.error": "false"}, "set by kpipe", id="reports"),
        pytest.param({"ssl.keystore.password": "pw"}, "move it to KafkaConnection(librdkafka=", id="secret"),
        pytest.param({"ssl.ca.location": "/ca"}, "move it to KafkaConnection(librdkafka=", id="security"),
        pytest.param({"linger.mss": "5"}, 'No such configuration property: "linger.mss"', id="mistyped"),
        pytest.param({"linger.mss": dg.EnvVar("NOT_SET")}, 'No such configuration property: "linger.mss"', id="late"),
        pytest.param({"linger.ms": "soon"}, "Invalid value", id="no number"),
        pytest.param({"linger.ms": "60001"}, "must be greater than `linger.ms`", id="longer than the delivery"),
        pytest.param({"max.in.flight": "6"}, "must be set <= 5", id="not idempotent"),
        pytest.param({"fetch.min.bytes": "6"}, "fetch.min.bytes is a consumer property", id="consumer's"),
        pytest.param({"error_cb": "print"}, "callable", id="callback"),
        pytest.param({"logger": "mine"}, "set by kpipe", id="logger"),
    ],
)
def test_producer_properties_are_refused_when_they_are_declared(producer: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=r"KafkaDestination\(producer=\.\.\.\)") as caught:
        KafkaDestination(connection=CONNECTION, producer=producer)
    assert says in str(caught.value)
    assert caught.value.fix


def test_other_producer_properties_are_taken(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    given = {"linger.ms": "50", "batch.size": "100000", "partitioner": "murmur2", "debug": "all", "client.id": "shop"}
    assert KafkaDestination(connection=CONNECTION, producer=given).producer == given
    assert capfd.readouterr().err == ""
    late = KafkaDestination(connection=CONNECTION, producer={"linger.ms": dg.EnvVar("TEST_LINGER")})
    seen: list[Any] = []

    @dg.op
    def look(destination: KafkaDestination) -> None:
        seen.append(destination.producer)

    @dg.job
    def looks() -> None:
        look()

    monkeypatch.setenv("TEST_LINGER", "7")
    looks.execute_in_process(resources={"destination": late})
    assert seen == [{"linger.ms": "7"}]
    monkeypatch.setenv("TEST_LINGER", "soon")
    with pytest.raises(DagsterResourceFunctionError) as caught:
        looks.execute_in_process(resources={"destination": late})
    assert "Invalid value" in str(caught.value.user_exception)


def dead_letter(**options: Any) -> KafkaDeadLetterDestination:
    return KafkaDeadLetterDestination(connection=CONNECTION, **options)


def test_defaults() -> None:
    plain = dead_letter()
    assert (plain.header_families, plain.oversized, plain.correlation_header) == (
        ("connect",),
        "reference",
        "correlation-id",
    )
    assert (plain.redact, plain.max_dead_letter_ratio, plain.min_dead_letters) == (None, None, DEFAULT_MINIMUM)
    assert plain.limit == DeadLetterLimit(None, DEFAULT_MINIMUM)
    assert KafkaDestination(connection=CONNECTION).correlation_header == "correlation-id"
    assert KafkaDestination(connection=CONNECTION, correlation_header=None).correlation_header is None


def test_families_keep_their_order_and_may_be_none() -> None:
    assert dead_letter(headers=["spring", "connect"]).header_families == ("spring", "connect")
    assert dead_letter(headers=[]).header_families == ()


@pytest.mark.parametrize(
    "options",
    [
        {"headers": ["streams"]},
        {"headers": ["spring", "spring"]},
        {"oversized": "cut"},
        {"correlation_header": ""},
        {"max_dead_letter_ratio": 0},
        {"max_dead_letter_ratio": 1.1},
        {"min_dead_letters": 0},
    ],
)
def test_what_is_refused_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(options))):
        dead_letter(**options)


def test_a_redaction_hook_is_looked_for_by_a_run_only() -> None:
    assert dead_letter(redact="no_such_module:hook").settings.redact == "no_such_module:hook"


@pytest.mark.parametrize(("rows", "without", "with_hook"), [(None, 5, 0), (0, 0, 0), (3, 3, 3)])
def test_a_preview_is_opt_in_where_a_hook_redacts(rows: int | None, without: int, with_hook: int) -> None:
    made = KafkaDestination(connection=KafkaConnection(bootstrap_servers="h:1"), preview_rows=rows)
    assert (made.rows_to_preview(is_redacting=False), made.rows_to_preview(is_redacting=True)) == (without, with_hook)


def test_options_come_through_dagsters_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_REDACT", "json:dumps")
    seen: list[Any] = []

    @dg.op
    def look(dead_letter: KafkaDeadLetterDestination) -> None:
        settings = dead_letter.settings
        seen.extend([settings.header_families, settings.redact, dead_letter.limit])

    @dg.job
    def looks() -> None:
        look()

    given = dead_letter(headers=["connect", "spring"], redact=dg.EnvVar("TEST_REDACT"), max_dead_letter_ratio=0.1)
    looks.execute_in_process(resources={"dead_letter": given})
    assert seen == [("connect", "spring"), "json:dumps", DeadLetterLimit(0.1, DEFAULT_MINIMUM)]
