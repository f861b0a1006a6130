"""Random numbers of our own: what a program seeds is its own, and ours stay apart in all its processes."""

import random
import re
from pathlib import Path

from reach import chance

ROOT = Path(__file__).resolve().parents[1]
SHARED = re.compile(r"^\s*(from random import (?!Random\b)|import random\b)", re.MULTILINE)


def test_a_seed_of_the_program_is_not_ours() -> None:
    """RETRY-4: callers that all seed alike are kept apart by jitter all the same."""
    drawn = []
    for _ in range(2):
        random.seed(17)
        drawn.append([chance.random() for _ in range(4)])
    assert drawn[0] != drawn[1]


def test_what_the_program_seeded_stays_repeatable() -> None:
    """Nothing of ours draws from the shared generator."""
    random.seed(17)
    expected = random.random()
    random.seed(17)
    chance.random()
    chance.uniform(0, 1)
    assert expected == random.random()


def test_nobody_draws_from_the_shared_generator() -> None:
    """Each module takes its numbers from `reach.chance`."""
    files = [*(ROOT / "reach").rglob("*.py"), *(ROOT / "actors").rglob("*.py")]
    assert [] == [str(path) for path in files if SHARED.search(path.read_text(encoding="utf-8"))]
