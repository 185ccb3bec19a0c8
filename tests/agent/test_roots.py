"""What is given twice, or lies in what is given, is looked at once; and nothing that was given is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.roots import outermost


@pytest.fixture
def music(tmp_path: Path) -> Path:
    """A folder with a track, a text, a folder, a link to one outside, and a link to this folder beside it."""
    music, outside = tmp_path / "m", tmp_path / "outside"
    (music / "sub").mkdir(parents=True)
    outside.mkdir()
    (music / "a.mp3").write_bytes(b"x")
    (music / "a.txt").write_bytes(b"x")
    (music / "linked").symlink_to(outside)
    (music / "inner").symlink_to(music / "sub")
    (tmp_path / "also m").symlink_to(music)
    return music


@pytest.mark.parametrize("more", ["m", "m/sub", "m/a.mp3", "m/inner", "also m", "also m/sub", "m/not there"])
def test_what_lies_in_a_given_folder_is_taken_with_it(music: Path, more: str) -> None:
    inside = music.parent / more
    assert outermost([music, inside]) == [music]
    assert outermost([inside, music]) == [inside if more == "also m" else music], "of two names the first"


@pytest.mark.parametrize("more", ["m/linked", "m/a.txt", "outside", "m2"])
def test_what_a_scan_of_the_folder_would_pass_over_stays(music: Path, more: str) -> None:
    (music.parent / "m2").mkdir()
    other = music.parent / more
    assert outermost([music, other]) == [music, other]
    assert outermost([other, music]) == [other, music], "as they were given"
