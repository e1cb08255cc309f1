"""What holds for every test."""

import os

_PROXIES = ("http_proxy", "https_proxy", "all_proxy")


def pytest_configure() -> None:
    """Every server of a test is on this machine, whatever proxy the environment names.

    Clients would ask that one for 127.0.0.1: nine kinds of tests failed where HTTP_PROXY was set. What
    tests are about proxies sets its own.
    """
    for name in _PROXIES:
        os.environ.pop(name, None)
        os.environ.pop(name.upper(), None)
