import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from m2dr.index.exact.sharing import SLOTS, shared


def squares(count: int, readers: int, delay: float = 0.0) -> tuple[list[int], list[list[int]]]:
    """What was told of `count` numbers, and their squares as every reader saw them."""
    slots, seen = [0] * SLOTS, [[] for _ in range(readers)]

    def fill(slot: int, number: int) -> None:
        slots[slot] = number**2

    def read(slot: int, reader: int) -> None:
        time.sleep(delay * reader)
        seen[reader].append(slots[slot])

    return list(shared(range(count), fill, read, readers)), seen


@pytest.mark.parametrize("readers", [1, 2, 5])
@pytest.mark.parametrize("count", [0, 1, SLOTS, 40])
def test_every_reader_reads_every_thing_in_order(count: int, readers: int) -> None:
    told, seen = squares(count, readers)

    assert told == list(range(count))
    assert seen == [[number**2 for number in range(count)]] * readers


def test_no_slot_is_filled_anew_before_the_slowest_has_read_it() -> None:
    told, seen = squares(20, readers=3, delay=0.002)

    assert seen == [[number**2 for number in told]] * 3


def test_searches_at_the_same_time_do_not_wait_for_one_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    submit = ThreadPoolExecutor.submit

    def slowly(pool: ThreadPoolExecutor, task: Callable[..., None], *arguments: int) -> object:
        started = submit(pool, task, *arguments)
        time.sleep(0.002)  # for another search to begin in between
        return started

    with ThreadPoolExecutor(6) as pool:
        pool.map(abs, range(6))
        monkeypatch.setattr(ThreadPoolExecutor, "submit", slowly)
        results = list(pool.map(lambda _: squares(30, readers=2), range(24), timeout=60))

    assert all(seen == [[n**2 for n in range(30)]] * 2 for _, seen in results)


@pytest.mark.parametrize("readers", [1, 3])
@pytest.mark.parametrize("who", ["things", "fill", "read"])
def test_an_error_ends_it_for_all_and_the_next_call_works(who: str, readers: int) -> None:
    def things() -> Iterator[int]:
        yield from range(5)
        if who == "things":
            raise ValueError("odd things")
        yield from range(100)

    def fill(_: int, thing: int) -> None:
        if who == "fill" and thing == 4:
            raise ValueError("odd fill")

    def read(_: int, reader: int) -> None:
        if who == "read" and reader == readers - 1:
            raise ValueError("odd read")

    with pytest.raises(ValueError, match=f"odd {who}"):
        list(shared(things(), fill, read, readers))

    assert squares(5, readers)[0] == list(range(5))


def test_one_who_stops_listening_stops_the_work() -> None:
    filled: list[int] = []
    listening = shared(iter(int, 1), lambda slot, _: filled.append(slot), lambda *_: None, 2)

    next(listening)
    listening.close()

    after = len(filled)
    time.sleep(0.05)
    assert len(filled) == after


def test_readers_call_torch_with_one_thread_and_everyone_else_with_as_many_as_before() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        inside: list[tuple[int, bool]] = []

        def read(_slot: int, _reader: int) -> None:
            inside.append((torch.get_num_threads(), torch.is_inference_mode_enabled()))

        list(shared(range(3), lambda *_: None, read, 2))
        fresh: list[int] = []
        thread = threading.Thread(target=lambda: fresh.append(torch.get_num_threads()))
        thread.start()
        thread.join()

        assert inside == [(1, True)] * 6
        assert (torch.get_num_threads(), fresh) == (4, [4])
    finally:
        torch.set_num_threads(before)
