"""Which files are one recording."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.music.duplicates import duplicate_groups
from pipelines.music.fingerprint import fingerprint
from pipelines.music.prints import bit_error_rate, compare, encode_items
from pipelines.music.samples import Sample
from tests.pipelines.conftest import Make


@dataclass
class Row:
    """As a catalogue may hold it."""

    sha256: str
    raw: str


def tune(seed: int, length: int = 400) -> list[int]:
    """Items that change a few bits at a time, as those of sound do."""
    random_ = random.Random(seed)
    items = [random_.getrandbits(32)]
    while len(items) < length:
        items.append(items[-1] ^ random_.getrandbits(32) & random_.getrandbits(32))
    return items


def rough(items: list[int], share: float, seed: int = 9) -> list[int]:
    """With `share` of all bits wrong, in bursts: most of the errors sit in some of the items."""
    random_ = random.Random(seed)
    bad = [random_.random() < 2 * share for _ in items]
    return [item ^ random_.getrandbits(32) if wrong else item for item, wrong in zip(items, bad, strict=True)]


@given(st.integers(0, 1000), st.integers(-150, 150))
def test_alignment_finds_any_offset(seed: int, offset: int) -> None:
    whole = tune(seed, 700)
    one, other = whole[150:550], whole[150 + offset : 550 + offset]
    match = compare(one, other)
    assert (match.ber, match.offset, match.overlap) == (0.0, offset, 400 - abs(offset))
    assert match.same
    assert compare(other, one).offset == -offset


@given(st.lists(st.integers(0, 2**32 - 1), max_size=60), st.lists(st.integers(0, 2**32 - 1), max_size=60))
def test_comparing_is_symmetric_and_never_fails(one: list[int], other: list[int]) -> None:
    there, back = compare(one, other), compare(other, one)
    assert 0 <= there.ber <= 1
    assert there.same == back.same
    assert bit_error_rate(one, other).ber == bit_error_rate(other, one).ber


def test_bit_error_rate_counts_bits() -> None:
    assert bit_error_rate([0b1111, 0], [0, 0]).ber == 4 / 64
    assert bit_error_rate([1, 2, 3], [2, 3], offset=1) == (0.0, 1, 2)
    assert bit_error_rate([1], [1], offset=5).ber == 1.0


def test_rough_copies_are_the_same_and_others_are_not() -> None:
    assert compare(tune(1), rough(tune(1), 0.2)).same
    assert not compare(tune(1), tune(2)).same


def test_an_excerpt_is_no_copy() -> None:
    assert not compare(tune(1, 1000), tune(1, 1000)[300:600]).same


@given(st.randoms(use_true_random=False), st.lists(st.integers(0, 4), min_size=1, max_size=12))
def test_grouping_finds_what_was_copied_in_any_order(shuffle: random.Random, tunes: list[int]) -> None:
    rows = [(f"{place}-{number}", Row(f"{place}", encode_items(tune(number)))) for place, number in enumerate(tunes)]
    expected = sorted(
        sorted(name for name, _ in rows if name.endswith(f"-{number}"))
        for number in set(tunes)
        if tunes.count(number) > 1
    )
    shuffle.shuffle(rows)
    assert duplicate_groups(dict(rows)) == expected


def test_equal_bytes_are_duplicates_without_any_print() -> None:
    rows = {"a": Row("x", ""), "b": Row("x", ""), "c": Row("y", ""), "d": Row("", ""), "e": Row("", "")}
    assert duplicate_groups(rows) == [["a", "b"]]


def test_silences_are_not_one_recording() -> None:
    silence = encode_items([627964279] * 500)
    assert duplicate_groups({"a": Row("1", silence), "b": Row("2", silence)}) == []


def test_real_copies_group_and_other_music_stays_apart(samples: list[Sample], make: Make) -> None:
    source = samples[6].path
    files = {sample.path.name: sample.path for sample in samples}
    files["trimmed.mp3"] = make("trimmed.mp3", "-ss", "3.3", "-i", source, "-t", "22", "-b:a", "96k")
    files["louder.opus"] = make("louder.opus", "-i", source, "-af", "volume=6dB", "-b:a", "48k")
    files["mono.ogg"] = make("mono.ogg", "-i", source, "-ac", "1", "-ar", "22050")
    groups = duplicate_groups({name: fingerprint(path) for name, path in files.items()})
    assert groups == [
        ["04-glass-garden.flac", "08-glass-garden-again.mp3"],
        sorted([source.name, "trimmed.mp3", "louder.opus", "mono.ogg"]),
    ]


@pytest.mark.parametrize("count", [500])
def test_grouping_a_library_costs_milliseconds_a_track(count: int) -> None:
    rows = {f"{n:04}": Row(str(n), encode_items(tune(n, 1500))) for n in range(count)}
    rows["copy"] = Row("copy", encode_items(rough(tune(7, 1500), 0.1)))
    begun = time.process_time()
    assert duplicate_groups(rows) == [["0007", "copy"]]
    assert time.process_time() - begun < 0.02 * count  # usually 1 ms a track
