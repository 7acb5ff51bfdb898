from __future__ import annotations

from pathlib import Path

from kpipe_platform.jvm.private_files import private_folder, write_private


def test_only_the_owner_reads_a_private_file_and_enters_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    private_folder(folder)
    private_folder(folder)
    path = folder / "server.json"
    # As an earlier version, or a crash in the middle of a write, has left them.
    path.write_text("old", encoding="utf-8")
    path.with_name("server.json.tmp").write_text("half", encoding="utf-8")
    write_private(path, "new")
    assert path.read_text(encoding="utf-8") == "new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [each.name for each in folder.iterdir()] == ["server.json"]
