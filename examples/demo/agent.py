"""The invoice agent as the demonstration serves it: with room for all of its calls, so that none is refused.

What it does is `examples.invoice_agent`'s; here it only takes more at a time, and the instance that is killed holds a
handful of calls.
"""

from typing import Final

import reach
from examples.invoice_agent import extract

MAX_CONCURRENCY: Final = 64

agent = reach.Agent("invoice-extractor", version="1.0.0", owner="finance-platform")
agent.capability("invoice.extract", idempotent=True, timeout_s=20, max_concurrency=MAX_CONCURRENCY)(extract)
