"""`python -m metpipe`: the same program as the console script."""

from __future__ import annotations

from metpipe.app import main

if __name__ == "__main__":
    main()
