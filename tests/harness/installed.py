"""Where everything is that was installed for the tests: outside of the checkout."""

import os
from pathlib import Path


def folder(part: str) -> Path:
    """``clients`` or ``engines``, as their installers choose it."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("BULWARK_CACHE") or Path(base) / "bulwark") / part
