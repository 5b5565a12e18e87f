"""`python -m metpipe`: the same program as the console script."""

from __future__ import annotations

import signal
import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line. An interrupt while it is still imported has the same exit status."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        from metpipe.app import main as run  # here, not above: it takes most of the start

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
