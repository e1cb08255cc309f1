"""Has a chat streamed and says when each piece of it came: run inside a namespace.

A program of its own, with nothing but the standard library::

    python3 -I -S chat.py '{"host": "127.0.0.1", "port": 8080, "key": "…", "model": "any",
                               "message": "count to 50"}'

It prints one JSON object a line: ``{"status": 200}``, then ``{"ms": 12.5, "text": "…"}`` for each piece as it
arrives, counted from the request, and at the end ``{"whole": true}``, or false where the answer was cut off.
"""

import http.client
import json
import sys
import time
from typing import Any


def say(**line: Any) -> None:
    """One line of output, at once."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def main() -> None:
    """One chat."""
    asked = json.loads(sys.argv[1])
    connection = http.client.HTTPConnection(asked["host"], asked["port"], timeout=30)
    message = {"role": "user", "content": asked["message"]}
    body = json.dumps({"model": asked["model"], "stream": True, "messages": [message]})
    fields = {"Authorization": f"Bearer {asked['key']}", "Content-Type": "application/json"}
    start = time.monotonic()
    connection.request("POST", "/v1/chat/completions", body, fields)
    response = connection.getresponse()
    say(status=response.status)
    try:
        while piece := response.read1():
            say(ms=round((time.monotonic() - start) * 1000, 1), text=piece.decode())
        say(whole=True)
    except (http.client.HTTPException, OSError) as exc:
        say(whole=False, because=repr(exc))


if __name__ == "__main__":
    main()
