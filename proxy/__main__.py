"""``python -m proxy`` is ``bulwark``."""

from proxy.cli import main

if __name__ == "__main__":
    main()
