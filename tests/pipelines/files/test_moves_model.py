"""Whatever a batch asks for: no content is lost or doubled, nothing outside changes, and the way back is exact."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipelines.files.execute_approved_batch import Move
from pipelines.payload import encode_path
from tests.pipelines.files.batches import run, sha, tree

NAMES = [b"a", b"b", b"A", b"\xff", b"e\xcc\x81", b"\xc3\xa9", b"x\ny"]
STEPS = [*NAMES, b"..", b".", b"", b"link", b"out"]

names = st.sampled_from(NAMES)
places = st.lists(names, min_size=1, max_size=3).map(tuple)
trees = st.dictionaries(places, st.binary(max_size=2), min_size=1, max_size=6)
paths = st.lists(st.one_of(names, st.sampled_from(STEPS)), min_size=1, max_size=4).map(b"/".join)


def build(folder: Path, wanted: dict[tuple[bytes, ...], bytes]) -> None:
    for place, content in wanted.items():
        path = Path(os.fsdecode(os.fsencode(folder) + b"/" + b"/".join(place)))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        except OSError:
            continue  # a file where a folder should be


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(wanted=trees, asked=st.lists(st.tuples(paths, paths, st.booleans()), min_size=1, max_size=8))
def test_any_batch_keeps_every_content_changes_nothing_outside_and_is_undone_exactly(
    wanted: dict[tuple[bytes, ...], bytes], asked: list[tuple[bytes, bytes, bool]]
) -> None:
    base = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    try:
        root, out, data = base / "root", base / "out", base / "data"
        for folder in (root, out, data):
            folder.mkdir()
        build(root, wanted)
        build(out, {(b"a",): b"outside"})
        (root / "link").symlink_to(out)
        (root / "out").symlink_to("../out")
        os.environ["PHAZE_DATA_DIR"] = str(data)
        before, outside = tree(root), tree(out)
        by_name = {os.fsencode(name): content for name, content in before.items()}
        prefix = os.fsencode(root) + b"/"
        moves = []
        for number, (source, destination, right) in enumerate(asked):
            content = by_name.get(prefix + source)
            moves.append(
                Move(
                    proposal_id=str(number),
                    source=encode_path(prefix + source),
                    destination=encode_path(prefix + destination),
                    sha256=sha(content) if content is not None and right else sha(b"something else"),
                )
            )
        report = run(*moves, roots=[root], batch="there")
        after = tree(root)
        assert Counter(filter(None, after.values())) == Counter(filter(None, before.values()))
        assert len([c for c in after.values() if c == b""]) == len([c for c in before.values() if c == b""])
        assert tree(out) == outside
        done = [item for item in report.details if item.outcome == "done"]
        if done:
            back = [
                Move(
                    proposal_id=item.proposal_id,
                    source=item.path,
                    destination=item.source,
                    sha256=item.sha256,
                    prune=item.made[::-1],
                )
                for item in reversed(done)
            ]
            again = run(*back, roots=[root], batch="back")
            assert again.outcome == "done", again.items
        assert tree(root) == before
        assert tree(out) == outside
    finally:
        shutil.rmtree(base)
