"""Test cases on what Spark stores of a query in its event log, run in a process of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kpipe_platform.jvm.ports import LOOPBACK
from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.kafka.model.offsets import OffsetRange
from kpipe_platform.spark.connect.server import ConnectServer
from kpipe_platform.spark.engine.attach import detach
from kpipe_platform.spark.engine.connector import require_connector
from kpipe_platform.spark.engine.session import get_session
from kpipe_platform.spark.engine.settings import EngineSettings
from kpipe_platform.spark.failures import classify
from kpipe_platform.spark.source.reader import read_ranges

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

SECRET = 'not"to\\be$seen'
# No broker: each query ends with an error, whose text counts too.
NOWHERE = ConnectionSettings(
    f"{LOOPBACK}:9",
    security_protocol="SASL_PLAINTEXT",
    sasl_mechanism="SCRAM-SHA-512",
    sasl_username="ann",
    sasl_password=SECRET,
    java={"ssl.keystore.key": SECRET},
    request_timeout_s=1,
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    folder = tmp_path_factory.mktemp("engine")
    (folder / "events").mkdir()
    settings = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file://{folder}/events",
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.compress": "false",
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
    }
    with ConnectServer(folder, master="local[1]", settings=settings, warm=False) as server:
        yield server


def test_a_session_of_kpipe(server: ConnectServer) -> None:
    check("SparkEngine", server)


def test_a_session_of_another_resource(server: ConnectServer) -> None:
    check("another", server)


def check(by: str, server: ConnectServer) -> None:
    """Secrets of the connection are not in the log."""
    holder = object()
    session = get_session(EngineSettings(remote=server.remote, app_name=by), holder)
    try:
        if by == "another":
            # As a session of dagster-pyspark, which has none of kpipe's settings.
            session.conf.unset("spark.sql.redaction.string.regex")
            require_connector(session)
        rows = read_ranges(session, NOWHERE, [OffsetRange(by, 0, 0, 1)], isolation="read_committed", group=by, parts=1)
        with pytest.raises(Exception, match="node assignment") as caught:
            rows.collect()
        assert "seen" not in str(caught.value) + str(classify(caught.value, by))
    finally:
        detach(holder)
    (log,) = Path(server.log_path.parent / "events").iterdir()
    text = log.read_text(encoding="utf-8")
    assert f"group-{by}" in text or by in text
    assert "kafka.sasl.mechanism" in text
    assert "seen" not in text
