"""How threads divide the tiles of a scan."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from m2dr.index.exact.scan import in_threads


def squares(count: int, threads: int, delay: float = 0.0) -> tuple[list[int], list[int]]:
    """Numbers that were yielded, and the squares that were computed."""
    found: list[int] = []

    def work(number: int) -> None:
        time.sleep(delay * (number % 3))
        found.append(number**2)

    return list(in_threads(work, range(count), threads)), sorted(found)


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("count", [0, 1, 3, 40])
def test_every_item_is_worked_on_once_and_yielded_in_order(count: int, threads: int) -> None:
    told, found = squares(count, threads, delay=0.001)

    assert told == list(range(count))
    assert found == [number**2 for number in range(count)]


def test_no_more_items_are_read_than_threads_soon_need() -> None:
    read: list[int] = []
    items = (read.append(number) or number for number in range(1000))
    working = in_threads(lambda _: None, items, 2)

    next(working)

    assert len(read) <= 6
    working.close()


def test_searches_at_the_same_time_do_not_wait_for_one_another() -> None:
    with ThreadPoolExecutor(6) as pool:
        running = [pool.submit(squares, 20, 3, 0.001) for _ in range(6)]

        found = [future.result(timeout=60) for future in running]

    assert found == [(list(range(20)), [number**2 for number in range(20)])] * 6


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("who", ["items", "work"])
def test_an_error_ends_it_for_all_and_the_next_call_works(who: str, threads: int) -> None:
    def items() -> Iterator[int]:
        yield from range(5)
        if who == "items":
            raise ValueError("odd items")
        yield from range(100)

    def work(item: int) -> None:
        if who == "work" and item == 4:
            raise ValueError("odd work")

    with pytest.raises(ValueError, match=f"odd {who}"):
        list(in_threads(work, items(), threads))

    assert squares(5, threads)[0] == list(range(5))


def test_one_who_stops_listening_stops_the_work() -> None:
    done: list[int] = []
    listening = in_threads(done.append, iter(int, 1), 2)

    next(listening)
    listening.close()

    after = len(done)
    time.sleep(0.05)
    assert len(done) == after


def test_threads_call_torch_with_one_thread_and_everyone_else_with_as_many_as_before() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        inside: list[int] = []
        list(in_threads(lambda _: inside.append(torch.get_num_threads()), range(6), 2))
        fresh: list[int] = []
        thread = threading.Thread(target=lambda: fresh.append(torch.get_num_threads()))
        thread.start()
        thread.join()

        assert inside == [1] * 6
        assert (torch.get_num_threads(), fresh) == (4, [4])
    finally:
        torch.set_num_threads(before)
