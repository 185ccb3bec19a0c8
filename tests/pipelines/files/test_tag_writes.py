"""Tag writes: the tags are there, the sound is the same bytes, and the way back restores them."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import mutagen
import pytest

from pipelines.files import tagging
from pipelines.files.execute_approved_batch import Move, TagRestore
from pipelines.music.ffmpeg import ffmpeg_path
from pipelines.music.metadata import read_metadata
from pipelines.payload import encode_path
from tests.pipelines.files.batches import move, run, sha, tag

Make = Callable[..., Path]

WANTED = {
    "artist": ["Sigur Rós", "Björk"],
    "title": ["Ein Titel"],
    "album": ["Album"],
    "album_artist": ["Various"],
    "date": ["2011"],
    "genre": ["Techno"],
    "track": ["3/12"],
    "disc": ["1/2"],
    "bpm": ["128"],
    "key": ["Am"],
    "isrc": ["DEA123456789"],
    "mood": ["calm"],
}

FORMATS = ["mp3", "flac", "ogg", "opus", "m4a", "wav", "aiff", "wv", "wma", "tta"]


@pytest.fixture
def music(tmp_path: Path) -> Path:
    folder = tmp_path / "music"
    folder.mkdir()
    return folder


@pytest.fixture
def sound(make: Make, music: Path) -> Callable[[str], Path]:
    def of(suffix: str) -> Path:
        tags = ["-metadata", "title=Old title", "-metadata", "comment=Kept", "-metadata", "artist=Old"]
        source = make(f"tags.{suffix}", "-f", "lavfi", "-i", "sine=duration=2", "-ac", "2", *tags)
        path = music / source.name
        path.write_bytes(source.read_bytes())
        return path

    return of


def decoded(path: Path) -> str:
    """Hash of the samples."""
    argv = [ffmpeg_path(), "-v", "error", "-i", path, "-map", "0:a:0", "-f", "s32le", "-"]
    return hashlib.sha256(subprocess.run(argv, capture_output=True, check=True, timeout=60).stdout).hexdigest()


@pytest.mark.parametrize("suffix", FORMATS)
def test_tags_are_written_in_every_container_with_the_same_sound_and_put_back(
    sound: Callable[[str], Path], suffix: str
) -> None:
    path = sound(suffix)
    path.chmod(0o640)
    os.setxattr(path, "user.note", b"dear")
    before, samples, content = read_metadata(path), decoded(path), path.read_bytes()
    report = run(tag(path, **WANTED), roots=[path.parent])
    assert report.items == {"1": "done"}
    [item] = report.details
    assert (item.sha256_before, item.sha256) == (sha(content), sha(path))
    assert item.sha256 != item.sha256_before
    found = read_metadata(path)
    said = (found.artist, found.title, found.album, found.album_artist, found.year, found.genre)
    assert said == ("Sigur Rós", "Ein Titel", "Album", "Various", 2011, "Techno")
    assert (found.track, found.disc, found.bpm_tag, found.isrc) == (3, 1, 128, "DEA123456789")
    assert found.key_tag == "Am"
    assert decoded(path) == samples
    assert (path.stat().st_mode & 0o777, os.getxattr(path, "user.note")) == (0o640, b"dear")
    assert [other.name for other in path.parent.iterdir()] == [path.name]
    assert item.old is not None
    back = TagRestore(proposal_id="1", source=item.path, sha256=item.sha256, old=item.old)
    assert run(back, roots=[path.parent], batch="back").items == {"1": "done"}
    assert read_metadata(path).model_dump(exclude={"raw", "bit_rate"}) == before.model_dump(exclude={"raw", "bit_rate"})
    assert {name: sorted(values) for name, values in read_metadata(path).raw.items()} == {
        name: sorted(values) for name, values in before.raw.items()
    }
    assert decoded(path) == samples


def test_an_empty_list_removes_and_the_same_tags_again_change_nothing(sound: Callable[[str], Path]) -> None:
    path = sound("flac")
    run(tag(path, title=[], artist=["New"]), roots=[path.parent])
    assert (read_metadata(path).title, read_metadata(path).artist) == (None, "New")
    inode = path.stat().st_ino
    report = run(tag(path, title=[], artist=["New"]), roots=[path.parent])
    assert report.details[0].detail == "it had these tags already"
    assert (path.stat().st_ino, report.details[0].old) == (inode, None)


def test_a_file_that_is_parted_from_its_other_names_says_so(sound: Callable[[str], Path]) -> None:
    path = sound("flac")
    other = path.with_name("other.flac")
    other.hardlink_to(path)
    before = sha(other)
    [item] = run(tag(path, title=["New"]), roots=[path.parent]).details
    assert (item.outcome, item.detail) == ("done", "the tie to its other names (hard links) was not kept")
    assert (sha(other), read_metadata(path).title) == (before, "New")
    [item] = run(tag(path, title=["Newer"]), roots=[path.parent]).details
    assert item.detail == ""


def test_id3_2_3_stays_2_3_with_its_pictures(sound: Callable[[str], Path]) -> None:
    from mutagen.id3 import APIC, ID3

    path = sound("mp3")
    tags = ID3(path)
    tags.add(APIC(encoding=3, mime="image/png", type=3, desc="", data=b"picture"))
    tags.update_to_v23()
    tags.save(path, v2_version=3)
    run(tag(path, title=["Neu"], date=["2020-05-17"]), roots=[path.parent])
    found = ID3(path, translate=False)
    assert found.version[:2] == (2, 3)
    assert str(found["TIT2"]) == "Neu"
    assert str(found["TYER"]) == "2020"
    assert found.getall("APIC")[0].data == b"picture"


def test_what_cannot_be_tagged_is_told_and_left_as_it_was(sound: Callable[[str], Path], music: Path) -> None:
    text, empty, flac = music / "text.mp3", music / "empty.mp3", sound("flac")
    text.write_bytes(b"no music\n" * 100)
    empty.write_bytes(b"")
    adts = sound("aac")
    broken = music / "broken.flac"
    broken.write_bytes(flac.read_bytes()[:60] + b"\xff" * 500)
    before = {path.name: path.read_bytes() for path in music.iterdir()}
    report = run(
        *[tag(path, name=path.name, title=["T"]) for path in (text, empty, adts, broken)],
        tag(flac, name="value", title=["nul\0"]),
        tag(flac, name="name", **{"bad=name": ["x"]}),
        tag(flac, name="large", title=["x" * 30_000]),
        roots=[music],
    )
    assert set(report.items.values()) <= {"not-audio", "no-tags", "bad-tags", "bad-value", "tags-too-large"}
    assert {path.name: path.read_bytes() for path in music.iterdir()} == before


def test_a_write_that_would_change_the_sound_is_refused(
    sound: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = sound("flac")
    content = path.read_bytes()
    hashes = iter(["one", "other"])
    monkeypatch.setattr(tagging, "sound_hash", lambda fd: next(hashes))
    assert run(tag(path, title=["T"]), roots=[path.parent]).items == {"1": "sound-changed"}
    assert (path.read_bytes(), len(list(path.parent.iterdir()))) == (content, 1)


def test_the_hash_of_the_sound_is_of_the_sound_alone(sound: Callable[[str], Path]) -> None:
    path = sound("mp3")

    def hashed() -> str:
        with path.open("rb") as file:
            return tagging.sound_hash(file.fileno())

    first = hashed()
    tagged = mutagen.File(path, easy=True)
    tagged["title"] = ["Another " * 400]
    tagged.save()
    assert hashed() == first
    content = bytearray(path.read_bytes())
    content[-300] ^= 1
    path.write_bytes(content)
    assert hashed() != first


def test_a_change_at_the_last_moment_is_not_lost(sound: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    path = sound("flac")
    original = tagging.rename_with

    def late(*args: object) -> bool:
        monkeypatch.setattr(tagging, "rename_with", original)
        with path.open("ab") as file:
            file.write(b"written by another program")
        return original(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(tagging, "rename_with", late)
    assert run(tag(path, title=["T"]), roots=[path.parent]).items == {"1": "source-changed"}
    assert path.read_bytes().endswith(b"written by another program")
    assert [other.name for other in path.parent.iterdir()] == [path.name]


def test_a_proposal_may_follow_one_that_changes_its_file(sound: Callable[[str], Path], music: Path) -> None:
    path, other = sound("flac"), music / "sub" / "b.flac"
    after = Move(
        proposal_id="2", source=encode_path(path), destination=encode_path(other), sha256=sha(path), follows="1"
    )
    report = run(tag(path, title=["T"]), after, roots=[music])
    assert report.items == {"1": "done", "2": "done"}
    assert (read_metadata(other).title, report.details[1].sha256) == ("T", sha(other))
    gone = move(other, music / "c.flac", name="2", follows="1")
    report = run(move(music / "nope", music / "x", name="1"), gone, roots=[music])
    assert report.items == {"1": "vanished", "2": "follows-failed"}
