"""Bytes to ASGI and back: the HTTP protocol of the listeners, and the listeners themselves.

uvicorn parses, runs the application and frames its answers. What this package adds is what a
server on the open internet needs and uvicorn leaves out: deadlines, limits, one meaning for every
message, and an end of every connection that neither loses an answer nor waits for ever.
"""
