"""A plain `def` runs in a thread, so that it may block.

Serve it:  reach run examples.checksums:agent
Call it:   reach call text.checksum text=hello
           reach call text.checksum text=hello algorithm=md5   (refused, with what it may be)
"""

import hashlib
import time
from typing import Literal

from pydantic import BaseModel

import reach


class Checksum(BaseModel):
    """What the caller gets."""

    algorithm: str
    digest: str


agent = reach.Agent("checksums")


@agent.capability("text.checksum", idempotent=True, max_concurrency=4, timeout_s=5)
def checksum(text: str, algorithm: Literal["sha256", "blake2b"] = "sha256") -> Checksum:
    """Give the checksum of a text."""
    time.sleep(0.1)  # Whatever blocks: a driver without asyncio, a library in C, a disk.
    return Checksum(algorithm=algorithm, digest=hashlib.new(algorithm, text.encode()).hexdigest())


if __name__ == "__main__":
    agent.run()
