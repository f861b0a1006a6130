"""The thread that writes, and the loop that does not wait for it."""

import subprocess
import sys
import threading
from pathlib import Path

from reach.observe.writer import BackgroundWriter

ROOT = Path(__file__).resolve().parents[2]


def test_batches_keep_the_order() -> None:
    """What was put first is written first, across batches."""
    got: list[int] = []
    writer: BackgroundWriter[int] = BackgroundWriter(lambda batch, lost: got.extend(batch), name="t")
    for number in range(100):
        writer.put(number)
        if number % 30 == 0:
            assert writer.flush()
    writer.close()
    assert list(range(100)) == got


def test_several_threads_may_put() -> None:
    """Items of several threads all arrive, each thread's in its order."""
    got: list[tuple[int, int]] = []
    writer: BackgroundWriter[tuple[int, int]] = BackgroundWriter(
        lambda batch, lost: got.extend(batch), name="t"
    )

    def put_many(thread: int) -> None:
        for number in range(1_000):
            writer.put((thread, number))

    threads = [threading.Thread(target=put_many, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close()
    assert [list(range(1_000))] * 4 == [
        [number for owner, number in got if owner == thread] for thread in range(4)
    ]


def test_flush_without_items_returns_at_once() -> None:
    """A writer that never got anything has nothing to wait for, and no thread."""
    writer: BackgroundWriter[int] = BackgroundWriter(lambda batch, lost: None, name="t")
    assert writer.flush(0.0)
    writer.close()


def test_flush_gives_up_in_time() -> None:
    """A sink that hangs does not hang whoever waits for it."""
    free = threading.Event()

    def hang(batch: list[int], lost: int) -> None:
        free.wait(10)

    writer: BackgroundWriter[int] = BackgroundWriter(hang, name="t")
    writer.put(1)
    assert not writer.flush(0.05)
    free.set()
    assert writer.flush()
    writer.close()


def test_after_the_end_items_count_as_lost() -> None:
    """A closed writer takes nothing, and says so."""
    writer: BackgroundWriter[int] = BackgroundWriter(lambda batch, lost: None, name="t")
    writer.close()
    writer.close()
    assert (False, 1) == (writer.put(1), writer.lost)


def test_the_end_of_the_interpreter_writes_what_is_left() -> None:
    """A program that ends without closing anything loses nothing."""
    program = (
        "from reach.observe.writer import BackgroundWriter\n"
        "w = BackgroundWriter(lambda batch, lost: print(*batch, flush=True), name='t')\n"
        "w.put('last words')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, cwd=ROOT, check=True
    )
    assert "last words\n" == done.stdout
