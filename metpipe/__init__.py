"""metpipe: are the bits the same, and does it fit?"""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.1.0"
