"""The tutorial of docs/django.md, followed in a new project as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs/django.md"
BLOCK = re.compile(r"<!-- tested: django (\S+) -->\n```\w+\n(.*?)```", re.DOTALL)

MORE = """
import pytest
from photos.models import Photo

@pytest.mark.django_db
def test_shards_have_to_be_named(db):
    with pytest.raises(AssertionError, match="not allowed"):
        Photo.objects.for_key(5).count()
"""


@pytest.mark.long
@pytest.mark.timeout(1200)  # eight commands, of which two start a fleet
def test_an_application_gets_its_first_sharded_model(
    tmp_path: Path, session_directory: Path
) -> None:
    def run(*words: str) -> str:
        environment = os.environ | {"TMPDIR": str(session_directory)}
        done = subprocess.run(
            [sys.executable, *words],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    run("-m", "django", "startproject", "mysite", ".")
    run("manage.py", "startapp", "photos")
    (tmp_path / "migrations").mkdir()
    found = BLOCK.findall(PAGE.read_text())
    for name, text in found:
        if name == "settings.py":
            with (tmp_path / "mysite/settings.py").open("a") as settings:
                settings.write(text)
        elif name != "commands":
            (tmp_path / name).write_text(text)
    (tmp_path / "photos/test_more.py").write_text(MORE)
    commands = [text for name, text in found if name == "commands"]
    said = ""
    for line in "".join(commands).splitlines():
        said += run(*line.removeprefix("$ python ").split())
    assert [one.name for one in (tmp_path / "migrations").iterdir()] == [
        "0001_photos_0001_initial.sql"
    ]
    assert "Ran 2 tests" in said
    assert "2 passed" in said
    assert "no issues" in run("manage.py", "check", "--fail-level", "WARNING")
