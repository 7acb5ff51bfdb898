import json
from pathlib import Path

import pytest

from kpipe_platform.errors import ConfigError
from kpipe_platform.testing.broker.config import NodePorts, node_settings, properties_text
from kpipe_platform.testing.broker.data import BrokerData
from kpipe_platform.testing.broker.listeners import BrokerListener, TlsFiles

ONE = [NodePorts({"PLAINTEXT": 1001}, controller=2001)]
THREE = [NodePorts({"PLAINTEXT": 1001 + n, "SASL_PLAINTEXT": 3001 + n}, controller=2001 + n) for n in range(3)]


def test_one_broker() -> None:
    settings = node_settings(0, ONE, Path("/data"))
    assert settings["listeners"] == "PLAINTEXT://127.0.0.1:1001,CONTROLLER://127.0.0.1:2001"
    assert settings["controller.quorum.voters"] == "0@127.0.0.1:2001"
    assert settings["auto.create.topics.enable"] == "false"
    assert settings["offsets.topic.replication.factor"] == "1"
    assert settings["transaction.state.log.min.isr"] == "1"
    # Topics decide how long they keep old records.
    assert not any(name.startswith("log.retention") for name in settings)


def test_three_brokers_with_another_listener() -> None:
    listener = BrokerListener.sasl({"alice": 'a"b'}, mechanisms=["PLAIN"])
    settings = node_settings(2, THREE, Path("/data"), [listener])
    assert settings["node.id"] == "2"
    assert settings["advertised.listeners"] == "PLAINTEXT://127.0.0.1:1003,SASL_PLAINTEXT://127.0.0.1:3003"
    assert settings["controller.quorum.voters"].count("@") == 3
    assert settings["offsets.topic.replication.factor"] == "3"
    assert settings["transaction.state.log.min.isr"] == "2"
    assert "SASL_PLAINTEXT:SASL_PLAINTEXT" in settings["listener.security.protocol.map"]
    jaas = settings["listener.name.sasl_plaintext.plain.sasl.jaas.config"]
    assert jaas.endswith('PlainLoginModule required user_alice="a\\"b";')


def test_overrides_win_over_defaults_but_not_over_what_makes_it_the_embedded_broker() -> None:
    settings = node_settings(0, ONE, Path("/data"), overrides={"auto.create.topics.enable": "true"})
    assert settings["auto.create.topics.enable"] == "true"
    with pytest.raises(ConfigError, match=r"sets log\.dirs, node\.id itself"):
        node_settings(0, ONE, Path("/data"), overrides={"node.id": "7", "log.dirs": "/elsewhere"})


def test_properties_are_escaped_for_java() -> None:
    text = properties_text({"path": "C:\\x", "jaas": 'a="b";', "word": "\u00fc\U0001f600"})
    assert text == 'path=C:\\\\x\njaas=a="b";\nword=\\u00fc\\ud83d\\ude00\n'


def test_listeners() -> None:
    tls = TlsFiles(Path("/keys.p12"), "secret", truststore=Path("/trust.p12"), client_auth="required")
    assert "secret" not in repr(tls)
    assert "secret" not in repr(BrokerListener.ssl(tls))
    assert BrokerListener.ssl(tls).settings["ssl.client.auth"] == "required"
    both = BrokerListener.sasl({"alice": "hidden"}, tls=tls)
    assert both.security_protocol == both.name == "SASL_SSL"
    assert "hidden" not in repr(both)
    assert both.scram_mechanisms == ("SCRAM-SHA-256", "SCRAM-SHA-512")
    with pytest.raises(ConfigError, match="cannot be the name"):
        BrokerListener("CONTROLLER", "SSL")


def test_data_to_be_thrown_away_is_removed(tmp_path: Path) -> None:
    data = BrokerData.open(tmp_path / "new", brokers=1, keep=False)
    (data.node_folder(0) / "data").mkdir(parents=True)
    data.log_path(0).write_text("why it failed")
    assert data.orphan_folder(0) == data.root
    data.remove(keep_logs=True)
    assert data.log_path(0).exists()
    assert not (data.node_folder(0) / "data").exists()
    data.remove()
    assert not data.root.exists()


def test_a_folder_that_was_there_loses_only_what_the_broker_wrote(tmp_path: Path) -> None:
    data = BrokerData.open(tmp_path, brokers=1, keep=False)
    data.node_folder(0).mkdir()
    (tmp_path / "notes").write_text("mine")
    assert data.orphan_folder(0) == data.node_folder(0)
    data.remove()
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


def test_data_of_an_earlier_run_is_never_thrown_away(tmp_path: Path) -> None:
    first = BrokerData.open(tmp_path, brokers=1, keep=True)
    first.remember((ONE[0],))
    again = BrokerData.open(tmp_path, brokers=1, keep=False)
    assert again.cluster_id == first.cluster_id
    assert again.ports == (ONE[0],)
    assert again.orphan_folder(0) is None
    again.remove()
    assert (tmp_path / "kpipe-broker.json").exists()


def test_folders_that_are_refused(tmp_path: Path) -> None:
    BrokerData.open(tmp_path / "three", brokers=3, keep=True)
    with pytest.raises(ConfigError, match="data of 3 brokers, but 1"):
        BrokerData.open(tmp_path / "three", brokers=1, keep=True)
    with pytest.raises(ConfigError, match="is not empty"):
        BrokerData.open(tmp_path, brokers=1, keep=True)
    (tmp_path / "three" / "kpipe-broker.json").write_text(json.dumps({"ports": []}))
    with pytest.raises(ConfigError, match="cannot be read"):
        BrokerData.open(tmp_path / "three", brokers=3, keep=True)
