"""A real Apache Kafka cluster in child processes, for tests, examples and a developer's machine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from kpipe_platform.errors import ConfigError
from kpipe_platform.jvm.class_archive import archive_options
from kpipe_platform.jvm.jars import kafka_broker_jars
from kpipe_platform.jvm.java import find_java
from kpipe_platform.testing.broker.cluster import BrokerCluster
from kpipe_platform.testing.broker.config import PLAINTEXT
from kpipe_platform.testing.broker.data import BrokerData
from kpipe_platform.testing.broker.listeners import BrokerListener
from kpipe_platform.testing.broker.node import BrokerJvm
from kpipe_platform.testing.broker.ready import exercise
from kpipe_platform.testing.broker.scram import store_scram_users

__all__ = ["EmbeddedBroker"]

logger = logging.getLogger(__name__)

_MAX_BROKERS = 3


class EmbeddedBroker:
    """An Apache Kafka cluster on this machine (KRaft; each node is broker and controller).

    It listens on the loopback interface only. Its jars are downloaded once, see `kpipe_platform.jvm.jars`. It
    stops when this process ends for any reason, unless ``detached``. Broker ids are 0, 1 and 2.

    Topics are not created automatically. Retention is Kafka's default of a week, so a topic for
    records with old timestamps needs ``retention.ms=-1``.

    Args:
        brokers: Number of brokers, 1 to 3. Internal topics are replicated to all.
        data_dir: Folder for data, settings and logs. Default: a temporary folder. If it contains the data of an
            earlier run, the cluster continues with that data, and on the same ports if they are free.
        keep_data: Keep the data when stopped. Data from before the start is always kept.
        settings: Broker settings that override the defaults.
        extra_listeners: Additional SASL or TLS listeners.
        heap_mb: Maximum heap of each broker, MB.
        ready_deadline_s: Maximum seconds to wait for the brokers to become ready.
        port: Port of the first broker's plaintext listener. Default: a free port.
        detached: Keep the brokers running after this process ends.
        class_archive: Start faster with an archive of Kafka's classes, created at the first start (10 s, once).
        jvm_options: Additional JVM options.
        progress: Called with a line of text for each step. Details are indented.
    """

    def __init__(
        self,
        brokers: int = 1,
        data_dir: Path | None = None,
        keep_data: bool = False,
        settings: Mapping[str, str] | None = None,
        *,
        extra_listeners: Sequence[BrokerListener] = (),
        heap_mb: int = 320,
        ready_deadline_s: float = 60.0,
        port: int | None = None,
        detached: bool = False,
        class_archive: bool = True,
        jvm_options: Sequence[str] = (),
        progress: Callable[[str], None] | None = None,
    ) -> None:
        if not 1 <= brokers <= _MAX_BROKERS:
            msg = f"An embedded cluster has 1 to {_MAX_BROKERS} brokers, not {brokers}."
            raise ConfigError(msg, fix="use 1, 2 or 3")
        self._count = brokers
        self._data_dir = data_dir
        self._keep_data = keep_data
        self._settings = dict(settings or {})
        self._listeners = tuple(extra_listeners)
        self._heap_mb = heap_mb
        self._ready_deadline_s = ready_deadline_s
        self._port = port
        self._detached = detached
        self._class_archive = class_archive
        self._jvm_options = (*jvm_options, *(option for each in extra_listeners for option in each.jvm_options))
        self._progress = progress
        self._running: BrokerCluster | None = None

    def __enter__(self) -> EmbeddedBroker:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def bootstrap_servers(self) -> str:
        """Addresses of the plaintext listeners, ``host:port`` separated by commas."""
        return self.listener(PLAINTEXT)

    @property
    def data_dir(self) -> Path:
        """Folder with the data, settings and logs of this run."""
        return self._cluster.data.root

    @property
    def cluster_id(self) -> str:
        """Kafka's id of the cluster."""
        return self._cluster.data.cluster_id

    @property
    def log_paths(self) -> list[Path]:
        """Log file of each broker."""
        return [node.log_path for node in self._cluster.nodes]

    @property
    def pids(self) -> list[int | None]:
        """Process id of each broker's JVM. None for a broker that is not running."""
        return [node.pid for node in self._cluster.nodes]

    def listener(self, name: str) -> str:
        """Return the addresses of one listener on every broker.

        Args:
            name: ``PLAINTEXT``, or the name of an additional listener.

        Returns:
            ``host:port`` separated by commas.

        Raises:
            ConfigError: There is no listener with this name.
        """
        return self._cluster.listener(name)

    def start(self) -> None:
        """Start all brokers and wait until they are ready.

        Raises:
            BrokerStartError: The brokers did not become ready. The message contains the end of the log.
            ConfigError: A setting is not allowed, or the data folder contains other files.
            EnvironmentSetupError: Java is not installed, or Kafka's jars cannot be downloaded.
        """
        if self._running is not None:
            msg = "the embedded broker is already started"
            raise RuntimeError(msg)
        jvm, format_options = self._prepare_jvm()
        data = BrokerData.open(self._data_dir, brokers=self._count, keep=self._keep_data)
        cluster = BrokerCluster(
            data,
            jvm,
            settings=self._settings,
            listeners=self._listeners,
            port=self._port,
            detached=self._detached,
            ready_deadline_s=self._ready_deadline_s,
        )
        try:
            cluster.launch(format_options)
            store_scram_users(cluster.listener(PLAINTEXT), self._listeners, self._ready_deadline_s)
        except BaseException:
            cluster.kill()
            data.remove(keep_logs=True)
            raise
        self._running = cluster
        logger.info("Kafka is ready at %s, data in %s", self.bootstrap_servers, data.root)

    def stop(self) -> None:
        """Stop all brokers. Do nothing if they are not running.

        If the data is deleted anyway, the brokers are killed, which is faster than a clean shutdown.
        """
        cluster, self._running = self._running, None
        if cluster is None:
            return
        if cluster.data.throw_away:
            cluster.kill()
        else:
            cluster.shut_down()
            # The next start finds the data in the folder that was created for this run.
            self._data_dir = cluster.data.root
        cluster.data.remove()

    def restart(self, settings: Mapping[str, str] | None = None) -> None:
        """Shut down all brokers and start them again, with the same data and on the same ports.

        Args:
            settings: Broker settings to add or change from now on.

        Raises:
            BrokerStartError: The brokers did not become ready again.
        """
        self._settings |= settings or {}
        self._cluster.restart(self._settings)

    def stop_broker(self, broker: int) -> None:
        """Shut down one broker cleanly and wait until its process has ended.

        Args:
            broker: Its id, from 0.
        """
        self._cluster.stop_node(broker)

    def kill_broker(self, broker: int) -> None:
        """Kill one broker with SIGKILL, as in a crash, and wait until its process has ended.

        Args:
            broker: Its id, from 0.
        """
        self._cluster.nodes[broker].kill()

    def start_broker(self, broker: int) -> None:
        """Start one broker again, on its old port, and wait until all running brokers list it.

        Args:
            broker: Its id, from 0.

        Raises:
            BrokerStartError: The broker did not become ready.
        """
        self._cluster.start_nodes([broker])

    @property
    def _cluster(self) -> BrokerCluster:
        if self._running is None:
            msg = "the embedded broker is not started"
            raise RuntimeError(msg)
        return self._running

    def _prepare_jvm(self) -> tuple[BrokerJvm, list[str]]:
        java = find_java()
        jars = kafka_broker_jars(progress=self._progress)
        archive = archive_options("kafka", java, jars, self._train) if self._class_archive else []
        return BrokerJvm(java, jars, self._heap_mb, (*self._jvm_options, *archive)), archive

    def _train(self, options: Sequence[str]) -> None:
        if self._progress is not None:
            self._progress("Creating a class archive, so that Kafka starts faster (once, about ten seconds)")
        with EmbeddedBroker(class_archive=False, jvm_options=options) as broker:
            exercise(broker.bootstrap_servers)
            # The JVM writes the archive only at a clean exit.
            broker.stop_broker(0)
