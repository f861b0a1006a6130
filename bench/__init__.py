"""The benchmarks, and what Reach is measured against: `make bench` runs `python -m bench`.

Every contender has one process that calls and one that answers, over the same server; an orchestrator lets
them work in turns, so that a busy machine slows all of them alike. The ratio is the result, not the rate.
"""
