"""One pass of ffmpeg: what comes out, what is refused, and what is left when somebody dies."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import wave
from pathlib import Path

import numpy as np
import psutil
import pytest

from pipelines.errors import InputRejected, RecordNotFoundError, ToolMissing
from pipelines.music import ffmpeg
from pipelines.music.decode import RATE, Decoder, Measures
from pipelines.music.limits import is_short
from pipelines.music.probe import parse_probe, probe
from pipelines.music.stream import Budget, FfmpegStream, Log
from tests.pipelines.conftest import Make, ends

TONE = ("-f", "lavfi", "-i", "sine=frequency=440:sample_rate=44100")


def decode(path: Path, seconds: float = 60) -> tuple[list[int], Measures]:
    with Decoder(path, seconds) as decoder:
        sizes = [window.size for window in decoder.windows()]
    return sizes, decoder.measures


def float_wav(path: Path, samples: np.ndarray, rate: int = RATE) -> Path:
    data = samples.astype("<f4").tobytes()
    head = struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", 36 + len(data), b"WAVE", b"fmt ", 16, 3, 1, rate,
                       rate * 4, 4, 32, b"data", len(data))  # fmt: skip
    path.write_bytes(head + data)
    return path


def noise(seconds: float, level: float = 0.1) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(int(seconds * RATE)) * level


# -- what comes out


def test_windows_are_full_but_the_last_and_lose_no_sample(make: Make) -> None:
    sizes, measures = decode(make("tone.flac", *TONE, "-t", "5.5"), seconds=2)
    assert sizes == [2 * RATE, 2 * RATE, int(1.5 * RATE)]
    assert measures.duration == pytest.approx(5.5)
    assert measures.declared == pytest.approx(5.5, abs=0.02)
    assert not measures.warnings


@pytest.mark.parametrize("rate", [8_000, 22_050, 48_000, 96_000])
def test_other_rates_keep_their_duration(make: Make, rate: int) -> None:
    _, measures = decode(make(f"rate{rate}.wav", *TONE, "-t", "3", "-ar", str(rate)))
    assert measures.duration == pytest.approx(3, abs=0.01)


def test_silence_at_both_ends_is_measured(make: Make) -> None:
    path = make("ends.flac", "-f", "lavfi", "-i", "sine=duration=3", "-af", "adelay=1500:all=1,apad=pad_dur=2.25")
    _, measures = decode(path, seconds=2)
    assert measures.leading_silence == pytest.approx(1.5, abs=0.01)
    assert measures.trailing_silence == pytest.approx(2.25, abs=0.01)


def test_a_silent_file_is_silence_to_its_end_and_has_no_loudness(make: Make) -> None:
    _, measures = decode(make("silent.flac", "-f", "lavfi", "-i", "anullsrc=r=44100:cl=stereo", "-t", "3"))
    assert measures.leading_silence == pytest.approx(3)
    assert measures.trailing_silence == 0
    assert measures.loudness is None
    assert [warning.partition(":")[0] for warning in measures.warnings] == ["no-loudness"]


def test_fact_loudness_is_that_of_the_stereo_sound_and_mono_would_read_lower(cases: Path, make: Make) -> None:
    stereo, mono = cases / "audio" / "base.mp3", make("mono.flac", "-i", cases / "audio" / "base.mp3", "-ac", "1")
    ours, theirs = decode(stereo)[1].loudness, decode(mono)[1].loudness
    assert ours is not None
    assert theirs is not None
    assert ours - theirs > 0.4


def test_fact_a_1_khz_sine_at_minus_20_dbfs_in_both_channels_reads_minus_20_lufs(make: Make) -> None:
    # ITU-R BS.1770-4: a 997 Hz sine at 0 dBFS in one channel reads -3.01 LKFS, so in both it reads 0.
    path = make("cal.wav", "-f", "lavfi", "-i", "aevalsrc=0.1*sin(2*PI*997*t)|0.1*sin(2*PI*997*t):d=20:s=48000")
    assert decode(path)[1].loudness == pytest.approx(-20.0, abs=0.15)


def test_channels_that_cancel_each_other_are_told(make: Make) -> None:
    path = make("phase.flac", "-f", "lavfi", "-i", "aevalsrc=0.3*sin(3000*t)|-0.3*sin(3000*t):d=5")
    assert any(warning.startswith("phase-inverted") for warning in decode(path)[1].warnings)


def test_nan_and_infinity_become_silence_with_a_warning(tmp_path: Path) -> None:
    samples = noise(3)
    samples[1000], samples[2000] = np.nan, np.inf
    with Decoder(float_wav(tmp_path / "nan.wav", samples)) as decoder:
        assert all(np.isfinite(window).all() for window in decoder.windows())
    assert any(warning.startswith("bad-samples: 2 ") for warning in decoder.measures.warnings)


def test_samples_far_out_of_range_are_clipped_with_a_warning(tmp_path: Path) -> None:
    with Decoder(float_wav(tmp_path / "loud.wav", noise(2, 50_000))) as decoder:
        assert all(np.abs(window).max() <= 1 for window in decoder.windows())
    assert any(warning.startswith("out-of-range") for warning in decoder.measures.warnings)
    assert decoder.measures.loudness is None


def test_the_first_of_two_sounds_is_taken(make: Make) -> None:
    path = make("two.mka", *TONE, *("-f", "lavfi", "-i", "anullsrc"), "-map", "0", "-map", "1", "-t", "2")
    assert decode(path)[1].leading_silence < 0.1


@pytest.mark.parametrize(
    ("decoded", "declared", "estimated", "errors", "short"),
    [
        (100, 100.5, False, 0, False),
        (100, 103, False, 0, True),
        (600, 610, False, 0, False),
        (100, 200, True, 0, False),
        (100, 200, True, 3, True),
        (100, None, False, 3, False),
        (5, 5.9, False, 0, False),
    ],
)
def test_short_is_over_a_second_and_two_percent(
    decoded: float, declared: float | None, estimated: bool, errors: int, short: bool
) -> None:
    assert is_short(decoded, declared, estimated, errors) is short


# -- what is refused


def refusal(path: Path) -> str:
    with pytest.raises(InputRejected) as caught:
        decode(path)
    return caught.value.reason


def test_a_fifo_is_refused_and_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.mp3")
    assert refusal(tmp_path / "pipe.mp3") == "not-a-file"


def test_folders_devices_empty_files_texts_and_playlists_are_refused(tmp_path: Path, make: Make) -> None:
    tone = make("listed.wav", *TONE, "-t", "1")
    (tmp_path / "empty.mp3").touch()
    (tmp_path / "text.mp3").write_text("not music " * 500)
    (tmp_path / "list.mp3").write_text(f"#EXTM3U\n#EXTINF:1,\n{tone}\n")
    (tmp_path / "concat.mp3").write_text(f"ffconcat version 1.0\nfile {tone}\n")
    assert refusal(tmp_path) == "not-a-file"
    assert refusal(Path("/dev/zero")) == "not-a-file"
    assert refusal(tmp_path / "empty.mp3") == "empty"
    assert refusal(tmp_path / "text.mp3") == "not-audio"
    assert refusal(tmp_path / "list.mp3") == "not-audio"
    assert refusal(tmp_path / "concat.mp3") == "not-audio"


def test_a_film_without_sound_is_refused(make: Make) -> None:
    path = make("mute.mkv", "-f", "lavfi", "-i", "color=s=16x16:r=5:d=1", "-c:v", "mpeg4")
    assert refusal(path) == "no-audio-stream"


@pytest.mark.parametrize("rate", [1, 100, 4_000_000_000])
def test_a_silly_sample_rate_is_refused_before_it_takes_memory(tmp_path: Path, rate: int) -> None:
    path = tmp_path / "silly.wav"
    with wave.open(str(path), "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(44_100)
        file.writeframes(b"\1\2" * 200_000)
    raw = bytearray(path.read_bytes())
    raw[24:28] = struct.pack("<I", rate)
    path.write_bytes(raw)
    assert refusal(path) in ("unsupported", "corrupt")


def test_a_file_that_is_gone_is_told_from_an_archive_that_is_not_mounted(tmp_path: Path) -> None:
    (tmp_path / "there.mp3").touch()
    (tmp_path / "mountpoint").mkdir()
    with pytest.raises(RecordNotFoundError):
        probe(tmp_path / "gone.mp3")
    for away in (tmp_path / "mountpoint" / "a.mp3", tmp_path / "never" / "mounted" / "a.mp3"):
        with pytest.raises(OSError, match="mounted"):
            probe(away)


@pytest.mark.parametrize("name", ["-i.flac", "a b\nc.flac", "%03d.flac", "*.flac", "http:x.flac", "é" * 100 + ".flac"])
def test_odd_names_are_only_names(make: Make, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(make("plain.flac", *TONE, "-t", "1").read_bytes())
    assert decode(path)[1].duration == pytest.approx(1)


def test_a_name_that_is_no_text_is_only_a_name(make: Make, tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe\x80.flac"))
    path.write_bytes(make("plain.flac", *TONE, "-t", "1").read_bytes())
    assert decode(path)[1].duration == pytest.approx(1)


# -- the tool


def test_a_missing_ffmpeg_is_a_missing_tool_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHAZE_FFMPEG", "/nowhere/ffmpeg")
    with pytest.raises(ToolMissing, match="PHAZE_FFMPEG"):
        ffmpeg.ffmpeg_path()


def test_fact_the_ffmpeg_here_has_what_is_asked_of_it() -> None:
    def listed(what: str) -> str:
        return subprocess.run([ffmpeg.ffmpeg_path(), "-v", "error", what], capture_output=True, text=True).stdout

    assert " ebur128 " in listed("-filters")
    assert " chromaprint " in listed("-muxers")
    assert ffmpeg.ffmpeg_version(ffmpeg.ffmpeg_path()) != "unknown"


def test_channel_layouts_are_counted() -> None:
    def channels(facts: str) -> int | None:
        found = parse_probe(
            ["[info] Input #0, wav, from 'x':", f"[info]   Stream #0:0: Audio: pcm, 48000 Hz, {facts}, s16"]
        )
        assert found is not None
        return found.channels

    assert [channels(facts) for facts in ("mono", "stereo", "5.1(side)", "7.1", "12 channels", "quad")] == [
        1,
        2,
        6,
        8,
        12,
        None,
    ]


# -- bounds


def test_a_decoder_that_is_left_early_is_killed_and_reaped(make: Make) -> None:
    with Decoder(make("early.flac", *TONE, "-t", "600"), 1) as decoder:
        next(decoder.windows())
        pid = decoder._stream._process.pid
        assert psutil.pid_exists(pid)
    assert not psutil.pid_exists(pid)


def test_output_wall_time_and_cpu_are_bounded(make: Make) -> None:
    path = make("bounded.flac", *TONE, "-t", "600")
    arguments = [*ffmpeg.input_arguments(path), "-f", "f32le", "pipe:1"]
    endless = [*ffmpeg.input_arguments(path), "-af", "aloop=-1:100000", "-f", "f32le", "pipe:1"]

    def run(argv: list[str], budget: Budget) -> None:
        with FfmpegStream(argv, budget) as stream:
            for _ in stream.blocks(1 << 20):
                pass

    with pytest.raises(InputRejected, match="too-long"):
        run(arguments, Budget(wall=60, cpu=60, output=1 << 20))
    with pytest.raises(TimeoutError):
        run(endless, Budget(wall=0.5, cpu=60, output=1 << 50))
    with pytest.raises(InputRejected, match="too-slow"):
        run(endless, Budget(wall=100, cpu=1, output=1 << 50))


def test_the_log_is_bounded_however_much_ffmpeg_says() -> None:
    reader, writer = os.pipe()
    with subprocess.Popen(
        ["sh", "-c", "yes '[x] [error] broken' | head -n 100000; head -c 9000000 /dev/zero"], stdout=writer
    ):
        os.close(writer)
        log = Log()
        with os.fdopen(reader, "rb") as pipe:
            log.read(pipe)
    assert log.errors == 100_000
    assert len(log.lines()) <= 400
    assert sum(map(len, log.lines())) < 1_000_000


HOLD = """
import sys, time
from pathlib import Path
from pipelines.music.decode import Decoder
with Decoder(Path(sys.argv[1]), 1) as decoder:
    next(decoder.windows())
    print(decoder._stream._process.pid, flush=True)
    time.sleep(600)
"""


def test_kill_9_of_the_analysing_process_leaves_no_ffmpeg(make: Make) -> None:
    path = make("killed.flac", *TONE, "-t", "1800")
    with subprocess.Popen([sys.executable, "-c", HOLD, path], stdout=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        pid = int(reader.stdout.readline())
        assert psutil.Process(pid).is_running()
        reader.send_signal(signal.SIGKILL)
    assert ends(pid)
