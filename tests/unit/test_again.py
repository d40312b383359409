"""A test that fails among others is run once more, alone; a proof is not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FAILS_AT_FIRST = """
import pathlib, pytest

def fails_at_first(name):
    seen = pathlib.Path(name)
    if not seen.exists():
        seen.touch()
        raise AssertionError("for the first time")
"""
BUSY = "\ndef test_busy(): fails_at_first('busy')\n"
PROOF = "\n@pytest.mark.proof\ndef test_proof(): fails_at_first('proof')\n"
REFUSED = """
def test_refused():
    from tests.fixtures.moves import proof
    try:
        fails_at_first("refused")
    except AssertionError:
        proof.assert_agreed(None, 1)
"""
WRONG = "\ndef test_wrong(): assert 1 == 2\n"
MANY = "\n@pytest.mark.parametrize('n', range(6))\ndef test_many(n): fails_at_first(f'many{n}')\n"


@pytest.mark.parametrize(
    ("tests", "code", "last", "flaky"),
    [
        (BUSY, 0, "1 flaky", ["FLAKY test_them.py::test_busy"]),
        (BUSY + WRONG, 1, "1 failed, 1 flaky", ["FLAKY test_them.py::test_busy"]),
        (BUSY + PROOF, 1, "2 failed", []),
        (BUSY + REFUSED, 1, "2 failed", []),
        (MANY, 1, "6 failed", []),
    ],
    ids=["green", "one is wrong", "marked", "refused by a proof", "too many"],
)
def test_a_run(tmp_path: Path, tests: str, code: int, last: str, flaky: list[str]) -> None:
    (tmp_path / "test_them.py").write_text(FAILS_AT_FIRST + tests)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = proof\n")
    plugin = ["-p", "tests.fixtures.again", "-p", "xdist.plugin", "--again", "-n", str(len(flaky))]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *plugin, "test_them.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert done.returncode == code, done.stdout
    assert last in lines[-1]
    assert [line for line in lines if line.startswith("FLAKY")] == flaky
