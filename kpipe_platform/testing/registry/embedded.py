"""A real Apicurio Registry in a child process, for tests and a developer's machine."""

from __future__ import annotations

import http.client
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from kpipe_platform.errors import EnvironmentSetupError, RegistryUnavailableError
from kpipe_platform.jvm.class_archive import archive_options
from kpipe_platform.jvm.jars import schema_registry_jars
from kpipe_platform.jvm.java import find_java
from kpipe_platform.jvm.ports import LOOPBACK, free_port, is_free
from kpipe_platform.jvm.process import ManagedProcess

__all__ = ["EmbeddedRegistry"]

logger = logging.getLogger(__name__)

_PATH = "/apis/ccompat/v7"
_POLL_S = 0.05
# The registry stops at once. With this deadline it can also write its class archive on a slow machine.
_STOP_DEADLINE_S = 30.0
_PORT_TRIES = 3
_BIND_CLASHES = ("already bound", "Address already in use")
# The registry reads many variables, among them KAFKA_BOOTSTRAP_SERVERS, which kpipe's users often set.
_PASSED_ON = ("PATH", "HOME", "JAVA_HOME", "JAVA_TOOL_OPTIONS", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TMPDIR")
# It runs too briefly to benefit from the optimizing compiler. The serial garbage collector starts fastest.
_JVM_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData")
_QUIET = {"LOG_LEVEL": "WARN", "REGISTRY_LOG_LEVEL": "WARN"}


class EmbeddedRegistry:
    """An Apicurio Registry on this machine, with Confluent's API.

    It listens on the loopback interface only, and stops when this process ends for any reason. Its jars (140 MB) are
    downloaded once, see `kpipe_platform.jvm.jars`. It starts in 2 to 4 seconds.

    Schemas and ids survive `stop` and `start`, and a registry with a ``data_dir`` continues with the schemas of an
    earlier run. Otherwise the data is in a temporary folder that `close`, or the end of a ``with`` block, deletes.

    Args:
        data_dir: Folder for the schemas and the log. Default: a temporary folder.
        port: Port; a free port by default. Further starts use the same one.
        heap_mb: Maximum heap, MB.
        ready_deadline_s: Maximum seconds to wait until the registry is ready.
        class_archive: Start faster with an archive of the registry's classes, created at the first start (10 s, once).
        jvm_options: Additional JVM options.
        progress: Called with a line of text for each step. Details are indented.
    """

    def __init__(
        self,
        data_dir: Path | None = None,
        *,
        port: int | None = None,
        heap_mb: int = 256,
        ready_deadline_s: float = 60.0,
        class_archive: bool = True,
        jvm_options: Sequence[str] = (),
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self._data_dir = data_dir
        self._folder: Path | None = None
        self._port = port
        self._heap_mb = heap_mb
        self._ready_deadline_s = ready_deadline_s
        self._class_archive = class_archive
        self._jvm_options = tuple(jvm_options)
        self._progress = progress
        self._process: ManagedProcess | None = None

    def __enter__(self) -> EmbeddedRegistry:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def url(self) -> str:
        """Address for clients, for ``SchemaRegistry(url=...)``."""
        if self._port is None:
            msg = "the embedded registry is not started"
            raise RuntimeError(msg)
        return f"http://{LOOPBACK}:{self._port}{_PATH}"

    @property
    def pid(self) -> int | None:
        """Process id; None while the registry is stopped."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the registry and wait until it is ready. Do nothing if it is running.

        Raises:
            RegistryUnavailableError: It did not become ready. The message contains the end of the log.
            EnvironmentSetupError: Java is not installed, the jars cannot be downloaded, or the port is in use.
        """
        if self._process is not None and self._process.is_running():
            return
        self.kill()  # releases what belongs to a process that crashed
        java, jars = find_java(), schema_registry_jars(progress=self._progress)
        archive = archive_options("registry", java, jars, self._train) if self._class_archive else []
        program = [str(java.path), *_JVM_OPTIONS, f"-Xmx{self._heap_mb}m", *archive, *self._jvm_options]
        chosen = self._port is None
        if self._port is not None and not is_free(self._port):
            msg = f"Port {self._port} is in use, so the schema registry cannot listen on it."
            raise EnvironmentSetupError(msg, fix="stop the program that listens on it, or use another port")
        for tries_left in reversed(range(_PORT_TRIES)):
            if chosen or self._port is None:
                self._port = free_port()
            try:
                self._launch(program, jars[0], self._port)
                break
            except RegistryUnavailableError as error:
                clash = any(sign in error.attributes["log_tail"] for sign in _BIND_CLASHES)
                if not (chosen and clash and tries_left):
                    raise
                logger.info("another program took port %s: trying another", self._port)
        logger.info("the schema registry is ready at %s", self.url)

    def stop(self) -> None:
        """Stop the registry, and keep its schemas. Do nothing if it is stopped."""
        if self._process is not None:
            self._process.stop(_STOP_DEADLINE_S)

    def kill(self) -> None:
        """Kill the registry with SIGKILL, as in a crash. Schemas that it acknowledged are kept."""
        if self._process is not None:
            self._process.kill()

    @contextmanager
    def outage(self) -> Iterator[None]:
        """Stop the registry for the ``with`` block, and start it again at the same address."""
        self.stop()
        try:
            yield
        finally:
            self.start()

    def close(self) -> None:
        """Stop the registry, and delete its temporary folder."""
        if self._data_dir is None:
            # Nothing of it is needed, so there is no clean shutdown to wait for.
            self.kill()
        else:
            self.stop()
        if self._data_dir is None and self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _train(self, options: Sequence[str]) -> None:
        if self._progress is not None:
            self._progress("Creating a class archive, so that the schema registry starts faster (once, ten seconds)")
        with EmbeddedRegistry(class_archive=False, jvm_options=options) as registry:
            # The JVM writes the archive only at a clean exit.
            registry.stop()

    def _launch(self, program: Sequence[str], runner: Path, port: int) -> None:
        folder = self._open_folder()
        # Without a delay, a schema that was acknowledged is on disk, and a killed registry keeps it.
        database = f"jdbc:h2:file:{folder / 'schemas'};WRITE_DELAY=0"
        settings = {
            "quarkus.http.host": LOOPBACK,
            "quarkus.http.port": str(port),
            "quarkus.datasource.jdbc.url": database,
            # By default it opens 20 connections to the database at its start.
            "quarkus.datasource.jdbc.initial-size": "1",
            "quarkus.datasource.jdbc.min-size": "1",
        }
        process = ManagedProcess(
            [
                *program,
                *(f"-D{name}={value}" for name, value in settings.items()),
                *("-jar", str(runner)),
            ],
            log_path=folder / "registry.log",
            cwd=folder,
            env={**{name: os.environ[name] for name in _PASSED_ON if name in os.environ}, **_QUIET},
            remove_if_orphaned=folder if self._data_dir is None else None,
        )
        self._process = process
        process.start()
        end = time.monotonic() + self._ready_deadline_s
        while not _answers(port):
            if not process.is_running():
                what = f"The schema registry exited with exit code {process.returncode}."
            elif time.monotonic() > end:
                what = f"The schema registry was not ready within {self._ready_deadline_s:g} s."
            else:
                time.sleep(_POLL_S)
                continue
            process.kill()
            raise _start_error(what, process)

    def _open_folder(self) -> Path:
        if self._folder is None:
            try:
                if self._data_dir is None:
                    self._folder = Path(tempfile.mkdtemp(prefix="kpipe-registry-"))
                else:
                    self._data_dir.mkdir(parents=True, exist_ok=True)
                    self._folder = self._data_dir.absolute()
            except OSError as error:
                msg = f"The folder of the schema registry cannot be created: {error}"
                raise EnvironmentSetupError(msg, fix="choose a writable folder") from error
        return self._folder


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=5.0)
    try:
        connection.request("GET", f"{_PATH}/subjects")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _start_error(what: str, process: ManagedProcess) -> RegistryUnavailableError:
    # Without the frames of exceptions.
    lines = [line for line in process.log_tail(200).splitlines() if not line.startswith(("\tat ", "\t... "))]
    tail = "\n".join(lines[-30:])
    quoted = "\n".join(f"    {line}" for line in tail.splitlines()) or "    (nothing)"
    return RegistryUnavailableError(
        f"{what} The last lines of its log, {process.log_path}:\n{quoted}",
        fix="fix the problem that the log names; on a slow machine, raise ready_deadline_s",
        log_path=str(process.log_path),
        log_tail=tail,
    )
