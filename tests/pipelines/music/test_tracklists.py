"""Tracklists as people write them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.music.tracklists import OURS, Written, beside, cue_sheet, decode, parse, read_tracklist

CUE = """REM GENRE "House"
PERFORMER "DJ Somebody"
TITLE "Live"
FILE "set.mp3" MP3
  TRACK 01 AUDIO
    TITLE "Jóga"
    PERFORMER "Björk"
    INDEX 00 00:00:00
    INDEX 01 00:00:00
  TRACK 02 AUDIO
    TITLE "Untitled"
    INDEX 01 104:10:37
"""


def test_a_cue_sheet() -> None:
    assert parse(CUE) == [Written(0.0, "Björk", "Jóga"), Written(6250.493, "DJ Somebody", "Untitled")]
    assert parse(CUE.replace("\n", "\r\n")) == parse(CUE)
    second = CUE + 'FILE "other.mp3" MP3\n  TRACK 03 AUDIO\n    INDEX 01 00:00:00\n'
    assert parse(second) == parse(CUE), "another file is another recording"
    assert parse("TRACK 01 AUDIO\nINDEX 01 nonsense\nTITLE no quotes") == [Written(None, None, "no quotes")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("00:00 A - B\n4:10 C - D", [(0, "A", "B"), (250, "C", "D")]),
        ("01. [00:00] A - B\n02. [1:02:33] C – D [Label]", [(0, "A", "B"), (3753, "C", "D [Label]")]),  # noqa: RUF001
        (
            "Tracks:\n(00:00) A - B-Side\n(62:33) C - D\nhttps://a.example/x",
            [(0, "A", "B-Side"), (3753, "C", "D")],
        ),
        ("00:00 - 1. A - B\n00:30 - 2. C - D", [(0, "A", "B"), (30, "C", "D")]),
        ("A - B 00:00\nC - D [01:00]", [(0, "A", "B"), (60, "C", "D")]),
        ("[000] A - B\n[004] C - D\n[104] E - F", [(0, "A", "B"), (240, "C", "D"), (6240, "E", "F")]),
        ("1. A - B\n2. C - D", [(None, "A", "B"), (None, "C", "D")]),
        ("01) 808 State - Pacific 202\n02) 10cc - 2", [(None, "808 State", "Pacific 202"), (None, "10cc", "2")]),
        ("A - B\nC - D", [(None, "A", "B"), (None, "C", "D")]),
        ("00:00 ID\n05:00 w/ C - D", [(0, None, "ID"), (300, "C", "D")]),
        ("Recorded live at the club.\nThanks to all.", []),
        ("", []),
    ],
)
def test_texts(text: str, expected: list[tuple[float | None, str | None, str | None]]) -> None:
    assert [(row.start, row.artist, row.title) for row in parse(text)] == expected


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("utf-8", "00:00 Björk - Jóga\n01:00 坂本龍一 - 美貌の青空"),
        ("utf-8-sig", "00:00 Björk - Jóga\n"),
        ("utf-16", "00:00 Björk - Jóga\n"),
        ("utf-16-le", "00:00 Björk - Jóga\n"),
        ("utf-16-be", "00:00 Björk - Jóga\n"),
        ("utf-32", "00:00 Björk - Jóga\n"),
        ("cp1251", "00:00 Кино - Группа крови\n04:00 Алиса - Мы вместе\n"),
        ("cp1251", 'PERFORMER "Земфира"\n  TRACK 01 AUDIO\n    TITLE "Ариведерчи"\n    INDEX 01 00:00:00\n'),
        ("cp1252", "00:00 Daft Punk - Da Funk\n03:12 Beyoncé - Déjà Vu\n"),
        ("cp1252", "00:00 Röyksopp – Eple\n04:10 Sigur Rós - Hoppípolla\n"),  # noqa: RUF001
        ("cp1250", "00:00 Dvořák - Píseň\n03:00 Lucie Bílá - Láska je láska\n05:00 Kašpárek v rohlíku - Žížala\n"),
        ("cp1250", "00:00 Myslovitz - Długość dźwięku samotności\n04:00 Kult - Arahja\n"),
        ("cp1252", "00:00 Boys Noize - Jeffer\n03:00 Ellen Allien - Schneeflöckchen\n"),
        ("cp1252", "00:00 Trentemøller - Moan\n05:00 Röyksopp - Så lett å være\n"),
        ("cp1253", "00:00 Βαγγέλης Παπαθανασίου - Πορεία\n"),
        ("cp1254", "00:00 Tarkan - \u015e\u0131mar\u0131k\n03:00 Bar\u0131\u015f Man\u00e7o - Da\u011flar\n"),
        ("cp932", "00:00 坂本龍一 - 戦場のメリークリスマス\n04:00 ピチカート・ファイヴ - 東京は夜の七時\n"),
        ("cp932", 'PERFORMER "ケンイシイ"\n  TRACK 01 AUDIO\n    TITLE "EXTRA"\n    INDEX 01 00:00:00\n'),
    ],
)
def test_encodings(encoding: str, text: str, tmp_path: Path) -> None:
    assert decode(text.encode(encoding)) == text
    (tmp_path / "a.cue").write_bytes(text.encode(encoding))
    assert read_tracklist(tmp_path / "a.cue") == parse(text) != []


@given(st.binary(max_size=400))
def test_any_bytes_are_some_text(data: bytes) -> None:
    for row in parse(decode(data)):
        assert row.start is None or row.start >= 0


NAMES = st.text(min_size=1, max_size=30).filter(
    lambda text: bool(text.strip()) and text.isprintable() and '"' not in text
)


@given(st.lists(st.tuples(st.integers(0, 75 * 86_400), NAMES, NAMES), max_size=6))
def test_a_written_cue_sheet_reads_back(rows: list[tuple[int, str, str]]) -> None:
    tracks = [Written(round(frames / 75, 3), artist, title) for frames, artist, title in rows]
    again = parse(cue_sheet('a "b"\n.mp3', tracks, "My set"))
    assert [track.start for track in again] == [track.start for track in tracks]
    assert len(again) == len(tracks)
    if all(row[1].isascii() and row[2].isascii() for row in rows):
        assert [" ".join((track.artist or "").split()) for track in again] == [" ".join(row[1].split()) for row in rows]


def test_lists_beside_a_recording_are_found_and_ours_are_not(tmp_path: Path) -> None:
    for name in ("set.mp3", "set.cue", "set.mp3.txt", f"set{OURS}", "other.cue", "set tracklist.txt"):
        (tmp_path / name).write_bytes(b"x")
    assert [path.name for path in beside(tmp_path / "set.mp3")] == ["set.cue", "set.mp3.txt", "set tracklist.txt"]
    (tmp_path / "big.txt").write_bytes(b"00:00 A - B\n" * 100_000)
    assert read_tracklist(tmp_path / "big.txt") == []
