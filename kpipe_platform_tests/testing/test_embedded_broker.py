import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from kpipe_platform.errors import BrokerStartError, ConfigError
from kpipe_platform.jvm.identity import PidFile, ProcessIdentity
from kpipe_platform.jvm.java import find_java
from kpipe_platform.jvm.ports import LOOPBACK, free_port, free_ports
from kpipe_platform.testing.broker import cluster as broker_cluster
from kpipe_platform.testing.broker.embedded import EmbeddedBroker
from kpipe_platform.testing.broker.listeners import BrokerListener, TlsFiles
from kpipe_platform.testing.clients import client_config
from kpipe_platform.testing.plugin import TopicFactory
from kpipe_platform.testing.records import consume, produce
from kpipe_platform.testing.topics import create_topic

pytestmark = pytest.mark.broker


def test_data_and_port_survive_stops_kills_and_restarts(tmp_path: Path) -> None:
    # A short session lets a killed broker come back soon.
    settings = {"broker.session.timeout.ms": "1000"}
    broker = EmbeddedBroker(data_dir=tmp_path / "data", keep_data=True, settings=settings)
    broker.start()
    servers, cluster_id = broker.bootstrap_servers, broker.cluster_id
    create_topic(servers, "kept")
    produce(servers, "kept", [b"1"])
    broker.kill_broker(0)
    assert broker.pids == [None]
    broker.restart(settings={"auto.create.topics.enable": "true"})
    produce(servers, "kept", [b"2"])
    produce(servers, "made-by-writing", [b"x"])
    broker.stop()
    broker.stop()
    with EmbeddedBroker(data_dir=tmp_path / "data") as again:
        assert again.bootstrap_servers == servers
        assert again.cluster_id == cluster_id
        assert [each.value for each in consume(servers, "kept")] == [b"1", b"2"]
        with pytest.raises(ConfigError, match="runs a broker on"):
            EmbeddedBroker(data_dir=tmp_path / "data").start()
    assert (tmp_path / "data").exists()


@pytest.mark.slow
def test_three_brokers_replicate_and_survive_the_loss_of_one() -> None:
    with EmbeddedBroker(3) as cluster:
        servers = cluster.bootstrap_servers
        assert len(set(servers.split(","))) == 3
        create_topic(servers, "t", partitions=3, replication=3, config={"min.insync.replicas": "2"})
        produce(servers, "t", [b"before"] * 30, transaction="commit")
        cluster.kill_broker(1)
        produce(servers, "t", [b"during"] * 30)
        assert len(consume(servers, "t")) == 60
        cluster.start_broker(1)
        cluster.stop_broker(0)
        assert len(consume(servers, "t")) == 60
        pids = [pid for pid in cluster.pids if pid is not None]
        assert len(pids) == 2
        root = cluster.data_dir
    assert not root.exists()
    assert not any(ProcessIdentity.of(pid) for pid in pids)


ORPHAN = """
from kpipe_platform.testing.broker.embedded import EmbeddedBroker
import sys, time
broker = EmbeddedBroker()
broker.start()
print(broker.data_dir, broker.bootstrap_servers, flush=True)
time.sleep(600)
"""


def test_a_broker_dies_with_its_parent_and_leaves_nothing_behind() -> None:
    with subprocess.Popen([sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        folder, _, servers = parent.stdout.readline().strip().partition(" ")
        identity = PidFile(Path(folder) / "node-0" / "kafka.pid").running()
        assert identity is not None
        parent.send_signal(signal.SIGKILL)
    assert identity.wait(20)
    end = time.monotonic() + 20
    while Path(folder).exists():
        assert time.monotonic() < end
        time.sleep(0.02)
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((LOOPBACK, int(servers.rpartition(":")[2])))


def test_brokers_beside_each_other_and_a_port_that_is_taken_meanwhile(
    kafka_broker: EmbeddedBroker, kafka_topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    offers = [[int(kafka_broker.bootstrap_servers.rpartition(":")[2]), free_port()]]
    monkeypatch.setattr(broker_cluster, "free_ports", lambda count: offers.pop() if offers else free_ports(count))
    with EmbeddedBroker() as other:
        assert not offers
        assert other.bootstrap_servers != kafka_broker.bootstrap_servers
        create_topic(other.bootstrap_servers, kafka_topic("same"))


def test_a_wanted_port_that_is_taken_is_refused() -> None:
    with socket.create_server((LOOPBACK, free_port())) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"Port {port} is taken"):
            EmbeddedBroker(port=port).start()


def test_a_failed_start_shows_the_end_of_the_log_and_where_it_is(tmp_path: Path) -> None:
    # Found by the broker itself, not by the tool that formats its folder.
    settings = {"metric.reporters": "no.such.Reporter"}
    with pytest.raises(BrokerStartError, match="exit code 1") as caught:
        EmbeddedBroker(data_dir=tmp_path / "data", settings=settings).start()
    text = str(caught.value)
    assert "no.such.Reporter" in text
    log = Path(caught.value.log_path)
    assert str(log) in text
    assert "no.such.Reporter" in log.read_text()
    assert not (tmp_path / "data" / "node-0" / "data").exists()


def test_a_setting_that_is_no_number_is_named() -> None:
    with pytest.raises(BrokerStartError, match=r"num\.io\.threads: Not a number") as caught:
        EmbeddedBroker(settings={"num.io.threads": "many"}).start()
    assert "\tat " not in str(caught.value)
    shutil.rmtree(Path(caught.value.log_path).parent.parent)


def test_a_broker_that_is_not_ready_in_time_is_ended(tmp_path: Path) -> None:
    broker = EmbeddedBroker(data_dir=tmp_path / "data", ready_deadline_s=0.0)
    with pytest.raises(BrokerStartError, match="not ready within 0 s"):
        broker.start()
    assert PidFile(tmp_path / "data" / "node-0" / "kafka.pid").running() is None
    with pytest.raises(RuntimeError, match="not started"):
        _ = broker.bootstrap_servers


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[TlsFiles, Path]:
    keytool = find_java().path.resolve().with_name("keytool")
    folder = tmp_path_factory.mktemp("tls")
    store, certificate = folder / "broker.p12", folder / "broker.pem"
    common = ["-alias", "broker", "-keystore", store, "-storepass", "secret-word", "-storetype", "PKCS12"]
    subject = ["-dname", "CN=localhost", "-ext", "san=ip:127.0.0.1", "-validity", "2"]
    subprocess.run([keytool, "-genkeypair", "-keyalg", "EC", *common, *subject], check=True, timeout=60)
    subprocess.run([keytool, "-exportcert", "-rfc", "-file", certificate, *common], check=True, timeout=60)
    return TlsFiles(store, "secret-word"), certificate


def test_sasl_and_tls_listeners_beside_the_plain_one(tls: tuple[TlsFiles, Path]) -> None:
    files, certificate = tls
    users = {"alice": 'pass"word', "bob": "other"}
    listeners = [
        BrokerListener.sasl(users),
        BrokerListener.ssl(files),
        BrokerListener.sasl(users, tls=files, mechanisms=["SCRAM-SHA-512"]),
    ]
    with EmbeddedBroker(extra_listeners=listeners) as broker:
        create_topic(broker.bootstrap_servers, "t")

        def client(listener: str, **more: str) -> dict[str, str]:
            tls_settings = {"ssl.ca.location": str(certificate)} if listener.endswith("SSL") else {}
            names = {name.replace("_", "."): value for name, value in more.items()}
            servers = {"bootstrap.servers": broker.listener(listener), "security.protocol": listener}
            return {**servers, **tls_settings, **names}

        alice = {"sasl_username": "alice", "sasl_password": 'pass"word'}
        clients = [
            *(
                client("SASL_PLAINTEXT", sasl_mechanism=mechanism, **alice)
                for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
            ),
            client("SSL"),
            client("SASL_SSL", sasl_mechanism="SCRAM-SHA-512", **alice),
        ]
        for count, each in enumerate(clients, start=1):
            produce(each, "t", [b"x"])
            assert len(consume(each, "t")) == count
        refused: list[str] = []
        wrong = client("SASL_PLAINTEXT", sasl_mechanism="PLAIN", sasl_username="bob", sasl_password="x")
        admin = AdminClient({**client_config(wrong), "error_cb": lambda error: refused.append(error.name())})
        end = time.monotonic() + 20
        while "_AUTHENTICATION" not in refused:
            assert time.monotonic() < end
            admin.poll(0.1)
        with pytest.raises(ConfigError, match="no listener 'OTHER'"):
            broker.listener("OTHER")


@pytest.mark.parametrize("brokers", [0, 4])
def test_number_of_brokers(brokers: int) -> None:
    with pytest.raises(ConfigError, match="1 to 3 brokers"):
        EmbeddedBroker(brokers)
