"""Calls that nobody has answered or accepted in good time."""

import asyncio

from reach.bus.keys import Role
from reach.bus.mux import Mux
from reach.wire import codec


async def test_silence_is_told_once_and_an_answered_call_never(system) -> None:
    """Design section 4: a call without any frame is a suspicion; an answered or accepted one is not."""
    told: asyncio.Queue[dict] = asyncio.Queue()
    async with (
        system.connection(Role.PLATFORM) as platform,
        system.connection(Role.AGENT) as agent,
        system.connection() as caller,
    ):
        platform.subscribe("reach.suspect.>", lambda d: told.put_nowait(codec.unpack(d.data)))

        def answer(delivery) -> None:
            match delivery.subject:
                case "cap.sus.answers":
                    agent.publish(delivery.reply, codec.pack({"ok": True, "data": None}))
                case "cap.sus.accepts":
                    body = {"instance": "x-abcdefgh", "generation": 1}
                    frame = {"stream_id": "m", "seq": 0, "accepted": body}
                    agent.publish(delivery.reply, codec.pack(frame))

        agent.subscribe("cap.sus.*", answer, queue="reach")
        await agent.flush()
        await platform.flush()
        mux = Mux(caller)
        now = asyncio.get_running_loop().time()
        for name in ("answers", "accepts", "silent", "silent"):
            pending = mux.open(name, f"sus.{name}", f"cap.sus.{name}", now=now, deadline=now + 30)
            mux.send(pending, b"{}")
        assert (await asyncio.wait_for(told.get(), 5))["capability"] == "sus.silent"
        # The second silent call was sent in the same moment: at most two suspicions a second of one subject.
        await caller.flush()
        await platform.flush()
        assert told.empty()
        assert mux.suspicions.told == 1
        mux.close()
