"""Settings: every knob, read once at start from ``PROXY_*`` variables, or refused with every reason.

Only ``app`` and ``cli`` import this package; everything below them receives plain values. What it
must never do: let a misspelt name silently leave a default, or repeat a value in a message.
"""

from proxy.config.environment import ConfigError, load
from proxy.config.settings import Settings

__all__ = ["ConfigError", "Settings", "load"]
