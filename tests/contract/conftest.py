"""The real thing, in process: see `tests.harness.fixtures`."""

from tests.harness.fixtures import ending, proxy

__all__ = ["ending", "proxy"]
