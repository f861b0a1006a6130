"""An agent in ten lines.

Serve it:  reach run examples.greeter:agent
Call it:   reach call greet.hello name=Ada
"""

import reach

agent = reach.Agent("greeter", version="1.0.0")


@agent.capability("greet.hello", idempotent=True)
async def hello(name: str, times: int = 1) -> str:
    """Greet somebody by name."""
    return " ".join([f"Hello, {name}!"] * times)


if __name__ == "__main__":
    agent.run()
