"""Tags of every container in one shape; whatever breaks has a name."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import mutagen
import pytest
from mutagen.apev2 import APEv2
from mutagen.id3 import APIC, COMM, ID3, TBPM, TDRC, TIT2, TKEY, TPE1, TPOS, TRCK, TSRC, TXXX
from mutagen.mp4 import MP4, MP4FreeForm

from pipelines.context import InlineContext
from pipelines.errors import InputChanged, InputRejected, RecordNotFoundError
from pipelines.music import tags
from pipelines.music.metadata import FileTags, MetadataPayload, extract_file_metadata, read_metadata
from pipelines.payload import encode_path
from tests.pipelines.conftest import Make

TONE = ("-f", "lavfi", "-i", "sine=duration=2:sample_rate=44100")


def payload(path: Path, size: int | None = None) -> MetadataPayload:
    size = path.stat().st_size if size is None else size
    return MetadataPayload(version="0", path=encode_path(path), size=size)


@pytest.fixture
def mp3(make: Make) -> Path:
    return make("tags.mp3", *TONE, "-b:a", "128k")


async def test_id3_tags_and_stream_facts(mp3: Path) -> None:
    id3 = ID3()
    id3.add(TPE1(encoding=3, text=["Björk", "Guest"]))
    id3.add(TIT2(encoding=1, text="Hyperballad"))
    id3.add(TDRC(encoding=3, text="1995-06-13"))
    id3.add(TRCK(encoding=3, text="3/12"))
    id3.add(TPOS(encoding=3, text="1"))
    id3.add(TBPM(encoding=3, text="128"))
    id3.add(TKEY(encoding=3, text="Am"))
    id3.add(TSRC(encoding=3, text="GBAAN9500123"))
    id3.add(TXXX(encoding=3, desc="MOOD", text="calm"))
    id3.add(COMM(encoding=3, lang="eng", desc="", text="a\nb\x00"))
    id3.add(APIC(encoding=3, mime="image/png", type=3, desc="", data=b"\x89PNG" * 1000))
    id3.save(mp3)
    found = await extract_file_metadata(InlineContext(), payload(mp3))
    assert (found.outcome, found.artist, found.title, found.year) == ("done", "Björk", "Hyperballad", 1995)
    assert (found.track, found.disc, found.bpm_tag, found.key_tag) == (3, 1, 128.0, "Am")
    assert (found.isrc, found.has_cover) == ("GBAAN9500123", True)
    assert found.raw["TPE1"] == ["Björk", "Guest"]
    assert found.raw["TXXX:MOOD"] == ["calm"]
    assert found.raw["COMM::eng"][0] == "a b"
    assert not any("APIC" in name for name in found.raw)
    assert (found.codec, found.container, found.sample_rate, found.channels) == ("mp3", "mp3", 44_100, 1)
    assert found.duration == pytest.approx(2, abs=0.1)
    assert FileTags.model_validate_json(found.model_dump_json()) == found


@pytest.mark.parametrize(
    ("name", "codec", "container"),
    [
        ("v.flac", "flac", "flac"),
        ("v.ogg", "vorbis", "ogg"),
        ("v.opus", "opus", "ogg"),
        ("v.m4a", "mp4a.40.2", "mp4"),
        ("v.wma", "Windows Media Audio V8", "asf"),
        ("v.wv", "wavpack", "wavpack"),
    ],
)
def test_the_same_tags_in_every_container(make: Make, name: str, codec: str, container: str) -> None:
    meta = {"artist": "Ann", "title": "Two", "album": "Three", "album_artist": "All", "genre": "Dub", "track": "4/9"}
    options = [part for key, value in meta.items() for part in ("-metadata", f"{key}={value}")]
    found = read_metadata(make(name, *TONE, *options, "-metadata", "date=2001"))
    assert (found.artist, found.title, found.album, found.genre) == ("Ann", "Two", "Three", "Dub")
    assert (found.album_artist, found.track, found.year) == ("All", 4, 2001)
    assert (found.codec, found.container) == (codec, container)


def test_free_form_and_binary_values_of_mp4(make: Make) -> None:
    path = make("free.m4a", *TONE)
    file = MP4(path)
    file["----:com.apple.iTunes:initialkey"] = MP4FreeForm(b"8A")
    file["----:com.apple.iTunes:blob"] = MP4FreeForm(b"\x00\xff\x00")
    file["tmpo"] = [174]
    file["trkn"] = [(7, 11)]
    file.save()
    found = read_metadata(path)
    assert (found.key_tag, found.bpm_tag, found.track) == ("8A", 174.0, 7)
    assert not any("blob" in name for name in found.raw)


def test_raw_tags_are_bounded(mp3: Path) -> None:
    id3 = ID3()
    for number in range(500):
        id3.add(TXXX(encoding=3, desc=f"name{number}", text="x" * 3_000))
    id3.save(mp3)
    found = read_metadata(mp3)
    assert 0 < sum(len(text) for texts in found.raw.values() for text in texts) <= tags.MOST_CHARACTERS
    assert len(found.raw) <= tags.MOST_TAGS


def test_a_title_that_is_not_there_is_not_made_up(mp3: Path) -> None:
    ID3().save(mp3)
    assert read_metadata(mp3).title is None


def test_a_wrong_suffix_does_not_hide_the_tags(mp3: Path, tmp_path: Path) -> None:
    id3 = ID3()
    id3.add(TIT2(encoding=3, text="Here"))
    id3.save(mp3)
    wrong = tmp_path / "wrong.flac"
    wrong.write_bytes(mp3.read_bytes())
    assert read_metadata(wrong).title == "Here"


@pytest.mark.parametrize("error", [ZeroDivisionError("x"), ValueError("x"), KeyError("x"), RecursionError("x")])
def test_whatever_mutagen_leaks_a_file_that_plays_is_partial(
    mp3: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def leak(*args: object, **kwargs: object) -> None:
        raise error

    monkeypatch.setattr(mutagen, "File", leak)
    found = read_metadata(mp3)
    assert (found.outcome, found.reason, found.codec, found.sample_rate) == ("partial", "bad-tags", "mp3", 44_100)
    assert type(error).__name__ in found.warnings[0]


def test_a_film_is_partial_with_the_facts_that_ffmpeg_sees(make: Make) -> None:
    found = read_metadata(make("film.mkv", *TONE, "-c:a", "aac"))
    assert (found.outcome, found.reason, found.codec, found.container) == ("partial", "unknown-tags", "aac", "matroska")


def test_what_neither_has_tags_nor_plays_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "a.mp3").write_bytes(b"ID3\x04\x00\x00\x7f\x7f\x7f\x7f" + b"\0" * 1000)
    with pytest.raises(InputRejected):
        read_metadata(tmp_path / "a.mp3")


async def test_gone_and_changed_files_are_told(mp3: Path, tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    with pytest.raises(RecordNotFoundError):
        await extract_file_metadata(InlineContext(), payload(tmp_path / "gone.mp3", size=1))
    with pytest.raises(InputChanged):
        await extract_file_metadata(InlineContext(), payload(mp3, size=1))


@pytest.mark.parametrize("cut", range(0, 600, 7))
def test_a_file_cut_anywhere_near_its_head_is_read_or_refused(make: Make, tmp_path: Path, cut: int) -> None:
    whole = make("cut.m4a", *TONE, "-metadata", "title=T", "-movflags", "+faststart").read_bytes()
    path = tmp_path / "cut.m4a"
    path.write_bytes(whole[:cut] + whole[cut + 5 :])
    with contextlib.suppress(InputRejected):
        json.dumps(json.loads(read_metadata(path).model_dump_json()), allow_nan=False)


def test_ape_tags_of_an_mp3_are_read_beside_its_id3_tags_which_go_first(mp3: Path) -> None:
    ape = APEv2()
    ape["Title"], ape["Artist"] = "by APE", ["Björk", "Guest"]
    ape["replaygain_track_gain"] = "-7.25 dB"
    ape.save(mp3)
    assert read_metadata(mp3).title == "by APE"
    id3 = ID3()
    id3.add(TIT2(encoding=3, text="by ID3"))
    id3.save(mp3)
    found = read_metadata(mp3)
    assert (found.outcome, found.title, found.artist) == ("done", "by ID3", "Björk")
    assert found.replay_gain is not None
    assert found.replay_gain.track_gain == -7.25
    assert found.raw["Artist"] == ["Björk", "Guest"]
    id3.add(TXXX(encoding=3, desc="REPLAYGAIN_TRACK_GAIN", text="-1.5 dB"))
    id3.save(mp3)
    found = read_metadata(mp3)
    assert found.replay_gain is not None
    assert found.replay_gain.track_gain == -1.5


def test_broken_ape_tags_spoil_no_id3_tags(mp3: Path) -> None:
    id3 = ID3()
    id3.add(TIT2(encoding=3, text="by ID3"))
    id3.save(mp3)
    sound = mp3.read_bytes()
    for size, items in ((32, 0), (0xFFFFFFFF, 0xFFFFFFFF), (64, 5)):
        footer = b"APETAGEX" + b"".join(part.to_bytes(4, "little") for part in (2000, size, items, 0)) + bytes(8)
        mp3.write_bytes(sound + b"\xff" * 32 + footer)
        assert read_metadata(mp3).title == "by ID3"
