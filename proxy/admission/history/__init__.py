"""What keys have used by day, kept in a file, so that a restart gives nobody a new day.

``file`` is the database, ``keeping`` adds to it what requests use, and ``seeds`` makes of it what the
books of rates begin with. Only ids of keys are in it, and numbers: no key, no prompt, no address.
"""

from proxy.admission.history.file import HistoryError, HistoryFile, Kept
from proxy.admission.history.keeping import History
from proxy.admission.history.seeds import seeds

__all__ = ["History", "HistoryError", "HistoryFile", "Kept", "seeds"]
