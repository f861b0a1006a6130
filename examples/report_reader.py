"""Reading a stream: as it comes, with its own clocks, and leaving early.

Serve:  reach run examples.report_writer:agent
Run:    python examples/report_reader.py
"""

import asyncio

import reach


async def main() -> None:
    """Read one chapter of a long report, then a short one to its end."""
    clocks = reach.StreamClocks(first_byte_s=2, idle_s=5, max_duration_s=60)
    async with reach.connect() as bus:
        async for part in bus.stream("report.write", {"topic": "rivers", "chapters": 1000}):
            print(part, end="")
            break  # Leaving early cancels the writer, too.

        async for part in bus.stream("report.write", {"topic": "harbours"}, clocks=clocks):
            print(part, end="")


if __name__ == "__main__":
    asyncio.run(main())
