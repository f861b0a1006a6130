"""An answer in parts: an async generator is a stream.

Serve it:  reach run examples.report_writer:agent
Read it:   reach stream report.write topic=harbours
           python examples/report_reader.py
"""

import asyncio
from collections.abc import AsyncIterator

import reach

agent = reach.Agent("report-writer")


@agent.capability("report.write")
async def write(topic: str, chapters: int = 3) -> AsyncIterator[str]:
    """Write a report, chapter by chapter."""
    for number in range(1, chapters + 1):
        await asyncio.sleep(0.02)  # What a model does for its tokens.
        yield f"Chapter {number}: more about {topic}.\n"


if __name__ == "__main__":
    agent.run()
