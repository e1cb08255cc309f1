"""The layers that a request passes before it is forwarded: pure ASGI, one file each.

``app`` composes them, outermost first: access, cors, errors, endpoint, auth, admission. They talk through the
``RequestContext`` that access attaches, and through the errors that they raise, nothing else.
"""
