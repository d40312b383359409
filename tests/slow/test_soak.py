"""Five minutes of the soak: half of them with a seed that is always the same, half with another."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[2]
SECONDS = 150
LONGEST_S = 600
"""It ends unfinished moves, and judges the history, when its time is over."""


@pytest.mark.timeout(LONGEST_S + 60)
@pytest.mark.parametrize("seed", [["--seed", "1971"], []], ids=["always the same", "another"])
def test_nothing_is_broken_by_chance(seed: Sequence[str], tmp_path: Path) -> None:
    """The page names the seed, by which `make soak` repeats the schedule."""
    words = ["--seconds", str(SECONDS), "--directory", str(tmp_path), *seed]
    soak = subprocess.Popen(
        [sys.executable, "-m", "tests.soak", *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        page, _ = soak.communicate(timeout=LONGEST_S)
    finally:
        if soak.poll() is None:
            os.killpg(soak.pid, signal.SIGTERM)
            soak.wait()
    assert soak.returncode == 0, page
    assert "No violation" in page
