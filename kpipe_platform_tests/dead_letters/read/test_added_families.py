"""Header families that packages add by an entry point: the example's, and wrong ones."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kpipe_platform.dead_letters import HeaderFamily, header_families
from kpipe_platform.dead_letters.read import families
from kpipe_platform.dead_letters.read.reader import read_dead_letter
from kpipe_platform.errors import ConfigError
from kpipe_platform.kafka.model.records import Headers, KafkaRecord
from kpipe_platform.testing.plugin import Produce
from kpipe_platform_tests.dead_letters.conftest import DeadLetters

EXAMPLE = Path(__file__).parents[3] / "examples" / "share_group_dead_letters"
ATTEMPTS = "kpipe.redrive.attempts"
TIME = 1_700_000_000_000

Install = Callable[[str], None]

CONNECT_LIKE = HeaderFamily("connect", topic="x-topic")
NOT_A_FAMILY = {"topic": "x-topic"}


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs a distribution with one entry point."""

    def add(value: str) -> None:
        info = tmp_path / "added-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: added\nVersion: 1.0\n", encoding="utf-8")
        text = f"[kpipe_platform.dead_letter_families]\nshare_group = {value}\n"
        (info / "entry_points.txt").write_text(text, encoding="utf-8")
        monkeypatch.syspath_prepend(str(tmp_path))
        families._known.cache_clear()

    yield add
    families._known.cache_clear()


@pytest.fixture
def share_groups(install: Install, tmp_path: Path) -> None:
    """The example, installed."""
    value = "share_group_dead_letters:SHARE_GROUP"
    assert f'share_group = "{value}"' in (EXAMPLE / "pyproject.toml").read_text(encoding="utf-8")
    shutil.copy(EXAMPLE / "share_group_dead_letters.py", tmp_path)
    install(value)


def headers(topic: str = "orders", offset: int = 42) -> Headers:
    said = {"topic": topic, "partition": 0, "offset": offset, "group": "workers", "message": "rejected"}
    return tuple((f"__dlq.errors.{name}", str(value).encode()) for name, value in said.items())


def message(**changes: object) -> KafkaRecord:
    return replace(KafkaRecord("dlq", 4, 77, TIME, "create_time", None, None, headers()), **changes)


def test_without_the_package_its_dead_letters_are_unknown() -> None:
    assert [family.name for family in header_families()] == ["connect", "spring", "spring_retry"]
    assert read_dead_letter(message()).family == "unknown"


@pytest.mark.usefixtures("share_groups")
class TestTheExample:
    def test_it_is_read(self) -> None:
        found = read_dead_letter(message(key=b"k", value=b"v"))
        assert (found.family, found.who, found.message) == ("share_group", "workers", "rejected")
        assert (found.original.topic, found.original.partition, found.original.offset) == ("orders", 0, 42)
        assert (found.original.headers, found.from_source) == ((), "headers")
        assert read_dead_letter(message()).from_source == "payload"

    def test_hops_of_it_and_of_a_built_in_family(self) -> None:
        place = (("topic", b"payments"), ("partition", b"1"), ("offset", b"7"), ("exception.class.name", b"a.Boom"))
        connect = tuple((f"__connect.errors.{name}", value) for name, value in place)
        found = read_dead_letter(message(headers=(*connect, *headers())))
        assert (found.family, found.original.topic, found.topics) == ("connect", "payments", ("payments", "orders"))
        assert (found.from_source, "payments, orders" in (found.problem or "")) == (None, True)
        assert found.original.headers == ()

    @pytest.mark.broker
    def test_payload_and_headers_come_from_the_source(self, letters: DeadLetters, produce: Produce) -> None:
        """Brokers copy no headers, and key and value only if told to: the attempts would be lost, and it would loop."""
        record = {"key": b"k", "value": b"v", "headers": [("h", b"1"), (ATTEMPTS, b"2")], "timestamp": TIME}
        produce(letters.source, [record, record])
        letters.put({"value": None, "headers": headers(letters.source, 0)})
        letters.put({"key": b"k", "value": b"v", "headers": headers(letters.source, 1)})
        letters.put({"key": b"k", "value": b"copied", "headers": headers(letters.source, 9)})
        letters.put({"value": None, "headers": headers(letters.source, 9)})
        result = letters.redrive()
        assert result.kept_by_reason == {"payload_gone": 1}
        sent = [(each.key, each.value, each.headers) for each in letters.sent()[2:]]
        assert sent == [
            (b"k", b"v", (("h", b"1"), (ATTEMPTS, b"3"))),
            (b"k", b"v", (("h", b"1"), (ATTEMPTS, b"3"))),
            (b"k", b"copied", ((ATTEMPTS, b"1"),)),
        ]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("no_such_module:FAMILY", r"cannot be loaded: ModuleNotFoundError"),
        ("wrong_families:MISSING", r"cannot be loaded: AttributeError"),
        ("wrong_families:NOT_A_FAMILY", r"names an object of type dict"),
        ("wrong_families:CONNECT_LIKE", r"another dead-letter family named 'connect'"),
    ],
)
def test_a_wrong_entry_point_says_so(install: Install, tmp_path: Path, name: str, says: str) -> None:
    module = f"from {__name__} import CONNECT_LIKE, NOT_A_FAMILY\n"
    (tmp_path / "wrong_families.py").write_text(module, encoding="utf-8")
    install(name)
    with pytest.raises(ConfigError, match=says) as caught:
        read_dead_letter(message())
    assert "share_group" in caught.value.message
