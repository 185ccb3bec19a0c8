"""min(2^attempt * 2, 300) seconds with equal jitter, for every attempt there can be."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.phoenix.backoff import CAP, retry_delay


def test_the_waits_are_the_designs() -> None:
    assert [retry_delay(n, jitter=1.0) for n in range(1, 10)] == [4, 8, 16, 32, 64, 128, 256, 300, 300]


@given(st.integers(min_value=-5, max_value=10**9), st.floats(min_value=0, max_value=1))
def test_no_attempt_overflows_and_half_of_the_wait_is_certain(attempt: int, jitter: float) -> None:
    longest = retry_delay(attempt, jitter=1.0)
    assert longest / 2 <= retry_delay(attempt, jitter) <= longest <= CAP


def test_a_herd_does_not_return_together() -> None:
    assert len({retry_delay(8) for _ in range(50)}) == 50
