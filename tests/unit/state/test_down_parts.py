"""Where a migration's down part begins, and what only looks like its line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardctl.state import migrations

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    "mark",
    [
        "-- shardctl: Down",
        "  -- shardctl: down",
        "-- shardctl: down;",
        "-- shardctl: down -- undo",
        "--- shardctl : down",
    ],
)
def test_a_line_that_almost_begins_a_down_part_is_refused(tmp_path: Path, mark: str) -> None:
    text = f"UPDATE photos SET likes = 0;\n\n{mark}\nDELETE FROM photos;\n"
    (tmp_path / "0001_likes.sql").write_text(text)
    with pytest.raises(migrations.MigrationInvalid, match=r"0001_likes\.sql:3: .*down part"):
        migrations.read(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "INSERT INTO notes VALUES ('\n-- shardctl: down\n');\n",
        "DO $$BEGIN\n-- shardctl: down\nEND$$;\n",
        "/*\n-- shardctl: down\n*/ SELECT 1;\n",
    ],
)
def test_what_is_in_a_string_or_a_comment_begins_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "0001_notes.sql").write_text(text)
    assert [(one.text, one.down) for one in migrations.read(tmp_path)] == [(text, None)]
    (tmp_path / "0001_notes.sql").write_text(text + "-- shardctl: down\r\nSELECT 2;\n")
    (one,) = migrations.read(tmp_path)
    assert (one.text, one.down and one.down.strip()) == (text, "SELECT 2;")
