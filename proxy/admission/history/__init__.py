"""What keys have used by day, kept in a file, so that a restart gives nobody a new day.

``table`` is what is in the database, ``file`` the database itself, ``keeping`` adds to it what requests use, ``seeds`` makes of it what the
books of rates begin with, and ``looking`` reads it for the commands. Only ids of keys are in it, and numbers: no key, no prompt, no address.
"""

from proxy.admission.history.file import HistoryFile
from proxy.admission.history.keeping import History
from proxy.admission.history.looking import Sums, look, sums_by_day, sums_by_key
from proxy.admission.history.seeds import seeds
from proxy.admission.history.table import HistoryError, Kept

__all__ = [
    "History",
    "HistoryError",
    "HistoryFile",
    "Kept",
    "Sums",
    "look",
    "seeds",
    "sums_by_day",
    "sums_by_key",
]
