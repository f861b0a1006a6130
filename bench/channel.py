"""The child's end of the channel to the orchestrator: orders come as JSON lines on stdin, answers go to stdout."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Any


async def orders() -> AsyncIterator[dict[str, Any]]:
    """Yield orders until stdin ends, which it does when the orchestrator closes it or is gone."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    try:
        while line := await reader.readline():
            yield json.loads(line)
    finally:
        transport.close()


def tell(message: dict[str, Any]) -> None:
    """Answer the last order."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()
