"""What DJ programs and taggers leave in real files is understood where it is well known, and kept where it is not."""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path
from typing import Any

import mutagen
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mutagen.apev2 import APEv2, APEValue
from mutagen.asf import ASF, ASFByteArrayAttribute
from mutagen.flac import FLAC, Picture
from mutagen.id3 import APIC, COMM, GEOB, ID3, PRIV, RVA2, TBPM, TKEY, TXXX, UFID
from mutagen.mp4 import MP4, MP4Cover, MP4FreeForm
from mutagen.oggopus import OggOpus
from mutagen.oggvorbis import OggVorbis

from pipelines.music.covers import cover
from pipelines.music.metadata import FileTags, read_metadata
from pipelines.music.vendors import Vendors, camelot, read_vendors
from tests.pipelines.conftest import Make

TONE = ("-f", "lavfi", "-i", "sine=duration=2:sample_rate=44100")
ID = "b9ad642e-b012-41c7-b72a-42cf4911f9ff"
PNG = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sIIBBBBB", 13, b"IHDR", 600, 400, 8, 2, 0, 0, 0) + b"\0" * 99
JPEG = b"\xff\xd8\xff\xe0\0\x10JFIF" + b"\0" * 10 + b"\xff\xc0\0\x11\x08" + struct.pack(">HH", 300, 500) + b"\0" * 20
AUTOTAGS = b"\x01\x01115.00\x00-3.257\x000.000\x00"


@pytest.fixture
def mp3(make: Make) -> Path:
    return make("vendors.mp3", *TONE, "-b:a", "128k")


def with_frames(path: Path, *frames: Any) -> FileTags:
    id3 = ID3()
    for frame in frames:
        id3.add(frame)
    id3.save(path)
    return read_metadata(path)


def geob(desc: str, data: bytes) -> GEOB:
    return GEOB(encoding=0, mime="application/octet-stream", filename="", desc=desc, data=data)


def json64(**values: Any) -> bytes:
    return base64.b64encode(json.dumps(values).encode())


def test_serato(mp3: Path) -> None:
    found = with_frames(
        mp3,
        geob("Serato Autotags", AUTOTAGS),
        geob("Serato Overview", b"\x01\x05" * 2000),
        geob("Serato Markers2", b"\1\1QQ"),
    )
    assert found.programs == {"serato": {"bpm": 115.0, "auto_gain": -3.257, "gain": 0.0}}
    assert found.bpm_tag == 115.0
    kept = found.binary["GEOB:Serato Markers2"]
    assert (kept.bytes, base64.b64decode(kept.base64 or "")) == (4, b"\1\1QQ")
    assert (found.binary["GEOB:Serato Overview"].bytes, found.binary["GEOB:Serato Overview"].base64) == (4000, None)
    assert with_frames(mp3, geob("Serato Autotags", AUTOTAGS), TBPM(encoding=3, text="116.5")).bpm_tag == 116.5


@pytest.mark.parametrize(
    "data", [b"", b"\x01", b"\x01\x01", b"\x01\x01nan\x00inf\x00", b"\x02\x01115.00\0", b"\x01\x019999\0" * 9]
)
def test_serato_that_is_not_as_documented_says_nothing(mp3: Path, data: bytes) -> None:
    found = with_frames(mp3, geob("Serato Autotags", data))
    assert (found.outcome, found.programs, found.bpm_tag) == ("done", {"serato": {}}, None)


@pytest.mark.parametrize(
    ("frames", "key", "energy"),
    [
        ([COMM(encoding=3, lang="eng", desc="", text="8A - 128 - Energy 7")], "8A", 7),
        ([COMM(encoding=3, lang="eng", desc="", text="11B - Energy 10")], "11B", 10),
        ([COMM(encoding=3, lang="eng", desc="", text="Energy 6")], None, 6),
        ([COMM(encoding=3, lang="eng", desc="", text="bought in 1998 - 5 stars, full of energy")], None, None),
        ([TXXX(encoding=3, desc="EnergyLevel", text="5")], None, 5),
        ([TXXX(encoding=3, desc="EnergyLevel", text="50")], None, None),
        ([geob("Key", json64(algorithm=94, key="4A", source="mixedinkey"))], "4A", None),
        ([geob("Energy", json64(algorithm=13, energyLevel=6, source="mixedinkey"))], None, 6),
        ([geob("Key", b"no base64"), geob("Energy", json64(energyLevel=True))], None, None),
        ([TKEY(encoding=3, text="Em"), COMM(encoding=3, lang="eng", desc="", text="8A - Energy 7")], "Em", 7),
    ],
)  # fmt: skip
def test_mixed_in_key(mp3: Path, frames: list[Any], key: str | None, energy: int | None) -> None:
    found = with_frames(mp3, *frames)
    assert (found.key_tag, found.energy_tag) == (key, energy)


def test_traktor_and_rekordbox_are_told_by_name_and_kept(mp3: Path) -> None:
    found = with_frames(
        mp3,
        PRIV(owner="TRAKTOR4", data=b"DMRT" + bytes(5000)),
        TXXX(encoding=3, desc="rekordbox_mark", text="x"),
    )
    assert found.programs == {"traktor": {}, "rekordbox": {}}
    assert (found.binary["PRIV:TRAKTOR4"].bytes, found.binary["PRIV:TRAKTOR4"].base64) == (5004, None)


def test_ids_gains_and_covers_of_id3(mp3: Path) -> None:
    found = with_frames(
        mp3,
        UFID(owner="http://musicbrainz.org", data=ID.encode()),
        TXXX(encoding=3, desc="MusicBrainz Album Id", text=ID.upper()),
        TXXX(encoding=3, desc="MusicBrainz Artist Id", text="not an id"),
        TXXX(encoding=3, desc="REPLAYGAIN_TRACK_GAIN", text="-6.48 dB"),
        TXXX(encoding=3, desc="replaygain_track_peak", text="0.988"),
        RVA2(desc="album", channel=1, gain=-4.5, peak=0.5),
        APIC(encoding=3, mime="image/jpg", type=3, desc="", data=PNG),
        APIC(encoding=3, mime="image/png", type=4, desc="back", data=JPEG),
    )
    assert found.musicbrainz == {"recording": ID, "release": ID}
    gain = found.replay_gain
    assert gain is not None
    assert (gain.track_gain, gain.track_peak, gain.album_gain) == (-6.48, 0.988, -4.5)
    assert gain.album_peak == pytest.approx(0.5, abs=0.001)
    facts = {(c.mime, c.bytes, c.kind, c.width, c.height) for c in found.covers}
    assert facts == {("image/png", len(PNG), 3, 600, 400), ("image/jpeg", len(JPEG), 4, 500, 300)}
    assert found.has_cover
    assert "UFID:http://musicbrainz.org" in found.binary


@pytest.mark.parametrize("name", ["v.flac", "v.ogg", "v.opus"])
def test_vorbis_comments(make: Make, name: str) -> None:
    path = make(f"vendors-{name}", *TONE)
    file = mutagen.File(path)
    assert isinstance(file, FLAC | OggVorbis | OggOpus)
    file["INITIALKEY"], file["TEMPO"], file["BPM"] = "1m", "slow", "93,5"
    file["MUSICBRAINZ_TRACKID"], file["REPLAYGAIN_ALBUM_GAIN"] = ID, "+2.10 dB"
    file["ENERGYLEVEL"], file["SERATO_AUTOGAIN"] = "4", "YXBwbGljYXRpb24"
    picture = Picture()
    picture.data, picture.type, picture.mime = JPEG, 3, "image/jpeg"
    if isinstance(file, FLAC):
        file.add_picture(picture)
    else:
        file["METADATA_BLOCK_PICTURE"] = base64.b64encode(picture.write()).decode()
    file.save()
    found = read_metadata(path)
    assert (found.key_tag, found.key_camelot, found.bpm_tag, found.energy_tag) == ("1m", "8A", 93.5, 4)
    assert found.musicbrainz == {"recording": ID}
    assert found.replay_gain is not None
    assert found.replay_gain.album_gain == 2.1
    assert [(c.mime, c.kind, c.width) for c in found.covers] == [("image/jpeg", 3, 500)]
    assert set(found.programs) == {"serato", "mixedinkey"}


def test_gains_of_opus_are_counted_from_r128(make: Make) -> None:
    path = make("vendors-gain.opus", *TONE)
    file = OggOpus(path)
    file["R128_TRACK_GAIN"] = str(-256 * 8)
    file.save()
    gain = read_metadata(path).replay_gain
    assert gain is not None
    assert gain.track_gain == -3.0


def test_mp4(make: Make) -> None:
    path = make("vendors.m4a", *TONE)
    file = MP4(path)
    own = "----:com.apple.iTunes:"
    file["tmpo"] = [0]
    file[f"{own}BPM"] = MP4FreeForm(b"127.98")
    file[f"{own}initialkey"] = MP4FreeForm(b"F#m")
    file[f"{own}MusicBrainz Track Id"] = MP4FreeForm(ID.encode())
    file[f"{own}replaygain_track_gain"] = MP4FreeForm(b"-1.00 dB")
    file[f"{own}ENERGYLEVEL"] = MP4FreeForm(b"9")
    file["----:com.serato.dj:markersv2"] = MP4FreeForm(base64.b64encode(b"\1\1x"))
    file["----:com.native-instruments.traktor:traktor4"] = MP4FreeForm(b"DMRT\0\xff")
    file["covr"] = [MP4Cover(PNG, MP4Cover.FORMAT_PNG)]
    file.save()
    found = read_metadata(path)
    assert (found.bpm_tag, found.key_tag, found.key_camelot, found.energy_tag) == (127.98, "F#m", "11A", 9)
    assert found.musicbrainz == {"recording": ID}
    assert found.replay_gain is not None
    assert found.replay_gain.track_gain == -1.0
    assert set(found.programs) == {"serato", "traktor", "mixedinkey"}
    assert found.binary["----:com.native-instruments.traktor:traktor4"].bytes == 6
    assert [(c.mime, c.width, c.height) for c in found.covers] == [("image/png", 600, 400)]


def test_asf(make: Make) -> None:
    path = make("vendors.wma", *TONE)
    file = ASF(path)
    file["WM/BeatsPerMinute"], file["WM/InitialKey"] = "140", "Dbm"
    file["MusicBrainz/Track Id"] = ID
    header = b"\x03" + struct.pack("<I", len(JPEG)) + "image/jpeg\0\0".encode("utf-16-le")
    file["WM/Picture"] = ASFByteArrayAttribute(data=header + JPEG)
    file["Vendor/Blob"] = ASFByteArrayAttribute(data=b"\0\xff\0")
    file.save()
    found = read_metadata(path)
    assert (found.bpm_tag, found.key_tag, found.key_camelot) == (140.0, "Dbm", "12A")
    assert found.musicbrainz == {"recording": ID}
    assert [(c.mime, c.kind, c.width) for c in found.covers] == [("image/jpeg", 3, 500)]
    assert found.binary["Vendor/Blob"].bytes == 3


def test_apev2(make: Make) -> None:
    path = make("vendors.wv", *TONE)
    ape = APEv2()
    ape["BPM"], ape["InitialKey"], ape["Comment"] = "88", "12d", "Energy 3"
    ape["MUSICBRAINZ_ALBUMID"], ape["REPLAYGAIN_TRACK_GAIN"] = ID, "-2 dB"
    ape["Cover Art (Front)"] = APEValue(b"front.png\0" + PNG, 1)
    ape["Vendor"] = APEValue(b"\0\xff", 1)
    ape.save(path)
    found = read_metadata(path)
    assert (found.bpm_tag, found.key_tag, found.key_camelot, found.energy_tag) == (88.0, "12d", "7B", 3)
    assert found.musicbrainz == {"release": ID}
    assert [(c.mime, c.width) for c in found.covers] == [("image/png", 600)]
    assert found.binary["Vendor"].bytes == 2


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("8A", "8A"), ("08a", "8A"), ("12B", "12B"), ("13A", None), ("0A", None), ("Am", "8A"), ("A min", "8A"),
        ("a minor", "8A"), ("C", "8B"), ("C maj", "8B"), ("G#m", "1A"), ("Abm", "1A"), ("Es", "5B"), ("As-Dur", "4B"),
        ("a-moll", "8A"), ("H", "1B"), ("F\u266fm", "11A"), ("1m", "8A"), ("1d", "8B"), ("12m", "7A"), ("6d", "1B"),
        ("o", None), ("", None), ("a", None), ("All", None), ("5", None), ("Dance", None),
    ],
)  # fmt: skip
def test_keys_in_every_notation(written: str, expected: str | None) -> None:
    assert camelot(written) == expected


def test_all_keys_of_a_piano_have_their_own_code() -> None:
    names = [f"{letter}{sign}{mode}" for letter in "CDEFGAB" for sign in ("", "#", "b") for mode in ("", "m")]
    assert len({camelot(name) for name in names}) == 24


@given(st.dictionaries(st.text(), st.lists(st.text(), min_size=1)), st.dictionaries(st.text(), st.binary()))
def test_whatever_is_written_nothing_is_raised(raw: dict[str, list[str]], binary: dict[str, bytes]) -> None:
    names = ("GEOB:Serato Autotags", "GEOB:Key", "GEOB:Energy")
    more = dict(zip(names, binary.values(), strict=False))
    assert isinstance(read_vendors(raw, {**binary, **more}), Vendors)


@given(st.sampled_from([PNG, JPEG, b"\xff\xd8\xff"]), st.integers(0, 60), st.binary(max_size=40))
def test_a_cut_or_damaged_picture_has_what_facts_it_has(whole: bytes, at: int, junk: bytes) -> None:
    assert cover(whole[:at] + junk).bytes == len(whole[:at] + junk)
