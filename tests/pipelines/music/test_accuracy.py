"""Tempo and key on a synthesised set of known answers, in noise; one of the seeds was not looked at while tuning."""

from __future__ import annotations

import numpy as np
import pytest

from pipelines.music.aggregate import TempoVote, best_key, combine_tempo, same_tempo
from pipelines.music.decode import Samples
from pipelines.music.rhythm import beats
from pipelines.music.samples import NOTES, render
from pipelines.music.tonal import tonal

EACH = 16


def pieces(seed: int) -> list[tuple[float, str, str, Samples]]:
    """Drums, bass and chords at 60 to 180 BPM in all keys, 0 to 20 dB above noise; 25 s each."""
    rng = np.random.default_rng(seed)
    found = []
    for index in range(EACH):
        bpm, key, scale = float(rng.uniform(60, 180)), NOTES[int(rng.integers(12))], ("major", "minor")[index % 2]
        sound = render(bpm, key, scale, int(25 * bpm / 240) + 1)
        noise = rng.standard_normal(sound.size) * np.sqrt(np.mean(sound**2) / 10 ** (rng.uniform(0, 20) / 10))
        mixed = sound + noise
        found.append((bpm, key, scale, (mixed / np.abs(mixed).max()).astype(np.float32)))
    return found


@pytest.mark.parametrize("seed", [99, 20_261])
def test_tempo_and_key_of_noisy_pieces(seed: int) -> None:
    tempo = octave = key = 0
    for bpm, tonic, scale, sound in pieces(seed):
        heard, pitch = beats(sound), tonal(sound)
        assert heard is not None
        assert pitch is not None
        assert pitch.strengths is not None
        found = combine_tempo([TempoVote(heard.bpm, heard.confidence or 0, 25, heard.alternation, heard.between)])
        assert found is not None
        tempo += same_tempo(found.bpm, bpm)
        octave += any(same_tempo(found.bpm, bpm * factor) for factor in (0.5, 1, 2))
        key += best_key(pitch.strengths)[:2] == (tonic, scale)
    assert tempo >= 0.95 * EACH - 1
    assert octave == EACH
    assert key >= 0.9 * EACH
