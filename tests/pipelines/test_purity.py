"""Who may import what."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import pipelines

SOURCES = sorted(Path(pipelines.__file__).parent.rglob("*.py"))

TASK_MODULES = (
    "pipelines.music.analyze",
    "pipelines.music.fingerprint",
    "pipelines.music.duplicates",
    "pipelines.music.metadata",
    "pipelines.music.scan",
    "pipelines.music.live_set",
    "pipelines.music.ingest",
    "pipelines.music.samples",
    "pipelines.files.execute_approved_batch",
    "pipelines.files.s3_upload",
    "pipelines.files.push_file",
    "pipelines.documents.parser",
    "pipelines.documents.grouper",
    "pipelines.documents.router",
)


def imported(source: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(source.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{source}: relative import"
            names.add(node.module or "")
    return {name.partition(".")[0] for name in names}


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_pipelines_import_nothing_of_the_engine(source: Path) -> None:
    assert not imported(source) & {"agent", "saq", "redis", "structlog"}
    # s3_store: to the object store, by requests that somebody else has signed. sidecar: to a fingerprint engine.
    # fetch, mineru, llm: to where a document is, to a server that reads documents, to a language model.
    speaks_http = source.name in ("s3_store.py", "sidecar.py", "fetch.py", "mineru.py", "llm.py")
    assert speaks_http or "httpx" not in imported(source)


def test_importing_every_task_loads_no_numeric_library_and_no_tag_reader() -> None:
    code = f"""
import importlib, sys
for name in {TASK_MODULES!r}:
    importlib.import_module(name)
heavy = {{"numpy", "essentia", "tensorflow", "mutagen", "imageio_ffmpeg", "botocore", "httpx"}}
heavy |= {{"pypdfium2", "rapidocr", "pint", "rapidfuzz"}}
print(sorted(heavy & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_reading_tags_and_fingerprinting_load_no_numeric_library(samples: list[object], tmp_path: Path) -> None:
    code = """
import sys
from pipelines.music.metadata import read_metadata
from pipelines.music.fingerprint import fingerprint
read_metadata(sys.argv[1]), fingerprint(sys.argv[1])
print(sorted({"numpy", "essentia", "tensorflow"} & set(sys.modules)))
"""
    path = samples[1].path  # type: ignore[attr-defined]
    argv = [sys.executable, "-c", code, path]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
