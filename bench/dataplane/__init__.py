"""What a request and a streamed event cost, of this proxy and of others, in one run: ``make bench``.

Everybody stands in front of the same mock upstream and is asked by the same clients, both in C
(``wire/``), one after the other, on a core of their own. Nothing here leaves the machine.
"""
