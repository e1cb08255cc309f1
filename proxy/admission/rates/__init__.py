"""What keys were given over time and at once, and how much of it they have left.

``window`` is the arithmetic, ``memory`` and ``shared`` keep the books here and in Redis, ``guarded``
sees to it that nobody waits for Redis for long, and ``limits`` is what requests meet.
"""

from proxy.admission.rates.limits import Grant, RateLimits, build

__all__ = ["Grant", "RateLimits", "build"]
