"""Calls of the Kafka client and what it raises."""

from __future__ import annotations

from concurrent.futures import Future

import pytest
from confluent_kafka import KafkaError, KafkaException

from kpipe_platform.errors import BrokerUnavailableError, FencedError, TopicNotFoundError, TransientError
from kpipe_platform.kafka.client.calls import NO_LEADER, RequestText, ask_each, run_in_thread, translate
from kpipe_platform.kafka.client.clients import Clients
from kpipe_platform.kafka.client.settings import ConnectionSettings


def answered(value: int | KafkaError) -> Future[int]:
    future: Future[int] = Future()
    if isinstance(value, KafkaError):
        future.set_exception(KafkaException(value))
    else:
        future.set_result(value)
    return future


def asked_of(key: str) -> RequestText:
    return RequestText(f"look at {key}", {"topic": key})


def test_a_client_that_is_past_mending_is_no_reason_for_somebody_to_act() -> None:
    fatal = KafkaError(KafkaError._FATAL)
    found = translate(fatal, ConnectionSettings(bootstrap_servers="127.0.0.1:9"), "write outputs")
    assert isinstance(found, TransientError)
    assert "run again" in str(found)


@pytest.mark.parametrize("code", [KafkaError.LEADER_NOT_AVAILABLE, KafkaError.FENCED_LEADER_EPOCH])
def test_only_the_answer_that_was_refused_for_the_moment_is_awaited_again(code: int) -> None:
    moment = KafkaError(code)
    rounds = iter([{"a": answered(1), "b": answered(moment)}, {"a": answered(moment), "b": answered(2)}])
    clients = Clients(ConnectionSettings(bootstrap_servers="nowhere:1"))
    assert ask_each(lambda: next(rounds), clients, asked_of)() == {"a": 1, "b": 2}
    assert next(rounds, None) is None


@pytest.mark.parametrize("code", sorted(NO_LEADER))
def test_a_leader_that_moves_asks_nobody_to_act(code: int) -> None:
    found = translate(KafkaError(code), ConnectionSettings(bootstrap_servers="127.0.0.1:9"), "list offsets")
    assert isinstance(found, BrokerUnavailableError)


def test_an_answer_that_is_an_error_is_told_with_its_place() -> None:
    clients = Clients(ConnectionSettings(bootstrap_servers="nowhere:1"))
    unknown = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
    with pytest.raises(TopicNotFoundError, match="look at b") as caught:
        ask_each(lambda: {"a": answered(1), "b": answered(unknown)}, clients, asked_of)()
    assert caught.value.attributes["topic"] == "b"


def test_the_request_is_under_way_before_its_answers_are_awaited() -> None:
    sent: list[str] = []

    def request() -> dict[str, Future[int]]:
        sent.append("sent")
        return {"a": answered(1)}

    answers = ask_each(request, Clients(ConnectionSettings(bootstrap_servers="nowhere:1")), asked_of)
    assert sent == ["sent"]
    assert answers() == {"a": 1}


def test_a_call_beside_raises_where_it_is_awaited() -> None:
    assert run_in_thread(lambda: 3).result() == 3

    def refuse() -> int:
        raise FencedError("another took over")

    with pytest.raises(FencedError, match="another took over"):
        run_in_thread(refuse).result()
