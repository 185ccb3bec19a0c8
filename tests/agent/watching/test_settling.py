"""What has settled is told once, whatever comes in between; with a clock of the test's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from agent.watching.looking import Stamp, look
from agent.watching.settling import Settling

QUIET = 10.0
PATHS = [b"/m/a", b"/m/b", b"/m/\xff"]


class Machine(RuleBasedStateMachine):
    """A disk that changes, with a notice or without, against a model that knows when each file last did."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.disk: dict[bytes, Stamp] = {}
        self.settling = Settling(QUIET, 100)
        self.untold: dict[bytes, float] = {}
        self.version = 0

    @rule(path=st.sampled_from(PATHS), there=st.booleans())
    def change(self, path: bytes, there: bool) -> None:
        self.version += 1
        self.disk[path] = (self.version, 0, 0, 0) if there else None
        self.untold[path] = self.now
        self.settling.note(path, self.disk[path], self.now)

    @rule(path=st.sampled_from(PATHS))
    def change_without_a_notice(self, path: bytes) -> None:
        self.version += 1
        self.disk[path] = (self.version, 0, 0, 0)

    @rule(seconds=st.sampled_from([0.0, 1.0, 9.0, 10.0, 60.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        for path, stamp in self.settling.due(self.now, lambda path: self.disk.get(path)).items():
            assert self.now - self.untold.pop(path) >= QUIET
            assert stamp == self.disk.get(path), "what is told is what is there"

    @invariant()
    def nothing_is_forgotten(self) -> None:
        assert len(self.settling) == len(self.untold)

    def teardown(self) -> None:
        for _ in range(3):
            self.wait(QUIET)
        assert not self.untold


TestSettling = Machine.TestCase
TestSettling.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)


def test_too_much_is_said_to_be_too_much_and_costs_no_memory() -> None:
    settling = Settling(QUIET, 10)
    for number in range(25):
        settling.note(b"%d" % number, None, 0.0)
    assert settling.overflowed
    assert len(settling) == 5


def test_a_change_is_about_files_below_the_root_whatever_they_are_called(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "new" / "deep").mkdir(parents=True)
    (tmp_path / "out").mkdir()
    names = [b"new/a.mp3", b"new/deep/\xff.flac", b"new/cover.jpg", b"new/._a.mp3", b"new/bare"]
    top = str(root).encode()
    for name in [*names, b"../out/secret.mp3"]:
        with open(top + b"/" + name, "wb") as file:  # noqa: PTH123 - bytes
            file.write(b"x")
    (root / "link").symlink_to(tmp_path / "out")
    (root / "link.mp3").symlink_to(tmp_path / "out" / "secret.mp3")

    def found(*paths: bytes) -> Iterator[tuple[bytes, bool]]:
        for path, stamp in look(top, [top + b"/" + path for path in paths]):
            yield path.removeprefix(top + b"/"), stamp is not None

    assert sorted(found(b"new")) == [(b"new/a.mp3", True), (b"new/bare", True), (b"new/deep/\xff.flac", True)]
    assert list(found(b"new/cover.jpg", b"link/secret.mp3", b"new/._a.mp3")) == []
    assert list(found(b"gone.mp3", b"Vol. 2", b"link.mp3")) == [
        (b"gone.mp3", False),
        (b"Vol. 2", False),
        (b"link.mp3", False),
    ]
    assert list(look(top, [str(tmp_path / "out" / "secret.mp3").encode(), top])) == []
