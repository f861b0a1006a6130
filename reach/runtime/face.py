"""Where `Kind` was; `reach.registry.face` is its home, below the callers that read signatures too."""

from __future__ import annotations

from reach.registry.face import Kind as Kind  # noqa: PLC0414 - handed on to whoever still looks here
