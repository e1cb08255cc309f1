"""``bulwark``, and ``python -m proxy``."""

import signal
import sys
from types import FrameType
from typing import NoReturn


def main() -> None:
    """Runs the command that the arguments name, and exits; on SIGTERM before that with 143."""
    # Imports take half a second. The kernel drops a signal for which a container's first process has
    # no handler, and whoever sent it, docker stop for one, would wait for its whole grace period.
    signal.signal(signal.SIGTERM, _leave)
    from proxy.cli import main as run_command  # noqa: PLC0415 # see above

    run_command()


def _leave(signum: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + signum)


if __name__ == "__main__":
    main()
