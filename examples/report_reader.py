"""Reading a stream: as it comes, with its own clocks, and leaving early.

Serve:  reach run examples.report_writer:agent
Run:    python examples/report_reader.py
"""

import asyncio

import reach


async def main() -> None:
    """Read a report to its end, then one chapter of a long one."""
    clocks = reach.StreamClocks(first_byte_s=2, idle_s=5, max_duration_s=60)
    async with reach.connect() as bus:
        async for part in bus.stream("report.write", {"topic": "harbours"}, clocks=clocks):
            print(part, end="")

        # Leaving early cancels the writer, too.
        async for part in bus.stream("report.write", {"topic": "rivers", "chapters": 1000}):
            print(part, end="")
            break


if __name__ == "__main__":
    asyncio.run(main())
