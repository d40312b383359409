"""A file is replaced at once, or stays as it was."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest

from shardctl.hosts import replacing

if TYPE_CHECKING:
    from pathlib import Path


def test_the_file_has_text_and_mode_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "a.prom"
    replacing.write(path, "one\n", mode=0o644)
    replacing.write(path, "zwölf\n", mode=0o644)
    assert path.read_text(encoding="utf-8") == "zwölf\n"
    assert path.stat().st_mode & 0o777 == 0o644
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["fsync", "fchmod"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_is_broken_off_leaves_the_file_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, error: BaseException
) -> None:
    path = tmp_path / "a.prom"
    path.write_text("before")

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(os, name, fail)
    with pytest.raises(type(error)):
        replacing.write(path, "after", mode=0o644)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_the_unfinished_file_is_none_that_node_exporter_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    real = os.fsync

    def look(number: int) -> None:
        seen.extend(one.name for one in tmp_path.iterdir())
        real(number)

    monkeypatch.setattr(os, "fsync", look)
    replacing.write(tmp_path / f"{'a' * 200}.prom", "x", mode=0o644)
    assert seen[0].startswith(".")
    assert not seen[0].endswith(".prom")


def test_runs_at_once_never_show_half_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.prom"
    texts = [letter * 100_000 for letter in "abcd"]
    replacing.write(path, texts[0], mode=0o644)
    done = threading.Event()

    def write(text: str) -> None:
        for _ in range(10):
            replacing.write(path, text, mode=0o644)

    threads = [threading.Thread(target=write, args=(text,)) for text in texts]
    seen: set[str] = set()

    def read() -> None:
        while not done.is_set():
            seen.add(path.read_text())

    reader = threading.Thread(target=read)
    reader.start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    reader.join()
    assert seen <= {*texts}
    assert list(tmp_path.iterdir()) == [path]
