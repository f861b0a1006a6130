"""The wire: every message that crosses the bus, the codec that turns it into bytes, and the subjects.

Nothing here does I/O. Hot messages (`Envelope`, `Reply`, `Frame`) are slotted dataclasses packed by hand;
the others are frozen pydantic models. Published schemas are generated from these (`reach schema export`).
"""
