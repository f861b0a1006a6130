"""What `reach doctor` looks at, from this machine to the far agent: one file a stretch of the way."""

from __future__ import annotations
