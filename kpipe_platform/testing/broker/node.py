"""One broker process of the embedded cluster."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kpipe_platform.errors import BrokerStartError
from kpipe_platform.jvm.jars import class_path
from kpipe_platform.jvm.java import JavaInstall
from kpipe_platform.jvm.private_files import private_folder, write_private
from kpipe_platform.jvm.process import ManagedProcess
from kpipe_platform.testing.broker.config import LOG4J2_CONFIG, properties_text
from kpipe_platform.testing.broker.data import BrokerData

__all__ = ["BrokerJvm", "BrokerNode"]

# Formatting takes half a second. After a minute, the tool is assumed to hang.
_FORMAT_DEADLINE_S = 60.0


@dataclass(frozen=True)
class BrokerJvm:
    """Builds the commands that start the programs in Kafka's jars.

    Attributes:
        java: The Java installation to use.
        jars: The broker's jars.
        heap_mb: Maximum heap of a broker, MB.
        options: Additional JVM options.
    """

    java: JavaInstall
    jars: Sequence[Path]
    heap_mb: int
    options: Sequence[str] = field(default_factory=tuple)

    def broker(self, log4j2: Path, properties: Path) -> list[str]:
        """Return the command of a broker."""
        return self._command(
            [f"-Xmx{self.heap_mb}m", "-XX:+ExitOnOutOfMemoryError", *self.options],
            log4j2,
            ["kafka.Kafka", str(properties)],
        )

    def storage_tool(self, log4j2: Path, *arguments: str, options: Sequence[str] = ()) -> list[str]:
        """Return the command of Kafka's storage tool. It runs too briefly to benefit from the optimizing compiler."""
        return self._command(
            ["-XX:TieredStopAtLevel=1", "-Xmx128m", *options],
            log4j2,
            ["kafka.tools.StorageTool", *arguments],
        )

    def _command(self, options: list[str], log4j2: Path, main: list[str]) -> list[str]:
        # The serial garbage collector starts fastest and is no slower on heaps this small. Performance counters in
        # shared memory are only for jstat.
        flags = ["-XX:+UseSerialGC", "-XX:-UsePerfData", "-Djava.awt.headless=true"]
        logging = f"-Dlog4j2.configurationFile={log4j2}"
        return [
            str(self.java.path),
            *flags,
            *options,
            logging,
            "-cp",
            class_path(self.jars),
            *main,
        ]


class BrokerNode:
    """One broker, which is also one of the cluster's controllers.

    Args:
        node: Node id.
        data: The cluster's folder. The node's subfolder contains its settings, log, pid file and data.
        jvm: How to start the broker.
        detached: Whether the broker keeps running after this process ends.
    """

    def __init__(
        self,
        node: int,
        data: BrokerData,
        jvm: BrokerJvm,
        *,
        detached: bool = False,
    ) -> None:
        self.node = node
        self.folder = folder = data.node_folder(node)
        self.data_dir = folder / "data"
        self.log_path = data.log_path(node)
        self.pid_file = data.pid_file(node)
        self._properties = folder / "server.properties"
        self._log4j2 = folder / "log4j2.properties"
        self._jvm = jvm
        self._process = ManagedProcess(
            jvm.broker(self._log4j2, self._properties),
            log_path=self.log_path,
            detached=detached,
            pid_file=self.pid_file,
            remove_if_orphaned=data.orphan_folder(node),
        )

    @property
    def pid(self) -> int | None:
        """Process id of the broker's JVM. None while it is not running."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Exit code of the last run. None while it is running."""
        return self._process.returncode

    def configure(self, settings: Mapping[str, str]) -> None:
        """Write the node's settings, for the next start."""
        private_folder(self.folder)
        # The settings may contain the password of a keystore.
        write_private(self._properties, properties_text(settings))
        self._log4j2.write_text(LOG4J2_CONFIG, encoding="ascii")

    def begin_format(self, cluster_id: str, options: Sequence[str] = ()) -> subprocess.Popen[str] | None:
        """Start formatting the node's folder. Return None if it was formatted before."""
        if (self.data_dir / "meta.properties").exists():
            return None
        command = self._jvm.storage_tool(
            self._log4j2,
            *("format", "--ignore-formatted", "--cluster-id", cluster_id),
            *("--config", str(self._properties)),
            options=options,
        )
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )

    def finish_format(self, tool: subprocess.Popen[str]) -> None:
        """Wait until the formatting is complete.

        Raises:
            BrokerStartError: The formatting failed.
        """
        try:
            output, _ = tool.communicate(timeout=_FORMAT_DEADLINE_S)
        except subprocess.TimeoutExpired:
            tool.kill()
            output, _ = tool.communicate()
        if tool.returncode != 0:
            # The tool reports the problem in one line, above the stack frames of the exception.
            tail = "\n".join(line for line in output.splitlines()[-30:] if not line.startswith("\tat "))
            msg = f"Kafka's storage tool could not format {self.data_dir}:\n{tail}"
            raise BrokerStartError(
                msg,
                fix="correct the setting that it names",
                broker=self.node,
                log_path=str(self.log_path),
                log_tail=tail,
            )

    def start(self) -> None:
        """Start the broker's process. Does not wait until the broker is ready."""
        self._process.start()

    def is_running(self) -> bool:
        """Return whether the broker's process is running."""
        return self._process.is_running()

    def terminate(self) -> None:
        """Request a shutdown of the broker, without waiting for it."""
        self._process.terminate()

    def stop(self, deadline_s: float) -> None:
        """Shut down the broker. After the deadline, kill it with SIGKILL."""
        self._process.stop(deadline_s)

    def kill(self) -> None:
        """Kill the broker with SIGKILL."""
        self._process.kill()

    def log_tail(self, lines: int = 30) -> str:
        """Return the last lines logged since the last start."""
        return self._process.log_tail(lines)
