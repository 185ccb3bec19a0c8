"""Installed models: a graph of five nodes for what is quick, and two real ones out of PyPI's wheels."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pipelines.errors import ToolMissing
from pipelines.music.analyze import Analysis, analyze
from pipelines.music.decode import RATE, Samples
from pipelines.music.essentia_windows import standard
from pipelines.music.models import wheels
from pipelines.music.models.catalogue import MODELS, Description, faults, is_installed, some_take_sound
from pipelines.music.models.graph import (
    FLOAT,
    INT32,
    Node,
    constant,
    encode_graph,
    of_bool,
    of_shape,
    of_type,
)
from pipelines.music.models.listen import BrokenModel, Listener
from pipelines.music.models.wheels import WheelError, convert, fetch
from pipelines.music.samples import render
from tests.pipelines.music.test_decode import float_wav

T = {"T": of_type(FLOAT)}
SOUND = (np.random.default_rng(2).standard_normal(8 * RATE) * 0.1).astype(np.float32)


def numbers(name: str, values: object) -> Node:
    array = np.asarray(values, "<f4")
    return constant(name, FLOAT, array.shape, array.tobytes())


def tiny(folder: Path, classes: list[str], biases: list[float], name: str = "tiny") -> Path:
    """A model whose answer is the same for any sound: the sigmoid of `biases`, one for each class."""
    width = len(biases)
    as_is = {"transpose_a": of_bool(False), "transpose_b": of_bool(False)}
    nodes = [
        Node("model/Placeholder", "Placeholder", (), {"dtype": of_type(FLOAT), "shape": of_shape(-1, 187, 96)}),
        constant("axis", INT32, (1,), np.array([1], "<i4").tobytes()),
        Node("mean", "Mean", ("model/Placeholder", "axis"), T | {"Tidx": of_type(INT32), "keep_dims": of_bool(False)}),
        numbers("nothing", np.zeros((96, width))),
        Node(
            "product",
            "MatMul",
            ("mean", "nothing"),
            T | as_is,
        ),
        numbers("biases", biases),
        Node("sum", "BiasAdd", ("product", "biases"), T),
        Node("model/Sigmoid", "Sigmoid", ("sum",), T),
    ]
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.pb").write_bytes(encode_graph(nodes))
    outputs = [
        {"name": "model/Sigmoid", "output_purpose": "predictions"},
        {"name": "sum", "output_purpose": "embeddings"},
    ]
    said = {
        "classes": classes,
        "schema": {"inputs": [{"name": "model/Placeholder"}], "outputs": outputs},
        "inference": {"algorithm": "TensorflowPredictMusiCNN", "sample_rate": 16000},
    }
    (folder / f"{name}.json").write_text(json.dumps(said))
    return folder


def heard(folder: Path, sound: Samples = SOUND) -> Analysis:
    models = Listener.installed(folder)
    models.hear(sound)
    result = Analysis()
    models.conclude(result)
    return result


def test_classes_go_by_their_names_and_not_by_their_place(tmp_path: Path) -> None:
    high, low = 0.8808, 0.1192  # the sigmoid of 2 and of -2
    one = heard(tiny(tmp_path / "one", ["sad", "happy"], [2.0, -2.0]))
    other = heard(tiny(tmp_path / "other", ["happy", "sad"], [2.0, -2.0]))
    assert one.tags["tiny"] == pytest.approx({"sad": high, "happy": low}, abs=1e-3)
    assert other.tags["tiny"] == pytest.approx({"happy": high, "sad": low}, abs=1e-3)
    assert one.embeddings["tiny"] == pytest.approx([2, -2], abs=1e-3)
    assert len(one.versions["tiny"]) == 12


@pytest.mark.parametrize("seconds", [0.2, 1.0, 2.9, 3.0, 61.0])
def test_sound_of_any_length_is_heard(tmp_path: Path, seconds: float) -> None:
    sound = np.resize(SOUND, int(seconds * RATE))
    assert heard(tiny(tmp_path / "m", ["a", "b"], [0, 1]), sound).tags["tiny"]["b"] == pytest.approx(0.731, abs=1e-3)


def test_fact_without_repetition_sound_under_three_seconds_gives_nothing(tmp_path: Path) -> None:
    graph = str(tiny(tmp_path / "m", ["a"], [0.0]) / "tiny.pb")
    short = np.zeros(16_000, np.float32) + 0.1
    predict = standard().TensorflowPredictMusiCNN
    assert len(predict(graphFilename=graph)(short)) == 0
    assert len(predict(graphFilename=graph, lastPatchMode="repeat")(short)) == 1


def test_more_names_than_outputs_is_told(tmp_path: Path) -> None:
    with pytest.raises(BrokenModel, match="has 2 outputs and 3 names"):
        heard(tiny(tmp_path / "m", ["a", "b", "c"], [0.0, 1.0]))


@pytest.mark.parametrize("content", [b"", b"\0" * 50, bytes(range(256)) * 8])
def test_a_graph_that_is_none_is_told_by_name(tmp_path: Path, content: bytes) -> None:
    folder = tiny(tmp_path / "m", ["a"], [0.0])
    (folder / "tiny.pb").write_bytes(content)
    with pytest.raises(BrokenModel, match=r"tiny\.pb cannot be run"):
        heard(folder)


def test_a_graph_without_its_description_is_left_out(tmp_path: Path) -> None:
    folder = tiny(tmp_path / "m", ["a"], [0.0])
    (folder / "tiny.json").unlink()
    assert not Listener.installed(folder)


def test_a_model_that_is_installed_anew_is_loaded_anew(tmp_path: Path) -> None:
    folder = tiny(tmp_path / "m", ["a"], [0.0])
    assert heard(folder).tags["tiny"]["a"] == pytest.approx(0.5, abs=1e-3)
    tiny(folder, ["a"], [5.0])
    os.utime(folder / "tiny.pb", ns=(1, 1))
    assert heard(folder).tags["tiny"]["a"] == pytest.approx(0.993, abs=1e-3)


def test_a_folder_has_models_where_one_takes_sound_whoever_made_it(tmp_path: Path) -> None:
    assert not some_take_sound(tmp_path / "nowhere")
    own = tiny(tmp_path / "m", ["a", "b"], [0.0, 1.0])
    assert some_take_sound(own)
    said = next(own.glob("*.json"))
    text = said.read_text("utf-8")
    said.write_text("{", "utf-8")
    assert some_take_sound(own), "what is wrong with it, it says itself"
    head = json.loads(text)
    head["inference"]["embedding_model"] = {"algorithm": "TensorflowPredictMusiCNN"}
    said.write_text(json.dumps(head), "utf-8")
    assert not some_take_sound(own)
    said.unlink()
    assert not some_take_sound(own)


def test_the_full_profile_has_what_the_models_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHAZE_MODELS_DIR", str(tiny(tmp_path / "m", ["a", "b"], [0.0, 1.0])))
    path = float_wav(tmp_path / "s.wav", render(120, "A", "minor", 6))
    found = analyze(path, "full")
    assert found.profile == "full"
    assert set(found.tags["tiny"]) == {"a", "b"}
    assert found.bpm == analyze(path).bpm


@pytest.mark.parametrize(
    "said",
    ["[]", "{}", "nothing", '{"schema": {"inputs": [], "outputs": []}, "inference": {"algorithm": "x"}}'],
)
def test_a_description_that_describes_nothing_is_told(tmp_path: Path, said: str) -> None:
    (tmp_path / "m.json").write_text(said)
    with pytest.raises(ValueError, match="does not describe a model"):
        Description.read(tmp_path / "m.json")


# -- the real ones


@pytest.fixture(scope="module")
def real(request: pytest.FixtureRequest) -> Path:
    """musicnn and tempocnn, converted from their wheels; kept in pytest's cache. Skipped where PyPI is not reached
    (failed where CI is set)."""
    folder: Path = request.config.cache.mkdir("phaze-models")  # type: ignore[union-attr]
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of several test processes one converts
        _convert_into(folder, request)
    return folder


def _convert_into(folder: Path, request: pytest.FixtureRequest) -> None:
    for name in ("musicnn", "tempocnn"):
        model = MODELS[name]
        if is_installed(model, folder) and not list(faults(model, folder)):
            continue
        assert model.wheel is not None
        try:
            room = request.config.cache.mkdir(f"phaze-wheel-{name}")  # type: ignore[union-attr]
            convert(model, fetch(model.wheel, room), folder)
        except (WheelError, ToolMissing) as error:
            if os.environ.get("CI"):
                raise
            pytest.skip(str(error))


def test_the_converted_files_are_the_known_ones(real: Path) -> None:
    for name in ("musicnn", "tempocnn"):
        assert list(faults(MODELS[name], real)) == []
    said = Description.read(real / "msd-musicnn.json")
    assert (len(said.classes), said.classes[0], said.classes[9], said.classes[49]) == (50, "rock", "jazz", "happy")


def test_musicnns_last_layers_alone_say_what_the_whole_says(real: Path) -> None:
    sound = (np.random.default_rng(4).standard_normal(16_000 * 7) * 0.1).astype(np.float32)
    predict = standard().TensorflowPredictMusiCNN
    whole = predict(graphFilename=str(real / "msd-musicnn.pb"), batchSize=1)(sound)
    embeddings = predict(graphFilename=str(real / "msd-musicnn.pb"), batchSize=1, output=wheels.EMBEDDING)(sound)
    head = standard().TensorflowPredict2D(
        graphFilename=str(real / "tags-msd-musicnn.pb"),
        input=wheels.EMBEDDING,
        output="model/Sigmoid",
        dimensions=wheels.EMBEDDING_SIZE,
    )(embeddings)
    assert whole.shape == (3, 50)
    assert np.abs(whole - head).max() < 1e-5


def test_real_models_on_real_music(real: Path, cases: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHAZE_MODELS_DIR", str(real))

    def tags(words: str) -> tuple[list[str], Analysis]:
        path = next(path for path in (cases / "music").glob("*.ogg") if words in path.name)
        found = analyze(path, "full")
        return list(found.tags["tags-msd-musicnn"])[:5], found

    jazz, found = tags("Vibe_Ace")
    assert jazz[0] == "jazz"
    assert len(found.embeddings["msd-musicnn"]) == 200
    assert found.model_bpm == pytest.approx(found.bpm, rel=0.04)
    assert "jazz" in tags("ragtime")[0]
    assert {"folk", "acoustic", "country", "female vocalists", "pop"} & set(tags("Lets_Go_Fishin")[0])


@pytest.mark.parametrize("bpm", [80, 121, 140])
def test_tempocnn_hears_the_tempo(real: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bpm: int) -> None:
    monkeypatch.setenv("PHAZE_MODELS_DIR", str(real))
    found = analyze(float_wav(tmp_path / "t.wav", render(bpm, "A", "minor", 12)), "full")
    assert found.model_bpm is not None
    assert min(abs(found.model_bpm - octave * bpm) / (octave * bpm) for octave in (0.5, 1, 2)) < 0.03
    assert found.model_bpm_confidence is not None
    assert 0 < found.model_bpm_confidence <= 1


MEMORY = """
import sys
from pathlib import Path
import numpy as np
from pipelines.music.models.listen import Listener
models = Listener.installed(Path(sys.argv[1]))
for _ in range(3):
    models.hear((np.random.default_rng(1).standard_normal(60 * 44100) * 0.1).astype("float32"))
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text("ascii").splitlines())
print((int(status["VmHWM"].split()[0]) - int(status["RssFile"].split()[0])) // 1024)
"""
"""Prints the peak in MB, without the pages of libraries: 80 or 190 MB of TensorFlow's, as the machine's cache has them,
which all processes share."""


def test_models_take_no_more_than_350_mb_of_their_own(real: Path) -> None:
    argv = [sys.executable, "-c", MEMORY, str(real)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=100)
    assert int(done.stdout) < 350


def test_a_wheel_that_cannot_be_had_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    assert MODELS["musicnn"].wheel is not None
    with pytest.raises(WheelError, match=r"pip could not fetch musicnn==0\.1\.0"):
        fetch(MODELS["musicnn"].wheel, tmp_path)
    (tmp_path / "a file").touch()
    with pytest.raises(WheelError, match=r"pip could not fetch musicnn==0\.1\.0: .*Not a directory"):
        fetch(MODELS["musicnn"].wheel, tmp_path / "a file" / "below it")
