"""Who is measured, and how each is started: a table of recipes.

Each checks the key where it can, passes everything to one upstream, buffers no answer, and has one
process or thread that works. Whoever is not installed is left out, and named.
"""

import hashlib
import os
import shutil
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from getpass import getuser
from pathlib import Path

from bench.dataplane import programs, traffic

_REFUSAL = '{"error":{"message":"Invalid API key","code":"invalid_api_key"}}'
_PLENTY = 65_536


@dataclass(frozen=True, slots=True)
class Place:
    """Where one runs.

    Attributes:
        folder: Its own, empty at the start.
    """

    port: int
    upstream_port: int
    folder: Path

    def file(self, name: str, text: str) -> str:
        """Writes a file that only its owner may read; gives its path."""
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        path.chmod(0o600)
        return str(path)


@dataclass(frozen=True, slots=True)
class Start:
    """What to run."""

    command: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Subject:
    """One of those that are measured.

    Attributes:
        name: For ``--only`` and in what is stored.
        title: In the table.
        start: What to run in a place; None for the upstream itself, with nothing in front.
        program: What has to be installed; empty where that is this project.
        headers: What its clients send besides the key, given the port of the upstream.
    """

    name: str
    title: str
    start: Callable[[Place], Start] | None
    program: str = ""
    headers: Callable[[int], Sequence[str]] = lambda _: ()

    @property
    def missing(self) -> bool:
        """Whether what it needs is not installed."""
        return bool(self.program) and find(self.program) is None


def find(program: str) -> str | None:
    """Where a program is: in the PATH or where ``bench/install-peers`` puts it."""
    peers = programs.cache() / "peers"
    places = [*sorted(peers.glob("*/bin")), peers / "portkey" / "node_modules"]
    for path in (folder / program for folder in places):
        if path.exists():
            return str(path)
    return shutil.which(program) or shutil.which(program, path="/usr/sbin:/usr/local/sbin")


def free_port() -> int:
    """A port that nobody has at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _bulwark(place: Place, **settings: str) -> Start:
    """With all that costs something: a key of a file with limits of every kind, places, the budget."""
    key_id = traffic.KEY.split("-")[2]
    keys = place.file(
        "keys.toml",
        f'[[key]]\nid = "{key_id}"\nname = "bench"\n'
        f'sha256 = "{hashlib.sha256(traffic.KEY.encode()).hexdigest()}"\n'
        "requests_per_minute = 1000000\ntokens_per_minute = 10000000000\n"
        f"tokens_per_day = 10000000000\nconcurrency = {_PLENTY}\n",
    )
    env = {
        "PROXY_PORT": str(place.port),
        "PROXY_ADMIN_PORT": "0",
        "PROXY_UPSTREAM_URL": f"http://127.0.0.1:{place.upstream_port}",
        "PROXY_KEYS_FILE": keys,
        # All clients are one here, and none is to be refused.
        "PROXY_MAX_INFLIGHT": str(_PLENTY),
        "PROXY_MAX_CONNECTIONS_PER_ADDRESS": "0",
        "PROXY_MAX_BUFFERED_BYTES": str(1 << 30),
        **{f"PROXY_{name.upper()}": value for name, value in settings.items()},
    }
    return Start([sys.executable, "-m", "proxy", "serve"], env)


def _plain(place: Place) -> Start:
    return _bulwark(place, write_through="false")


def _obvious(place: Place) -> Start:
    module = "bench.dataplane.obvious"
    ports = (str(place.port), str(place.upstream_port))
    return Start([sys.executable, "-m", module, *ports, traffic.KEY])


def _nginx(place: Place) -> Start:
    folder = place.folder
    config = f"""
worker_processes 1; worker_rlimit_nofile 16384; daemon off; pid {folder}/pid; error_log stderr crit;
{f"user {getuser()};" if os.geteuid() == 0 else ""}
events {{ worker_connections 8192; }}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  map_hash_bucket_size 256;
  map $http_authorization $known {{ default 0; "Bearer {traffic.KEY}" 1; }}
  upstream engine {{ server 127.0.0.1:{place.upstream_port}; keepalive 256; }}
  server {{
    listen 127.0.0.1:{place.port}; client_max_body_size 64m; keepalive_requests 100000000;
    location / {{
      default_type application/json;
      if ($known = 0) {{ return 401 '{_REFUSAL}'; }}
      proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; proxy_read_timeout 3600s; proxy_next_upstream off;
    }}
  }}
}}
"""
    return Start([_found("nginx"), "-p", str(folder), "-c", place.file("nginx.conf", config)])


def _haproxy(place: Place) -> Start:
    config = f"""
global
  maxconn 8192
  nbthread 1
defaults
  mode http
  timeout connect 5s
  timeout client 3600s
  timeout server 3600s
  option http-no-delay
frontend clients
  bind 127.0.0.1:{place.port}
  acl known req.hdr(authorization) -m str "Bearer {traffic.KEY}"
  http-request return status 401 content-type application/json string '{_REFUSAL}' unless known
  default_backend engine
backend engine
  option abortonclose
  http-reuse always
  server engine 127.0.0.1:{place.upstream_port} maxconn 8192
"""
    return Start([_found("haproxy"), "-W", "-db", "-f", place.file("haproxy.cfg", config)])


def _caddy(place: Place) -> Start:
    config = f"""
{{
	admin off
	auto_https off
}}
http://127.0.0.1:{place.port} {{
	bind 127.0.0.1
	@unknown not header Authorization "Bearer {traffic.KEY}"
	handle @unknown {{
		respond `{_REFUSAL}` 401
	}}
	handle {{
		reverse_proxy 127.0.0.1:{place.upstream_port} {{
			flush_interval -1
			transport http {{
				keepalive_idle_conns_per_host 256
			}}
		}}
	}}
}}
"""
    path = place.file("Caddyfile", config)
    home = {"XDG_DATA_HOME": str(place.folder), "XDG_CONFIG_HOME": str(place.folder)}
    return Start([_found("caddy"), "run", "--adapter", "caddyfile", "--config", path], home)


def _vllm_router(place: Place) -> Start:
    """Its key is for the engine: it asks none of its clients."""
    command = [_found("vllm-router"), "--host", "127.0.0.1", "--port", str(place.port)]
    command += ["--worker-urls", f"http://127.0.0.1:{place.upstream_port}"]
    command += ["--policy", "round_robin", "--disable-retries", "--log-level", "warning"]
    command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())]
    return Start(command)


def _litellm(place: Place) -> Start:
    config = f"""
model_list:
  - model_name: m
    litellm_params:
      model: hosted_vllm/m
      api_base: http://127.0.0.1:{place.upstream_port}/v1
      api_key: none
litellm_settings:
  telemetry: false
  num_retries: 0
  request_timeout: 600
general_settings:
  master_key: {traffic.KEY}
"""
    command = [_found("litellm"), "--config", place.file("litellm.yaml", config)]
    command += ["--host", "127.0.0.1", "--port", str(place.port), "--num_workers", "1"]
    env = {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_TELEMETRY": "False",
        "LITELLM_LOG": "ERROR",
        "DISABLE_ADMIN_UI": "True",
        "NO_DOCS": "True",
    }
    return Start(command, env)


# It has no option for its address, and would listen on all of them.
_ON_LOOPBACK = """
import net from 'node:net';
const listen = net.Server.prototype.listen;
net.Server.prototype.listen = function (first, ...rest) {
  const port = typeof first === 'object' && first !== null ? first.port : first;
  const heard = rest.filter((one) => typeof one === 'function');
  return listen.call(this, { port: Number(port), host: '127.0.0.1' }, ...heard);
};
"""


def _portkey(place: Place) -> Start:
    """It asks for no key of its own; where a request goes is said by its headers."""
    script = Path(_found("@portkey-ai/gateway")) / "build" / "start-server.js"
    loopback = place.file("loopback.mjs", _ON_LOOPBACK)
    command = [
        _found("node"),
        "--import",
        loopback,
        str(script),
        f"--port={place.port}",
        "--headless",
    ]
    env = {"NODE_ENV": "production", "TRUSTED_CUSTOM_HOSTS": "127.0.0.1,localhost"}
    return Start(command, env)


def _portkey_headers(upstream_port: int) -> Sequence[str]:
    return (
        "x-portkey-provider: openai",
        f"x-portkey-custom-host: http://127.0.0.1:{upstream_port}/v1",
    )


def _found(program: str) -> str:
    path = find(program)
    if path is None:
        raise FileNotFoundError(program)
    return path


SUBJECTS = (
    Subject("direct", "nothing in front", None),
    Subject("bulwark", "Bulwark", _bulwark),
    Subject("bulwark-plain", "Bulwark, no write-through", _plain),
    Subject("obvious", "FastAPI + httpx, obvious", _obvious),
    Subject("nginx", "nginx", _nginx, "nginx"),
    Subject("haproxy", "HAProxy", _haproxy, "haproxy"),
    Subject("caddy", "Caddy", _caddy, "caddy"),
    Subject("vllm-router", "vllm-router (Rust)", _vllm_router, "vllm-router"),
    Subject("litellm", "LiteLLM", _litellm, "litellm"),
    Subject("portkey", "Portkey", _portkey, "@portkey-ai/gateway", headers=_portkey_headers),
)
