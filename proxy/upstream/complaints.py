"""What an engine's error says, whoever wrote the engine. Pure."""

import json

import jiter


def told(body: bytes) -> dict[str, object] | None:
    """The error object in an upstream's answer, with a message; None where it says nothing.

    Some send a bare string in its place, and SGLang sends it without the envelope. FastAPI, which most
    are made of, has ``detail``: a sentence, or (422) a list of what it does not like.
    """
    try:
        answer = jiter.from_json(body, allow_inf_nan=False)
        # 1e999 can be read, as infinity, but not be written again.
        json.dumps(answer, allow_nan=False)
    except ValueError:
        return None
    if not isinstance(answer, dict):
        return None
    error = answer.get("error", answer)
    if error is answer and "message" not in answer:
        error = answer.get("detail")
        if isinstance(error, list) and error:
            error = json.dumps(error, ensure_ascii=False)
    if isinstance(error, str):
        error = {"message": error}
    message = error.get("message") if isinstance(error, dict) else None
    return error if message and isinstance(message, str) else None
