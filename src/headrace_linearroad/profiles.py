"""The two interpretations of the benchmark's rules."""

from __future__ import annotations

from enum import StrEnum

Profile = StrEnum("Profile", ["official", "walmart"])
