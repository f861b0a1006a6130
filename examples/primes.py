"""Computing for long: worker processes, so that neither the loop nor the other calls wait for it.

Serve it:  reach run examples.primes:agent
Call it:   reach call primes.count below:=100000
"""

import reach

agent = reach.Agent("primes")


# A worker imports this module and calls the function: it takes no context, and only parameters cross.
# A call that passes its deadline ends its worker, and nobody else's.
@agent.capability("primes.count", idempotent=True, executor="process", max_concurrency=2, timeout_s=20)
def count(below: int) -> int:
    """Count the primes below a number."""
    sieve = bytearray([1]) * max(below, 2)
    sieve[0:2] = b"\0\0"
    for number in range(2, int(below**0.5) + 1):
        if sieve[number]:
            sieve[number * number :: number] = bytes(len(range(number * number, len(sieve), number)))
    return sum(sieve)


if __name__ == "__main__":
    agent.run()
