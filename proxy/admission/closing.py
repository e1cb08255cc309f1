"""For how long claims may keep others out: so many seconds in a row, and then as many not. Pure.

Whose claim it is makes no difference: keys that took turns in claiming would keep everybody else out
for as long as they liked.
"""


class Closing:
    """Counts the seconds in which somebody was kept out, and those in which nobody was.

    Args:
        seconds: How many of the first there may be in a row. What was used up comes back as slowly.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._spent = 0.0
        self._at = 0.0
        self._closed = False
        self._rests = False

    @property
    def until(self) -> float | None:
        """When it will be open at the latest; None while it is."""
        return self._at + self._seconds - self._spent if self._closed else None

    def closes(self, wanted: bool, now: float) -> bool:
        """Whether others may be kept out from now on; to be asked whenever that is to change.

        Args:
            wanted: Whether somebody has a claim.
            now: The time.
        """
        passed, self._at = now - self._at, now
        self._spent = max(0.0, self._spent + (passed if self._closed else -passed))
        if self._spent >= self._seconds:
            self._spent = self._seconds
            self._rests = True
        elif not self._spent:
            self._rests = False
        self._closed = wanted and not self._rests
        return self._closed
