"""One pass of ffmpeg over a file: mono windows for the analysis, loudness of the stereo sound beside it.

Loudness is EBU R128 (ITU-R BS.1770-4) by ffmpeg's `ebur128`, on a branch pinned to stereo: the mono downmix reads
about 0.8 LU low. Imports numpy, so only child processes import this module.

Reasons for refusal, besides those of `probe`: `corrupt` (recognised, yet nothing decodes), `unsupported` (channels
that nobody can mix), `too-long`, `too-slow`, `decoder-crash`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from pipelines.music.cut_off import completeness
from pipelines.music.ffmpeg import input_arguments
from pipelines.music.limits import decode_budget
from pipelines.music.probe import Probe, probe
from pipelines.music.stream import FfmpegStream, nothing_decoded

Samples = NDArray[np.float32]

RATE = 44_100
"""Hz of the mono windows; what essentia's algorithms assume."""

WINDOW_SECONDS = 60
"""Flat memory, and multifeature tempo fails on more than 63 minutes at once."""

SILENCE = 10 ** (-60 / 20)
"""Amplitude under which a sample counts as silence: -60 dBFS."""

RANGE_SECONDS = 10.0
"""Loudness range is a spread of 3-second blocks; of shorter sound it is an artefact (20 LU at 3 s)."""

GRAPH = (
    "[0:a:0]aformat=sample_fmts=flt:channel_layouts=stereo,asplit=2[loud][down];"
    "[loud]ebur128=framelog=quiet:peak=sample,anullsink;"
    f"[down]pan=mono|c0=0.5*c0+0.5*c1,aresample={RATE},asetnsamples=n=16384:p=0[mono]"
)
"""Larger frames on their way out spare ffmpeg's threads two thirds of their switching."""

_INTEGRATED = re.compile(r"^\s+I:\s+(\S+) LUFS")
_RANGE = re.compile(r"^\s+LRA:\s+(\S+) LU$")
_PEAK = re.compile(r"^\s+Peak:\s+(\S+) dBFS")


@dataclass
class Measures:
    """What the whole pass found. Seconds; LUFS; LU; dBFS. None: not measurable, with a warning that says why."""

    duration: float = 0.0
    declared: float | None = None
    loudness: float | None = None
    loudness_range: float | None = None
    sample_peak: float | None = None
    """dBFS of the loudest sample of either channel; over 0 where the sound was coded beyond full scale."""
    leading_silence: float = 0.0
    trailing_silence: float = 0.0
    short: bool = False
    """Clearly less came out than the container declares, or it is cut off."""
    warnings: list[str] = field(default_factory=list)


class Decoder:
    """`with Decoder(path) as decoder: for window in decoder.windows(): ...`, then `decoder.measures`."""

    def __init__(self, path: Path, window_seconds: float = WINDOW_SECONDS) -> None:
        self._path = path
        self.probe: Probe = probe(path)
        self.measures = Measures(declared=self.probe.duration)
        self._bytes = int(window_seconds * RATE) * 4
        self._first: int | None = None
        self._last = 0
        self._samples = 0
        self._bad = 0
        self._peak = 0.0
        arguments = [*input_arguments(path), "-filter_complex", GRAPH]
        arguments += ["-map", "[mono]", "-c:a", "pcm_f32le", "-f", "f32le", "pipe:1"]
        self._stream = FfmpegStream(arguments, decode_budget(path.stat().st_size))

    def windows(self) -> Iterator[Samples]:
        """Finite samples in -1..1, shape (n,), at 44.1 kHz; every window but the last has the full length."""
        for block in self._stream.blocks(self._bytes):
            window = self._sane(np.frombuffer(block, dtype="<f4", count=len(block) // 4))
            loud = np.abs(window) > SILENCE
            if loud.any():
                if self._first is None:
                    self._first = self._samples + int(loud.argmax())
                self._last = self._samples + window.size - int(loud[::-1].argmax())
            del loud  # it would be there while the window is looked at
            self._samples += window.size
            yield window
        self._close_measures()

    def _sane(self, window: Samples) -> Samples:
        # One NaN hangs KeyExtractor for ever; corrupt AAC decodes to +/-116,000.
        peak = float(np.max(np.abs(window), initial=0.0))
        if not math.isfinite(peak):
            self._bad += int(window.size - np.count_nonzero(np.isfinite(window)))
            np.nan_to_num(window, copy=False, nan=0.0, posinf=0.0, neginf=0.0)
            peak = float(np.max(np.abs(window), initial=0.0))
        self._peak = max(self._peak, peak)
        return np.clip(window, -1.0, 1.0, out=window) if peak > 1.0 else window

    def _close_measures(self) -> None:
        log, found = self._stream.log, self.measures
        if not self._samples:
            raise nothing_decoded(log)
        found.duration = self._samples / RATE
        first = self._samples if self._first is None else self._first
        found.leading_silence = first / RATE
        found.trailing_silence = (self._samples - max(self._last, first)) / RATE
        found.declared, found.short = completeness(self._path, self.probe, found.duration, log.errors)
        if log.errors:
            found.warnings.append(f"decode-errors: {log.errors} ({log.last_error()[:120]})")
        if self._bad:
            found.warnings.append(f"bad-samples: {self._bad} were NaN or infinite and became 0")
        if self._peak > 2.0:
            found.warnings.append(f"out-of-range: samples up to {self._peak:.0f} were clipped to 1")
        self._loudness(log.lines())

    def _loudness(self, lines: list[str]) -> None:
        found = self.measures
        integrated = [float(match.group(1)) for line in lines if (match := _INTEGRATED.match(line))]
        ranges = [float(match.group(1)) for line in lines if (match := _RANGE.match(line))]
        if len(integrated) != 1:  # the sound changed its format on the way: one summary per part
            found.warnings.append(f"no-loudness: {len(integrated)} measurements instead of one")
        elif not -70.0 < integrated[0] < 3.0:  # -70: nothing passed the absolute gate; NaN fails as well
            found.warnings.append(f"no-loudness: {integrated[0]:g} LUFS is silence or noise")
        else:
            found.loudness = integrated[0]
            peaks = [float(match.group(1)) for line in lines if (match := _PEAK.match(line))]
            found.sample_peak = peaks[0] if peaks and math.isfinite(peaks[0]) else None
            if found.duration >= RANGE_SECONDS and ranges and math.isfinite(ranges[0]):
                found.loudness_range = ranges[0]
            if self._first is None:
                found.warnings.append("phase-inverted: the channels cancel each other in mono")

    def close(self) -> None:
        """Stop early: ffmpeg is killed and reaped."""
        self._stream.close()

    def __enter__(self) -> Decoder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
