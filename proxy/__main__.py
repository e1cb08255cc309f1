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
    if "serve" in sys.argv[1:]:
        # To a server it says that its files have changed. Until it listens it is still to read them, or
        # its watch will see; by default the signal would end it, without a word.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    from proxy.cli import main as run_command  # noqa: PLC0415 # see above

    run_command()


def _leave(signum: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + signum)


if __name__ == "__main__":
    main()
