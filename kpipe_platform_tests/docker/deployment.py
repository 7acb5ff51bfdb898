"""Reads docker/ and says what in it does not agree with the project, one sentence for each problem.

Every `find_*` function is one promise. They take the parsed files, so that a test can break one on purpose.
"""

from __future__ import annotations

import copy
import importlib.metadata
import importlib.util
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import typer.main
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from kpipe_platform.jvm.jars import KAFKA_VERSION, kafka_broker_jars
from kpipe_platform.jvm.java import MINIMUM_JAVA
from kpipe_platform_tests.docker.archives import class_files_contain

# What Debian's python image and PostgreSQL's bring; everything else must come from our own console scripts.
SYSTEM_PROGRAMS = {"bash", "python"}
FOREIGN_PROGRAMS = {"kafka": {"/opt/kafka/bin/kafka-broker-api-versions.sh"}, "postgres": {"pg_isready"}}
POSTGRES_VARIABLES = {"POSTGRES_DB", "POSTGRES_USER", "POSTGRES_PASSWORD"}
# The official image's start script reads these two itself; every other KAFKA_* is a broker property.
KAFKA_IMAGE_VARIABLES = {"CLUSTER_ID"}
# Read by pip, Python and Dagster.
TOOL_VARIABLES = {
    "DAGSTER_HOME",
    "PIP_BUILD_CONSTRAINT",
    "PIP_CONSTRAINT",
    "PIP_DISABLE_PIP_VERSION_CHECK",
    "PIP_NO_CACHE_DIR",
    "PIP_ROOT_USER_ACTION",
    "PYTHONUNBUFFERED",
}


@dataclass(frozen=True)
class Deployment:
    """The parsed files of docker/, and the project that they are about."""

    root: Path
    project: dict[str, Any]
    instructions: list[tuple[str, str]]
    ignore: list[str]
    compose: dict[str, Any]
    compose_text: str
    dagster: dict[str, Any]
    workspace: dict[str, Any]
    script: str
    sources: str = field(repr=False)

    @classmethod
    def load(cls, root: Path) -> Deployment:
        docker = root / "docker"
        compose_text = (docker / "compose.yaml").read_text(encoding="utf-8")
        return cls(
            root=root,
            project=_toml(root / "pyproject.toml"),
            instructions=parse_dockerfile((docker / "Dockerfile").read_text(encoding="utf-8")),
            ignore=_lines(docker / "Dockerfile.dockerignore"),
            compose=yaml.safe_load(compose_text),
            compose_text=compose_text,
            dagster=yaml.safe_load((docker / "dagster.yaml").read_text(encoding="utf-8")),
            workspace=yaml.safe_load((docker / "workspace.yaml").read_text(encoding="utf-8")),
            script=(docker / "spark-connect.sh").read_text(encoding="utf-8"),
            sources="\n".join(
                path.read_text(encoding="utf-8") for path in sorted((root / "kpipe_platform").rglob("*.py"))
            ),
        )

    def copy(self) -> Deployment:
        return copy.deepcopy(self)

    @property
    def services(self) -> dict[str, dict[str, Any]]:
        return self.compose["services"]

    @property
    def own_services(self) -> dict[str, dict[str, Any]]:
        """The services that run from the image of the Dockerfile."""
        return {name: service for name, service in self.services.items() if "build" in service}

    def arguments(self, instruction: str) -> list[str]:
        return [argument for name, argument in self.instructions if name == instruction]

    def image_environment(self) -> dict[str, str]:
        pairs = (pair for line in self.arguments("ENV") for pair in shlex.split(line))
        return dict(pair.split("=", 1) for pair in pairs)

    def in_image(self, path: str) -> Path | None:
        """The project's file that a path inside the image was copied from."""
        for line in self.arguments("COPY"):
            *sources, target = line.split()
            for source in sources:
                if path in (target, f"{target.rstrip('/')}/{Path(source).name}"):
                    return self.root / source
        return None


def parse_dockerfile(text: str) -> list[tuple[str, str]]:
    """Split a Dockerfile into instructions with their arguments, continued lines joined."""
    kept = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    lines = kept.replace("\\\n", " ").splitlines()
    return [(line.split()[0].upper(), " ".join(line.split()[1:])) for line in lines if line.strip()]


# ------------------------------------------------------------------------------------------ the image


def find_missing_copy_sources(files: Deployment) -> Iterator[str]:
    for line in files.arguments("COPY"):
        for source in line.split()[:-1]:
            if not (files.root / source).exists():
                yield f"COPY of {source}, which the project does not have"
            elif f"!{source}" not in files.ignore:
                yield f"COPY of {source}, which Dockerfile.dockerignore keeps from the builder"


def find_unpinned_images(files: Deployment) -> Iterator[str]:
    version = files.project["project"]["version"]
    images = {"Dockerfile": files.arguments("FROM")[0]}
    images |= {name: service["image"] for name, service in files.services.items()}
    for where, image in images.items():
        if not re.search(r":v?\d+\.\d+\.?\d*", image):
            yield f"image {image} of {where} names no version"
        if where in files.own_services and image != f"kpipe-platform:{version}":
            yield f"image {image} of {where} is not of version {version}"
    if images["kafka"] != f"apache/kafka:{KAFKA_VERSION}":
        yield f"image {images['kafka']} is another Kafka than the embedded broker's {KAFKA_VERSION}"


def find_wrong_runtimes(files: Deployment) -> Iterator[str]:
    python = re.match(r"python:(\d+\.\d+\.\d+)", files.arguments("FROM")[0])
    supported = SpecifierSet(files.project["project"]["requires-python"])
    if python is None or not supported.contains(python.group(1)):
        yield f"base image {files.arguments('FROM')[0]} has no Python {supported}"
    runs = " ".join(files.arguments("RUN"))
    java = re.search(r"openjdk-(\d+)-jre", runs)
    if java is None or int(java.group(1)) < MINIMUM_JAVA:
        yield f"the image installs no Java {MINIMUM_JAVA}"
    if "constraints.txt" not in files.image_environment().get("PIP_CONSTRAINT", ""):
        yield "packages are installed without constraints.txt"
    for extras in re.findall(r'pip install "\.\[([^\]]+)\]"', runs):
        for extra in extras.split(","):
            if extra not in files.project["project"]["optional-dependencies"]:
                yield f"extra {extra} is not one of the project's"


def find_root_user(files: Deployment) -> Iterator[str]:
    users = files.arguments("USER")
    if not users or users[-1].split(":")[0] in ("root", "0"):
        yield "the image runs as root"
    elif f" {users[-1]} " not in f" {' '.join(files.arguments('RUN'))} ":
        yield f"user {users[-1]} is never made"
    for name, service in files.services.items():
        if service.get("privileged") or str(service.get("user", "")).split(":")[0] in ("root", "0"):
            yield f"{name} runs as root"


# --------------------------------------------------------------------------------------- the commands


def find_bad_commands(files: Deployment) -> Iterator[str]:
    default = files.arguments("CMD")[0]
    commands = {"CMD of the image": yaml.safe_load(default)}
    commands |= {name: service["command"] for name, service in files.own_services.items()}
    for where, command in commands.items():
        yield from (f"{where}: {problem}" for problem in _command_problems(files, command))
    for line in files.arguments("RUN"):
        for step in line.split(" && "):
            if step.startswith("kpipe "):
                yield from (f"RUN {step}: {problem}" for problem in _command_problems(files, step.split()))


def find_bad_health_checks(files: Deployment) -> Iterator[str]:
    for name, service in files.services.items():
        if service.get("restart") == "no":
            continue
        if "healthcheck" not in service:
            yield f"{name} has no health check"
            continue
        kind, *command = service["healthcheck"]["test"]
        if kind == "CMD" and name in files.own_services:
            yield from (f"health check of {name}: {problem}" for problem in _command_problems(files, command))
        elif kind == "CMD-SHELL":
            yield from _foreign_health_check_problems(name, shlex.split(command[0]))
        else:
            yield f"health check of {name} is neither CMD nor CMD-SHELL"
    for name, service in files.services.items():
        for other, how in service.get("depends_on", {}).items():
            if other not in files.services:
                yield f"{name} depends on {other}, which is no service"
            elif how["condition"] == "service_healthy" and "healthcheck" not in files.services[other]:
                yield f"{name} waits for the health of {other}, which is never checked"


def _foreign_health_check_problems(name: str, command: list[str]) -> Iterator[str]:
    if command[0] not in FOREIGN_PROGRAMS.get(name, ()):
        yield f"health check of {name}: {command[0]} is not known to be in its image"


def _command_problems(files: Deployment, command: list[str]) -> Iterator[str]:
    program, *arguments = command
    for position, argument in enumerate(arguments):
        if argument.startswith("/"):
            source = files.in_image(argument)
            if source is None or not source.is_file():
                yield f"{argument} is not in the image"
                return
            arguments[position] = str(source)
    if program not in SYSTEM_PROGRAMS and program not in _console_scripts(files):
        yield f"there is no program {program}"
        return
    if program == "python":
        yield from _python_problems(arguments)
    elif program != "bash":
        yield from _click_problems(program, arguments)


def _console_scripts(files: Deployment) -> set[str]:
    # Those of the packages that the image installs: the project's own and its direct dependencies'.
    needed = [*files.project["project"]["dependencies"]]
    names = {Requirement(line).name for line in needed}
    scripts = {
        entry.name
        for entry in importlib.metadata.entry_points(group="console_scripts")
        if entry.dist is not None and entry.dist.name in names
    }
    return scripts | set(files.project["project"]["scripts"])


def _python_problems(arguments: list[str]) -> Iterator[str]:
    if arguments[0] == "-m":
        if not (_module_exists(arguments[1]) and _module_runs(arguments[1])):
            yield f"there is no module {arguments[1]} that can be run"
    elif arguments[0] == "-c":
        try:
            compile(arguments[1], "<health check>", "exec")
        except SyntaxError as error:
            yield f"python -c is given no Python: {error}"


def _module_exists(name: str) -> bool:
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return False
    # A folder without __init__.py has a spec, but no origin and nothing in it.
    return spec is not None and spec.origin is not None


def _module_runs(name: str) -> bool:
    spec = importlib.util.find_spec(name)
    is_package = spec is not None and spec.submodule_search_locations is not None
    return not is_package or _module_exists(f"{name}.__main__")


def _click_problems(program: str, arguments: list[str]) -> Iterator[str]:
    command = _click_commands()[program]()
    context = click.Context(command, info_name=program)
    # By what it can do: Typer brings classes of its own.
    while hasattr(command, "get_command"):
        name, *arguments = arguments
        found = command.get_command(context, name)
        if found is None:
            yield f"{program} has no command {name}"
            return
        command = found
    try:
        values = command.make_context(command.name, list(arguments)).params
    except click.UsageError as error:
        yield error.format_message()
        return
    modules = values.get("module_name") or ()
    for module in [modules] if isinstance(modules, str) else modules:
        if not _module_exists(module):
            yield f"there is no module {module}"


def _click_commands() -> Mapping[str, Callable[[], Any]]:
    def dagster() -> click.Command:
        from dagster._cli import create_dagster_cli

        return create_dagster_cli()

    def daemon() -> click.Command:
        from dagster._daemon.cli import create_dagster_daemon_cli

        return create_dagster_daemon_cli()

    def webserver() -> click.Command:
        from dagster_webserver.cli import create_dagster_webserver_cli

        return create_dagster_webserver_cli()

    def kpipe() -> Any:
        from kpipe_platform.cli.main import app

        return typer.main.get_command(app)

    return {"dagster": dagster, "dagster-daemon": daemon, "dagster-webserver": webserver, "kpipe": kpipe}


# --------------------------------------------------------------------------------------- the settings


def find_bad_variables(files: Deployment) -> Iterator[str]:
    ours = files.image_environment()
    for name, service in files.services.items():
        variables = service.get("environment", {})
        if name == "kafka":
            yield from _kafka_variable_problems(variables)
        elif name == "postgres":
            for variable in set(variables) - POSTGRES_VARIABLES:
                yield f"{variable} of {name} is not a variable of PostgreSQL's image"
        else:
            ours |= variables
            for variable in _instance_variables(files.dagster):
                if variable not in variables:
                    yield f"{variable}, which dagster.yaml reads, is not set for {name}"
    readers = files.sources + files.script + yaml.safe_dump(files.dagster)
    for variable in sorted(set(ours) - TOOL_VARIABLES):
        if not re.search(rf"\b{variable}\b", readers):
            yield f"{variable} is set, but nothing reads it"
    header = files.compose_text.partition("\nname:")[0]
    for variable, default in re.findall(r"\$\{(\w+)([^}]*)\}", files.compose_text.replace("$$", "")):
        if not re.search(rf"^#   {variable} ", header, re.MULTILINE):
            yield f"{variable} can be set, but the head of compose.yaml does not say so"
        if not default.startswith(":-"):
            yield f"{variable} has no default"


def _kafka_variable_problems(variables: Mapping[str, str]) -> Iterator[str]:
    jars = [jar for jar in kafka_broker_jars() if jar.name.startswith("kafka")]
    for variable in sorted(set(variables) - KAFKA_IMAGE_VARIABLES):
        name = variable.removeprefix("KAFKA_").lower().replace("_", ".")
        if name == variable.lower() or not class_files_contain(jars, name):
            yield f"{variable} of kafka is no setting of Kafka {KAFKA_VERSION}"


def _instance_variables(node: object) -> Iterator[str]:
    if isinstance(node, dict):
        if set(node) == {"env"}:
            yield node["env"]
        for child in node.values():
            yield from _instance_variables(child)


def find_port_disagreements(files: Deployment) -> Iterator[str]:
    exposed = {int(port) for line in files.arguments("EXPOSE") for port in line.split()}
    code, webserver, spark = (files.services[name] for name in ("code", "webserver", "spark"))
    script_default = re.search(r"KPIPE_SPARK_CONNECT_PORT:-(\d+)", files.script)
    groups = {
        "the code location": {
            "its command": _option(code["command"], "-p"),
            "its health check": _option(code["healthcheck"]["test"], "-p"),
            "workspace.yaml": files.workspace["load_from"][0]["grpc_server"]["port"],
            "CMD of the image": _option(yaml.safe_load(files.arguments("CMD")[0]), "-p"),
        },
        "the webserver": {
            "its command": _option(webserver["command"], "-p"),
            "its health check": _port_in(webserver["healthcheck"]["test"][-1]),
            "ports": _published(webserver),
        },
        "Spark Connect": {
            "KPIPE_SPARK_CONNECT_PORT": int(spark["environment"]["KPIPE_SPARK_CONNECT_PORT"]),
            "its health check": _port_in(spark["healthcheck"]["test"][-1]),
            "KPIPE_SPARK_REMOTE": _port_in(code["environment"]["KPIPE_SPARK_REMOTE"]),
            "spark-connect.sh": int(script_default.group(1)) if script_default else None,
        },
    }
    for subject, ports in groups.items():
        if len(set(ports.values())) != 1:
            yield f"ports of {subject} differ: {ports}"
        elif not set(ports.values()) <= exposed:
            yield f"the port of {subject} is not exposed: {ports}"
    yield from _kafka_port_disagreements(files)
    storage = files.dagster["storage"]["postgres"]["postgres_db"]
    if storage["port"] != _port_in(files.services["postgres"]["healthcheck"]["test"][-1], r"-p (\d+)"):
        yield "ports of PostgreSQL in dagster.yaml and in its health check differ"


def _kafka_port_disagreements(files: Deployment) -> Iterator[str]:
    kafka = files.services["kafka"]
    listens, advertised = (
        dict(part.split("://", 1) for part in kafka["environment"][name].split(","))
        for name in ("KAFKA_LISTENERS", "KAFKA_ADVERTISED_LISTENERS")
    )
    for name, service in files.own_services.items():
        if service["environment"]["KAFKA_BOOTSTRAP_SERVERS"] != advertised["INTERNAL"]:
            yield f"{name} looks for Kafka elsewhere than at {advertised['INTERNAL']}"
    if _port_in(advertised["INTERNAL"]) != _port_in(listens["INTERNAL"]):
        yield "Kafka advertises another port to containers than it listens on"
    if _published(kafka) != _port_in(listens["HOST"]):
        yield "another port of Kafka is published than its listener for this machine has"
    outside = kafka["ports"][0].removeprefix("127.0.0.1:").rpartition(":")[0]
    if not advertised["HOST"].endswith(f":{outside}"):
        yield f"Kafka is published as port {outside}, but advertised as {advertised['HOST']}"
    voter = kafka["environment"]["KAFKA_CONTROLLER_QUORUM_VOTERS"]
    if voter.split("@")[0] != kafka["environment"]["KAFKA_NODE_ID"]:
        yield "the voter of Kafka's quorum has another id than the node"
    if _port_in(voter) != _port_in(listens["CONTROLLER"]):
        yield "the voter of Kafka's quorum has another port than the controller"
    protocols = kafka["environment"]["KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"]
    if {part.split(":")[0] for part in protocols.split(",")} != set(listens):
        yield "Kafka's listeners and their protocols differ"
    if _port_in(kafka["healthcheck"]["test"][-1]) != _port_in(listens["INTERNAL"]):
        yield "the health check of kafka asks another port than it listens on"


def find_host_disagreements(files: Deployment) -> Iterator[str]:
    hosts = {"workspace.yaml": files.workspace["load_from"][0]["grpc_server"]["host"]}
    for name, service in files.own_services.items():
        variables = service["environment"]
        hosts[f"KAFKA_BOOTSTRAP_SERVERS of {name}"] = variables["KAFKA_BOOTSTRAP_SERVERS"].split(":")[0]
        hosts[f"KPIPE_SPARK_REMOTE of {name}"] = variables["KPIPE_SPARK_REMOTE"].split("/")[2].split(":")[0]
        hosts[f"KPIPE_POSTGRES_HOST of {name}"] = variables["KPIPE_POSTGRES_HOST"]
        server = files.services["postgres"]["environment"]
        for ours, theirs in (("DB", "DB"), ("USER", "USER"), ("PASSWORD", "PASSWORD")):
            if variables[f"KPIPE_POSTGRES_{ours}"] != server[f"POSTGRES_{theirs}"]:
                yield f"KPIPE_POSTGRES_{ours} of {name} is not what PostgreSQL is started with"
    for where, host in hosts.items():
        if host not in files.services:
            yield f"{where} names {host}, which is no service"


def find_unkept_data(files: Deployment) -> Iterator[str]:
    declared = set(files.compose["volumes"])
    for name, service in files.services.items():
        mounts = [mount.split(":") for mount in service.get("volumes", [])]
        for volume, _ in mounts:
            if volume not in declared:
                yield f"volume {volume} of {name} is not declared"
        targets = [target for _, target in mounts]
        variables = service.get("environment", {})
        for variable in ("KPIPE_DATA_DIR", "KAFKA_LOG_DIRS"):
            path = variables.get(variable)
            if path is not None and not any(f"{path}/".startswith(f"{target}/") for target in targets):
                yield f"{variable} of {name} is in no volume: {path}"
        if name in files.own_services:
            for directory in _base_dirs(files.dagster):
                if not any(f"{directory}/".startswith(f"{target}/") for target in targets):
                    yield f"{directory} of dagster.yaml is in no volume of {name}"
            for target in targets:
                if f" {target} " not in f" {' '.join(files.arguments('RUN'))} ":
                    yield f"the image does not make {target}, so its volume would belong to root"


def _base_dirs(node: object) -> Iterator[str]:
    if isinstance(node, dict):
        for key, child in node.items():
            if key == "base_dir":
                yield child
            else:
                yield from _base_dirs(child)


ALL_CHECKS: tuple[Callable[[Deployment], Iterator[str]], ...] = (
    find_missing_copy_sources,
    find_unpinned_images,
    find_wrong_runtimes,
    find_root_user,
    find_bad_commands,
    find_bad_health_checks,
    find_bad_variables,
    find_port_disagreements,
    find_host_disagreements,
    find_unkept_data,
)


def _option(command: list[str], name: str) -> int:
    return int(command[command.index(name) + 1])


def _port_in(text: str, pattern: str = r":(\d+)|', (\d+)\)") -> int | None:
    found = re.search(pattern, text)
    return None if found is None else int(next(group for group in found.groups() if group))


def _published(service: Mapping[str, Any]) -> int:
    return int(service["ports"][0].rpartition(":")[2])


def _lines(path: Path) -> list[str]:
    return [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]


def _toml(path: Path) -> dict[str, Any]:
    import tomli

    return tomli.loads(path.read_text(encoding="utf-8"))
