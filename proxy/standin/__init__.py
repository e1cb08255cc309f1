"""The stand-in model server of ``bulwark demo``: every route of a real engine, no model.

It answers any model name, repeats what it was asked, streams word by word, calls the first tool that
it is given and reports usage, so that a client can be tried out on a machine without a GPU. It has no
key and no limit of its own: never expose it. Only ``cli.demo`` and the tests import it.
"""

from proxy.standin.server import build
from proxy.standin.serving import bind_unix, serving

__all__ = ["bind_unix", "build", "serving"]
