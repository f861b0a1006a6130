"""How an instance finds itself, and what it says of it (LIFE-5)."""

import pytest

from reach.errors import ConfigError
from reach.policy.load import LIMITS
from reach.runtime.condition import Condition
from reach.runtime.fitness import LOOK_S, RSS_LIMIT, Fitness, limits_of


def test_the_limit_of_memory_is_a_setting() -> None:
    """LIFE-5: megabytes; without it there is none."""
    assert LIMITS == limits_of({})
    assert 512_500_000 == limits_of({RSS_LIMIT: "512.5"}).rss_bytes


@pytest.mark.parametrize("text", ["much", "0", "-1", "nan", "inf"])
def test_what_is_no_number_is_refused(text: str) -> None:
    """Errors teach."""
    with pytest.raises(ConfigError, match="such as 512"):
        limits_of({RSS_LIMIT: text})


def test_what_an_agent_says_is_told_once() -> None:
    """LIFE-5: whoever hears is called at each change, and no more after it left."""
    condition = Condition()
    heard: list[tuple[bool, str]] = []

    def hear() -> None:
        heard.append((condition.ready, condition.health))

    condition.on_change(hear)
    condition.ready = condition.ready = False
    condition.degraded = True
    condition.off_change(hear)
    condition.ready = True
    assert [(False, "healthy"), (False, "degraded")] == heard


def test_a_change_of_word_moves_at_once_and_a_load_after_it_was_measured() -> None:
    """LIFE-1, LIFE-5: heartbeats go out of turn for what is another matter than before."""
    waiting = 0
    condition = Condition()
    fitness = Fitness(condition, queue=lambda: waiting)
    assert fitness.moved(measured_s=0)
    assert fitness.look().takes_calls
    assert not fitness.moved(measured_s=LOOK_S)
    condition.degraded = True
    assert fitness.moved(measured_s=0)
    assert "degraded" == fitness.look().health
    waiting = 101
    assert (False, True) == (fitness.moved(measured_s=LOOK_S / 2), fitness.moved(measured_s=LOOK_S))
    assert "101 requests wait" == fitness.look().busy
    waiting = 51
    assert not fitness.moved(measured_s=LOOK_S)
    waiting = 50
    assert fitness.moved(measured_s=LOOK_S)
    assert fitness.look().takes_calls
