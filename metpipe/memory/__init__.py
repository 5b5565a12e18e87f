"""Plans every byte of a serve: formulas on integers, counts of an accounting, readers of files."""

from __future__ import annotations
