"""Bulwark: the hardened front door of a self-hosted, OpenAI-compatible inference server."""

__version__ = "0.1.0"
