"""The composition root: from an environment to a server, put together in this one place.

``configure`` reads what the operator decided, ``build`` puts the objects together (to see what a
request passes, and in which order, read ``chain``), ``Bulwark`` serves them. Nothing else builds
anything.
"""

import gc
import sys

import uvloop
from prometheus_client import CollectorRegistry, disable_created_metrics

from proxy.app.build import build
from proxy.app.clocks import Clocks
from proxy.app.configure import configure, key_store
from proxy.app.exposure import exposed
from proxy.app.history import FORGETFUL, is_forgetful, usage_problems
from proxy.app.server import Bulwark, bind
from proxy.auth.keys import KeyStore
from proxy.config import Settings

__all__ = [
    "FORGETFUL",
    "Bulwark",
    "Clocks",
    "bind",
    "build",
    "configure",
    "exposed",
    "is_forgetful",
    "key_store",
    "run",
    "usage_problems",
]


def run(settings: Settings, keys: KeyStore) -> int:
    """Serves in this process until it is told to stop, and gives its exit status.

    Raises:
        ListenError: A port is not to be had.
        ConfigError: The file of what keys have used cannot be used.
    """
    public, admin_socket = bind(settings)
    # A switch of the whole process, so only here, where the process is ours: a second series beside
    # each counter, of when it began, that nobody asks for.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    bulwark = build(settings, keys, registry=CollectorRegistry(), log_stream=sys.stdout.buffer)
    # Another one: none of what is here now goes away, and a collection that looks through it holds the
    # loop for 40 ms, in the middle of everybody's streams.
    gc.collect()
    gc.freeze()
    return uvloop.run(bulwark.serve(public, admin_socket))
