"""What this run has printed as JSON: later errors then go only to standard error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class _Printed:
    json: bool = False
    plan: Any = None
    """What is to be printed if the command ends well."""


PRINTED = _Printed()
"""One object per run."""
