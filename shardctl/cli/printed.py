"""What this run has printed as JSON: later errors then go only to standard error."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class _Printed:
    json: bool = False


PRINTED = _Printed()
"""One object per run."""
