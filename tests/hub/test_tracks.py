from __future__ import annotations

import base64
import os
import random
import struct
from pathlib import Path

import pytest

from agent.hub.catalogue import Catalogue, TrackFilter
from agent.hub.file_tasks import ANALYSIS, FINGERPRINT, METADATA
from agent.hub.tracks import BadFilter, parse_bpm, parse_key
from pipelines.payload import decode_path, encode_path
from tests.hub.deliveries import AGENT, result, scan, seen


@pytest.fixture
def library(catalogue: Catalogue) -> Catalogue:
    """Four tracks: 1 to 3 analysed, the third rejected, the fourth waiting."""
    names = ["a", "b", "c", "d"]
    scan(catalogue, "/m", [seen(f"/m/{name}.mp3", name) for name in names])
    catalogue.record(
        AGENT,
        [
            result(METADATA, 1, "a", artist="Zoë", title="100% Dub", album="First"),
            result(METADATA, 2, "b", artist="abel", title="Kite"),
            result(
                ANALYSIS, 1, "a", bpm=120.4, bpm_confidence=3.0, key="A", scale="minor", camelot="8A", duration=60.0
            ),
            result(ANALYSIS, 2, "b", bpm=128.0, key="C", scale="major", camelot="10B", loudness=-8.0),
            result(ANALYSIS, 3, "c", outcome="rejected", reason="not-audio"),
        ],
    )
    return catalogue


def ids(catalogue: Catalogue, sort: str = "path", **typed: object) -> list[int]:
    return [track.id for track in catalogue.tracks(TrackFilter.parse(**typed), sort=sort)]  # type: ignore[arg-type]


def test_filters(library: Catalogue) -> None:
    assert ids(library) == [1, 2, 3, 4]
    assert ids(library, bpm="120..128") == [1, 2]
    assert ids(library, bpm="120..121") == [1]
    assert ids(library, bpm="128") == [2]
    assert ids(library, key="8a") == [1]
    assert ids(library, key="Am") == [1]
    assert ids(library, text="zoË first") == [1]
    assert ids(library, text="100%") == [1]
    assert ids(library, text="%") == [1]
    assert ids(library, text="c.mp3") == [3]
    assert ids(library, problems=True) == [3]
    assert library.count_tracks(TrackFilter.parse(bpm="120..128")) == 2


def test_order_puts_unknowns_last_either_way(library: Catalogue) -> None:
    assert ids(library, sort="bpm") == [1, 2, 3, 4]
    assert ids(library, sort="-bpm") == [2, 1, 3, 4]
    assert ids(library, sort="artist") == [2, 1, 3, 4]
    assert ids(library, sort="key") == [1, 2, 3, 4], "8A comes before 10B"
    assert [track.id for track in library.tracks(sort="-path", limit=2, offset=1)] == [3, 2]
    with pytest.raises(BadFilter, match="there are artist, title"):
        library.tracks(sort="; DROP TABLE files")


def test_a_row_says_what_is_known(library: Catalogue) -> None:
    first, second, third, fourth = library.tracks(sort="path")
    assert (first.artist, first.title, first.duration, first.bpm_confidence) == ("Zoë", "100% Dub", 60.0, 3.0)
    assert second.loudness == -8.0
    assert third.title == "c.mp3"
    assert third.problems == [{"service": ANALYSIS, "outcome": "rejected", "reason": "not-audio"}]
    assert third.pending == [METADATA, FINGERPRINT]
    assert fourth.pending == [METADATA, FINGERPRINT, ANALYSIS]
    assert fourth.as_json()["path"] == "/m/d.mp3"


def test_a_file_whose_name_is_not_utf8_can_be_found_again(catalogue: Catalogue, tmp_path: Path) -> None:
    file = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe tune\n.mp3"))
    file.write_bytes(b"x")
    scan(catalogue, encode_path(tmp_path), [seen(encode_path(file))])
    [track] = catalogue.tracks(TrackFilter.parse(text="tune"), sort="-path")
    assert decode_path(track.as_json()["encoded_path"]).read_bytes() == b"x"
    assert decode_path(encode_path(track.path)) != file


# The Camelot wheel, as published by Mixed In Key.
WHEEL = {
    "1A": "Abm", "2A": "Ebm", "3A": "Bbm", "4A": "Fm", "5A": "Cm", "6A": "Gm",
    "7A": "Dm", "8A": "Am", "9A": "Em", "10A": "Bm", "11A": "F#m", "12A": "C#m",
    "1B": "B", "2B": "F#", "3B": "Db", "4B": "Ab", "5B": "Eb", "6B": "Bb",
    "7B": "F", "8B": "C", "9B": "G", "10B": "D", "11B": "A", "12B": "E",
}  # fmt: skip


def test_keys_in_any_spelling() -> None:
    for code, name in WHEEL.items():
        assert parse_key(code) == parse_key(code.lower()) == parse_key(name) == code
    for name in ("A minor", "a min", " Am ", "AMINOR", "a Minor"):
        assert parse_key(name) == "8A"
    assert parse_key("A#m") == parse_key("B♭ minor") == "3A"
    assert parse_key("AM") == parse_key("A major") == parse_key("A maj") == "11B"
    assert parse_key("bb") == "6B"
    for bad in ("13A", "0A", "8C", "H", "Am7", "A  sharp", "8A; 9A"):
        with pytest.raises(BadFilter, match="8A"):
            parse_key(bad)


def test_tempos_in_any_spelling() -> None:
    assert parse_bpm("120..128") == parse_bpm("120-128") == parse_bpm(" 120 .. 128 ") == (120, 128)
    assert parse_bpm("120..") == (120, 9999)
    assert parse_bpm("..128") == (0, 128)
    assert parse_bpm("128") == (127.5, 128.5)
    for bad in ("fast", "..", "128..120", "-", "1e9", "1..2..3"):
        with pytest.raises(BadFilter):
            parse_bpm(bad)


def noise(seed: int, items: int = 400) -> list[int]:
    return random.Random(seed).choices(range(2**32), k=items)


def encoded(items: list[int]) -> str:
    return base64.b64encode(struct.pack(f"<{len(items)}I", *items)).decode()


def test_files_that_sound_the_same_carry_one_label(catalogue: Catalogue) -> None:
    contents = ["a", "b", "c", "d", "e", "e"]
    scan(catalogue, "/m", [seen(f"/m/{i}", content) for i, content in enumerate(contents)])
    prints = {"a": noise(1), "b": noise(2), "c": noise(1)[40:], "d": noise(3), "e": []}
    entries = [result(FINGERPRINT, i + 1, name, raw=encoded(prints[name])) for i, name in enumerate(contents[:5])]
    assert set(catalogue.record(AGENT, entries)) == {None}
    catalogue.compare_prints()
    labels = {track.id: track.duplicates for track in catalogue.tracks()}
    assert labels == {1: "d1", 2: None, 3: "d1", 4: None, 5: "d2", 6: "d2"}
    assert [track.id for track in catalogue.tracks(sort="duplicates")] == [1, 3, 5, 6, 2, 4]
    assert [track.id for track in catalogue.tracks(sort="-duplicates")] == [5, 6, 1, 3, 2, 4]


def test_comparing_is_not_repeated_until_a_fingerprint_changes(
    catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agent.hub import library

    compared = []
    real = library.compare
    monkeypatch.setattr(library, "compare", lambda *args: compared.append(args) or real(*args))
    scan(catalogue, "/m", [seen("/m/a"), seen("/m/b")])
    catalogue.record(AGENT, [result(FINGERPRINT, 1, "/m/a", raw=encoded(noise(1)))])
    for _ in range(3):
        catalogue.compare_prints(at_once=True)
    catalogue.record(AGENT, [result(ANALYSIS, 1, "/m/a", bpm=1)])
    catalogue.compare_prints(at_once=True)
    assert len(compared) == 1
    catalogue.record(AGENT, [result(FINGERPRINT, 2, "/m/b", raw="!not base64")])
    catalogue.compare_prints(at_once=True)
    assert len(compared) == 2


def test_a_configured_engine_is_owed_every_file_and_another_one_anew(tmp_path: Path) -> None:
    from agent.hub.file_tasks import INGEST, use_engine

    def owed() -> set[tuple[str, str]]:
        with Catalogue(tmp_path / "engine") as opened:
            return {key for key in opened.owed_versions(100) if key[0] == INGEST}

    with Catalogue(tmp_path / "engine") as opened:
        opened.register_agent(AGENT, "t")
        scan(opened, "/m", [seen("/m/a"), seen("/m/b")])
    assert owed() == set()
    try:
        use_engine("http://audfprint:8001")
        assert owed() == {(INGEST, "1"), (INGEST, "2")}
        with Catalogue(tmp_path / "engine") as opened:
            [debt, _] = opened.owed(AGENT, INGEST, 10)
            assert debt.payload().model_dump()["engine"] == "http://audfprint:8001"
            assert opened.record(AGENT, [result(INGEST, 1, "/m/a", hashes=5)]) == [None]
            assert INGEST not in opened.tracks()[0].pending
        assert owed() == {(INGEST, "2")}
        use_engine("http://panako:8002")
        assert owed() == {(INGEST, "1"), (INGEST, "2")}
    finally:
        use_engine(None)
    assert owed() == set()
