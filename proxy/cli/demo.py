"""``bulwark demo``: the whole thing on one machine, in front of the stand-in model server.

With ``--model-only`` the stand-in alone, for a container of its own.
"""

import asyncio
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import httpx
import typer
import uvloop
from prometheus_client import CollectorRegistry

from proxy import app, standin
from proxy.auth import keyedit, keywrite
from proxy.auth.keys import digest, generate, public_id
from proxy.cli.failures import give_up
from proxy.config import ConfigError
from proxy.server import listeners
from proxy.server.listeners import ListenError

_TRIED_PORTS = 20
_QUESTION = "Is anybody there?"
_MODEL_HOST = "127.0.0.1"
_MODEL_PORT = 8000


def demo(
    once: bool = typer.Option(False, "--once", help="Exit after the first chat."),
    model_only: bool = typer.Option(
        False, "--model-only", help="Serve the stand-in model alone, without a proxy or a key."
    ),
    host: str | None = typer.Option(
        None, help="Address of the stand-in alone.", show_default=_MODEL_HOST
    ),
    port: int | None = typer.Option(
        None, help="Port of the stand-in alone.", show_default=str(_MODEL_PORT)
    ),
    uds: str | None = typer.Option(
        None, help="Unix socket of the stand-in alone, in place of address and port."
    ),
) -> None:
    """Start the proxy in front of a stand-in model, send one chat through it, and keep serving."""
    if problems := _mixed_up(once=once, model_only=model_only, tcp=(host, port), uds=uds):
        give_up("not started", problems)
    try:
        if model_only:
            status = uvloop.run(_model(_listener(host, port, uds)))
        else:
            status = uvloop.run(_demo(os.environ, once=once))
    except ConfigError as exc:
        give_up("not started, the configuration is wrong", exc.problems)
    except ListenError as exc:
        give_up("not started", [str(exc)])
    raise typer.Exit(status)


def _mixed_up(
    *, once: bool, model_only: bool, tcp: tuple[str | None, int | None], uds: str | None
) -> list[str]:
    """What of the command line does not go with the rest of it."""
    has_tcp, has_uds = tcp != (None, None), uds is not None
    problems = []
    if model_only and once:
        problems.append("--once is for the chat through the proxy, not for --model-only")
    if not model_only and (has_tcp or has_uds):
        problems.append("--host, --port and --uds are for --model-only")
    if has_tcp and has_uds:
        problems.append("--uds goes in place of --host and --port")
    return problems


def _listener(host: str | None, port: int | None, uds: str | None) -> socket.socket:
    if uds is not None:
        return standin.bind_unix(Path(uds))
    return listeners.bind(
        _MODEL_HOST if host is None else host, _MODEL_PORT if port is None else port, "the stand-in"
    )


async def _model(listener: socket.socket) -> int:
    """The stand-in alone, until SIGTERM or Ctrl-C."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with standin.serving(listener=listener) as url:
        typer.echo(f"The stand-in model serves at {url}, without a key: never expose it.")
        await stop.wait()
    return 0


async def _demo(environ: Mapping[str, str], *, once: bool) -> int:
    key = generate()
    with tempfile.TemporaryDirectory() as folder:
        keys_file = Path(folder) / "keys.toml"
        identity = {"id": public_id(key), "sha256": digest(key.encode()).hex()}
        # Under its own id, as the log has it.
        keywrite.update(keys_file, lambda text: keyedit.append(text, identity), create=True)
        return await _serve(environ, key, keys_file, once=once)


async def _serve(environ: Mapping[str, str], key: str, keys_file: Path, *, once: bool) -> int:
    async with standin.serving() as model_url:
        settings, keys = app.configure(_environment(environ, model_url, keys_file))
        public, admin = app.bind(settings)
        port = public.getsockname()[1]
        bulwark = app.build(
            settings, keys, registry=CollectorRegistry(), log_stream=sys.stderr.buffer
        )
        ready, stop = asyncio.Event(), asyncio.Event()
        serving = asyncio.create_task(
            # Without an event of ours it ends with Ctrl-C.
            bulwark.serve(public, admin, on_ready=ready.set, stop=stop if once else None)
        )
        await ready.wait()
        try:
            answer = await _chat(port, key)
        except (httpx.HTTPError, ValueError, LookupError) as exc:
            typer.echo(f"bulwark: the chat failed: {type(exc).__name__}", err=True)
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            return 1
        typer.echo(_report(port, key, answer, once=once))
        stop.set()
        return await serving


def _environment(environ: Mapping[str, str], model_url: str, keys_file: Path) -> dict[str, str]:
    """The operator's settings, but for the upstream, the keys and ports that are taken."""
    ours = {"PROXY_UPSTREAM_URL": model_url, "PROXY_KEYS_FILE": str(keys_file)}
    replaced = ("PROXY_UPSTREAM_API_KEY", "PROXY_API_KEYS", "PROXY_KEYS_FILE")
    kept = {
        name: value
        for name, value in environ.items()
        if name not in replaced and name.removesuffix("_FILE") not in replaced
    }
    defaults = {
        "PROXY_LOG_FORMAT": "text",
        "PROXY_PORT": str(_free_port(8080)),
        "PROXY_ADMIN_PORT": str(_free_port(9090)),
    }
    return {**defaults, **kept, **ours}


def _free_port(wanted: int) -> int:
    """This port, or the next one that nobody has."""
    for port in range(wanted, wanted + _TRIED_PORTS):
        try:
            listeners.bind("127.0.0.1", port, "").close()
        except ListenError:
            continue
        return port
    return wanted  # taken, as whoever binds it will say


async def _chat(port: int, key: str) -> str:
    """What the model answers, asked through the proxy as any client would."""
    # No environment proxies: they are for the way out, and this does not leave the machine.
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        response = await client.post(
            f"http://127.0.0.1:{port}/v1/chat/completions",
            headers={"Authorization": f"Bearer {key}"},
            json={"model": "any", "messages": [{"role": "user", "content": _QUESTION}]},
        )
    response.raise_for_status()
    answer: str = response.json()["choices"][0]["message"]["content"]
    return answer


def _report(port: int, key: str, answer: str, *, once: bool) -> str:
    url = f"http://127.0.0.1:{port}/v1"
    lines = [
        "",
        "A chat went through the proxy:",
        f"  you    {_QUESTION}",
        f"  model  {answer}",
        "",
        f"  URL    {url}",
        f"  key    {key}   (new, for this run only)",
        "",
        "Try it yourself:",
        "",
        f"  curl -N {url}/chat/completions \\",
        f"    -H 'Authorization: Bearer {key}' -H 'Content-Type: application/json' \\",
        """    -d '{"model":"any","stream":true,"messages":[{"role":"user","content":"hello"}]}'""",
        "",
    ]
    if not once:
        lines += ["Serving until Ctrl-C. One line of log for each request follows.", ""]
    return "\n".join(lines)
