"""Style, types and who imports whom: `make lint`, beside the tests and not before them."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_tree_is_clean() -> None:
    done = subprocess.run(
        ["make", "--no-print-directory", "lint"],  # noqa: S607  # wherever make is
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
