"""Which files of a library are one recording, and which copy of it is the best to keep."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pipelines.music.prints import decode_items

LOSSLESS = frozenset(
    {
        "flac",
        "alac",
        "ape",
        "wavpack",
        "wv",
        "tta",
        "trueaudio",
        "optimfrog",
        "tak",
        "mlp",
        "truehd",
        "shorten",
        "als",
        "ofr",
    }
)
"""Codecs that keep every bit, as ffmpeg and tags name them; so do all that begin with `pcm`, `wav`, `aif`, `dsd`."""

LONGER = 1.0
"""Seconds by which one copy must be longer than another for that to count: encoders pad by parts of a second."""


class PrintLike(Protocol):
    """What grouping needs to know of one file: `Fingerprint` has it, and so may a row of a catalogue."""

    @property
    def sha256(self) -> str:
        """Of the file's bytes; empty if not known."""

    @property
    def raw(self) -> str:
        """The fingerprint as `prints.encode_items` writes it; may be empty."""


def duplicate_groups(prints: Mapping[str, PrintLike]) -> list[list[str]]:
    """Names of files that hold the same bytes or the same recording, in groups of two and more.

    Groups and names are sorted, so that the answer does not depend on the order of `prints`. Imports numpy.
    """
    import numpy as np

    from pipelines.music.print_index import PrintIndex
    from pipelines.music.relations import SAME

    index = PrintIndex()
    pairs: list[tuple[str, str]] = []
    first: dict[str, str] = {}
    for name in sorted(prints):
        leader = first.setdefault(prints[name].sha256 or name, name)
        if leader != name:
            pairs.append((leader, name))
            continue
        links = index.admit(name, np.array(decode_items(prints[name].raw), dtype=np.uint32))
        pairs += [(index.name(link.other), name) for link in links if link.kind == SAME]
    return joined(pairs)


def joined(pairs: Iterable[tuple[str, str]]) -> list[list[str]]:
    """Groups of what any chain of pairs connects; groups and members are sorted."""
    leader: dict[str, str] = {}

    def find(name: str) -> str:
        leader.setdefault(name, name)
        while leader[name] != name:
            leader[name] = leader[leader[name]]
            name = leader[name]
        return name

    for one, other in pairs:
        leader[find(other)] = find(one)
    groups: dict[str, list[str]] = {}
    for name in sorted(leader):
        groups.setdefault(find(name), []).append(name)
    return sorted(group for group in groups.values() if len(group) > 1)


@dataclass(frozen=True)
class Copy:
    """What speaks for or against keeping one file. None: not known."""

    path: str
    whole: bool = True
    """False where clearly less decodes than the file declares."""
    codec: str | None = None
    duration: float | None = None
    """Seconds that decode."""
    bit_rate: int | None = None
    """bit/s."""
    channels: int | None = None

    @property
    def lossless(self) -> bool:
        """True if the codec keeps every bit. What was lost before that, nobody can tell from here."""
        codec = (self.codec or "").lower()
        return codec in LOSSLESS or codec.startswith(("pcm", "wav", "aif", "dsd", "flac", "monkey"))


def best_copy(copies: Sequence[Copy]) -> tuple[int, str]:
    """(place of the one to keep, the reason): each rule leaves those that pass it, until one is left.

    1. `whole`: one that decodes to its end before one that does not
    2. `lossless` before lossy
    3. `longest`: more than a second longer than all that fall out
    4. more `channels`: what was mixed down is gone, and a bit rate counts by how many it is shared
    5. the higher `bit rate`
    6. `equal`: the first path in the alphabet, so that the answer is always the same
    """
    rules: tuple[tuple[str, Callable[[Copy, Sequence[Copy]], bool]], ...] = (
        ("whole", lambda copy, _: copy.whole),
        ("lossless", lambda copy, _: copy.lossless),
        ("longest", lambda copy, all_: (copy.duration or 0) >= max(other.duration or 0 for other in all_) - LONGER),
        ("channels", lambda copy, all_: (copy.channels or 0) >= max(other.channels or 0 for other in all_)),
        ("bit rate", lambda copy, all_: (copy.bit_rate or 0) >= max(other.bit_rate or 0 for other in all_)),
    )
    left = list(copies)
    for reason, passes in rules:
        left = [copy for copy in left if passes(copy, left)] or left
        if len(left) == 1:
            return copies.index(left[0]), reason
    return copies.index(min(left, key=lambda copy: copy.path)), "equal"
