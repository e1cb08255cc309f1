"""A key file for a test."""

import hashlib
from pathlib import Path

from proxy.auth.keys import generate


def key_file(folder: Path, *terms: str) -> tuple[Path, list[str]]:
    """A file with a fresh key for each of these pieces of TOML; gives the keys too."""
    path, keys = folder / "keys.toml", [generate() for _ in terms]
    path.write_text(
        "\n".join(
            f'[[key]]\nid = "{key[6:14]}"\n'
            f'sha256 = "{hashlib.sha256(key.encode()).hexdigest()}"\n{more}\n'
            for key, more in zip(keys, terms, strict=True)
        )
    )
    path.chmod(0o600)
    return path, keys


def bearer(key: str) -> dict[str, str]:
    """The field that carries it."""
    return {"Authorization": f"Bearer {key}"}
