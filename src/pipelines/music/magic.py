"""Which files are sound: by suffix, and by first bytes where a name has none."""

from __future__ import annotations

import re

_SUFFIXES = """
    .aac .ac3 .aif .aifc .aiff .alac .amr .ape .au .caf .dff .dsf .dts .eac3 .flac .m4a .m4b .mka .mp+ .mp1 .mp2
    .mp3 .mpa .mpc .oga .ogg .opus .ra .rf64 .shn .snd .spx .tak .tta .w64 .wav .wave .weba .webm .wma
    .wv
"""
AUDIO_SUFFIXES = frozenset(_SUFFIXES.split())
"""Lower case. Containers that mostly hold video (mp4, mkv) are taken only where named one by one; a webm is
what yt-dlp leaves of a song."""

_HEADS = re.compile(
    rb"""ID3[\x02-\x04] | fLaC | OggS | RIFF....WAVE | RF64....WAVE | riff\x2e\x91\xcf\x11 | FORM....AIF[FC]
      | ....ftypM4[AB] | wvpk | MAC\x20 | TTA[12] | MPCK | MP\+ | DSD\x20 | FRM8....(?:....)?DSD\x20 | caff | \.snd
      | tBaK | ajkg | \#!AMR | \x30\x26\xb2\x75\x8e\x66\xcf\x11 | \x0b\x77 | \x7f\xfe\x80\x01
      | \xff[\xe2-\xe7\xf2-\xff][\x10-\xef]  # MPEG audio: sync, layer, a bit rate that is neither free nor bad
      | \xff[\xf0\xf1\xf8\xf9]               # ADTS
    """,
    re.VERBOSE | re.DOTALL,
)

HEAD_BYTES = 16
"""How much of a file `looks_like_audio` wants to see."""


def looks_like_audio(head: bytes) -> bool:
    """True if a file that begins with `head` claims to be one of the usual sound formats."""
    return _HEADS.match(head) is not None
