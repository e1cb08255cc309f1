"""Counts the instructions of a request and of an event, which do not depend on the machine's mood.

``make bench-instructions`` fails where they have grown beyond what ``budgets.json`` allows.
"""
