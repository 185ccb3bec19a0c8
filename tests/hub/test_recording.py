from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.hub import derived, schema
from agent.hub.catalogue import Catalogue
from agent.hub.file_tasks import ANALYSIS, FINGERPRINT, METADATA
from agent.phoenix.outbox import ENDED_ITS_PROCESS, Entry
from tests.hub.deliveries import AGENT, TOKEN, owed, result, scan, seen

DELIVERIES = st.lists(
    st.lists(st.tuples(st.integers(1, 2), st.integers(0, 4)), min_size=1, max_size=4), min_size=1, max_size=6
)


def stored(catalogue: Catalogue) -> list[dict[str, Any]]:
    with catalogue._database.read() as connection:
        return [dict(row._mapping) for row in connection.execute(sa.select(schema.results))]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(deliveries=DELIVERIES)
def test_any_order_and_repetition_ends_with_the_highest_token(
    deliveries: list[list[tuple[int, int]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A delivery is (record, token); what a run found is named after its token."""
    with Catalogue(tmp_path_factory.mktemp("property")) as catalogue:
        catalogue.register_agent(AGENT, TOKEN)
        scan(catalogue, "/m", [seen("/m/1"), seen("/m/2")])
        best: dict[int, int] = {}
        for batch in deliveries:
            entries = [
                result(ANALYSIS, record, f"/m/{record}", token=token, bpm=100 + token) for record, token in batch
            ]
            answers = catalogue.record(AGENT, entries)
            for (record, token), answer in zip(batch, answers, strict=True):
                assert (answer is None) == (token >= best.get(record, -1))
                assert answer is None or answer.reason == "stale"
                best[record] = max(token, best.get(record, -1))
        bpm = {track.id: track.bpm for track in catalogue.tracks()}
        assert {record: bpm[record] for record in best} == {record: 100 + token for record, token in best.items()}
        assert {key for key in owed(catalogue) if key[0] == ANALYSIS} == {
            (ANALYSIS, str(record)) for record in (1, 2) if record not in best
        }


def test_a_second_delivery_changes_nothing(catalogue: Catalogue) -> None:
    scan(catalogue, "/m", [seen("/m/a")])
    assert catalogue.record(AGENT, [result(ANALYSIS, 1, "/m/a", bpm=120)] * 2) == [None, None]
    assert catalogue.record(AGENT, [result(ANALYSIS, 1, "/m/a", bpm=999)]) == [None]
    assert catalogue.tracks()[0].bpm == 120


def foreign(record_id: str, **fields: Any) -> Entry:
    """A result of another package's task, of which the hub knows nothing."""
    given = {
        "service": "count_words",
        "record_id": record_id,
        "version": "1",
        "token": 1,
        "outcome": "done",
        "result": {},
    }
    return Entry.model_validate({**given, **fields})


def test_a_number_as_another_packages_record_id_names_no_file(catalogue: Catalogue) -> None:
    catalogue.register_agent("other", "another-token")
    scan(catalogue, "/m", [seen("/m/a")])
    assert catalogue.record("other", [result(ANALYSIS, 1, "/m/a", bpm=120)]) != [None], "the file is not theirs"
    assert catalogue.record("other", [foreign("1", result={"words": 3})]) == [None]
    assert catalogue.record(AGENT, [foreign("1", token=2)]) != [None], "the record is theirs now"
    (row,) = catalogue.results("count_words")
    assert (row["record_id"], row["agent_id"], row["result"]) == ("1", "other", {"words": 3})
    assert catalogue.paths({("count_words", "1"), (ANALYSIS, "1")}) == {(ANALYSIS, "1"): "/m/a"}
    assert {work.service: work.slowest_path for work in catalogue.work_since(0.0)}["count_words"] is None


def test_results_of_other_tasks_are_counted_by_task_and_read_by_record(catalogue: Catalogue) -> None:
    scan(catalogue, "/m", [seen("/m/a")])
    catalogue.record(AGENT, [result(ANALYSIS, 1, "/m/a", bpm=120)])
    assert catalogue.progress().others == {}
    entries = [foreign(f"{number:02}") for number in range(12)] + [foreign("x/\u00e9:1", service="rank_words")]
    assert catalogue.record(AGENT, entries) == [None] * 13
    assert catalogue.record(AGENT, [foreign("05", version="2", outcome="rejected", reason="no-words")]) == [None]
    assert catalogue.progress().others == {"count_words": 13, "rank_words": 1}
    assert [row["record_id"] for row in catalogue.results("count_words", limit=3, offset=4)] == ["04", "05", "05"]
    assert [row["outcome"] for row in catalogue.results("count_words", "05")] == ["done", "rejected"]
    assert len(catalogue.results("rank_words", "x/\u00e9:1")) == 1
    assert catalogue.results("nobody") == []
    assert len(catalogue.results(ANALYSIS)) == 1


HOSTILE = [
    {"token": -1},
    {"token": 2**63},
    {"attempts": 2**70},
    {"record_id": ""},
    {"record_id": "x" * 2000},
    {"version": "nul\0"},
    {"service": "lone \ud800"},
    {"finished_at": float("nan")},
    {"started_at": float("inf")},
    {"part": 0},
    {"service": "scan_directory", "record_id": "nobody-asked"},
]


@pytest.mark.parametrize("fields", HOSTILE, ids=lambda fields: "-".join(fields))
def test_one_bad_entry_spoils_no_other(catalogue: Catalogue, fields: dict[str, Any]) -> None:
    scan(catalogue, "/m", [seen("/m/a"), seen("/m/b")])
    good = [result(ANALYSIS, 1, "/m/a", bpm=120), result(ANALYSIS, 2, "/m/b", bpm=121)]
    bad = result(ANALYSIS, 1, "/m/a").model_copy(update=fields)
    before, refusal, after = catalogue.record(AGENT, [good[0], bad, good[1]])
    assert before is None
    assert after is None
    assert refusal is not None
    assert [track.bpm for track in catalogue.tracks(sort="path")] == [120, 121]


def test_results_may_hold_anything_that_json_can(catalogue: Catalogue) -> None:
    scan(catalogue, "/m", [seen("/m/a")])
    wild: dict[str, Any] = {
        "bpm": float("nan"),
        "duration": 10**400,
        "loudness": True,
        "danceability": "1",
        "key": ["A"],
        "camelot": "8A\0\n",
        "scale": "\ud800",
    }
    entry = result(ANALYSIS, 1, "/m/a", reason="odd \ud800", worker="\udcff", outcome="partial", **wild)
    tags = result(METADATA, 1, "/m/a", title="a\u202eb\x1b[31m\n c", artist="  ", album=None)
    assert catalogue.record(AGENT, [entry, tags]) == [None, None]
    [track] = catalogue.tracks()
    assert (track.bpm, track.duration, track.loudness, track.danceability, track.key) == (None,) * 5
    assert track.title == "a\ufffdb\ufffd[31m c"
    assert track.artist is None
    assert track.problems == [{"service": ANALYSIS, "outcome": "partial", "reason": "odd ?"}]


def test_a_reason_tells_no_secret(catalogue: Catalogue) -> None:
    scan(catalogue, "/m", [seen("/m/a")])
    reason = "not-audio: https://store/x?X-Amz-Signature=abc123 says no"
    catalogue.record(AGENT, [result(ANALYSIS, 1, "/m/a", outcome="rejected", reason=reason)])
    [problem] = catalogue.tracks()[0].problems
    assert problem["reason"] == "not-audio: https://store/x?X-Amz-Signature=[redacted] says no"
    assert "abc123" not in str(stored(catalogue))


def test_an_entry_that_the_hub_cannot_digest_does_not_hold_up_the_others(
    catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan(catalogue, "/m", [seen("/m/a"), seen("/m/b")])
    real = derived.track_row

    def fragile(file_id: int, *rest: Any) -> dict[str, Any]:
        if file_id == 1:
            raise ArithmeticError("a bug")
        return real(file_id, *rest)

    monkeypatch.setattr(derived, "track_row", fragile)
    bad, good = catalogue.record(AGENT, [result(ANALYSIS, 1, "/m/a"), result(ANALYSIS, 2, "/m/b", bpm=99)])
    assert good is None
    assert bad is not None
    assert "ArithmeticError" in bad.reason
    assert [row["record_id"] for row in stored(catalogue)][1:] == ["2"]


def test_an_agent_reports_about_its_own_records_only(catalogue: Catalogue) -> None:
    catalogue.register_agent("other", "t")
    scan_id = scan(catalogue, "/m", [seen("/m/a")])
    task = Entry(service="router", record_id="doc", version="1", token=1, outcome="done", result={})
    assert catalogue.record(AGENT, [task]) == [None]
    stolen = [
        result(ANALYSIS, 1, "/m/a", token=9),
        task.model_copy(update={"token": 9}),
        Entry(service="scan_directory", record_id=scan_id, version=scan_id, token=9, outcome="done", result={}),
    ]
    answers = catalogue.record("other", stolen)
    assert all(answer is not None and "another agent" in answer.reason for answer in answers)
    assert catalogue.tracks()[0].pending == [METADATA, FINGERPRINT, ANALYSIS]


def test_results_of_a_content_hold_for_its_copies(catalogue: Catalogue) -> None:
    scan(catalogue, "/m", [seen("/m/a", "same"), seen("/m/b", "same")])
    catalogue.record(AGENT, [result(ANALYSIS, 1, "same", bpm=120)])
    assert [track.bpm for track in catalogue.tracks()] == [120, 120]
    assert (ANALYSIS, "2") not in owed(catalogue)
    scan(catalogue, "/m", [seen("/m/moved", "same")])
    assert [(track.path, track.bpm) for track in catalogue.tracks()] == [("/m/moved", 120)]


def test_a_failure_holds_for_its_own_file_only(catalogue: Catalogue) -> None:
    scan(catalogue, "/m", [seen("/m/a", "same"), seen("/m/b", "same")])
    catalogue.record(AGENT, [result(ANALYSIS, 1, "same", outcome="rejected", reason="not-audio: noise")])
    assert {key for key in owed(catalogue) if key[0] == ANALYSIS} == {(ANALYSIS, "2")}
    assert catalogue.tracks(sort="path")[0].problems == [
        {"service": ANALYSIS, "outcome": "rejected", "reason": "not-audio: noise"}
    ]


@pytest.mark.parametrize(
    "reason", ["not-found: /m/a", "changed-since-scan", f"quarantined: {ENDED_ITS_PROCESS} 3 times"]
)
def test_a_file_that_was_missing_or_whose_workers_died_is_owed_again_once_a_scan_sees_it(
    catalogue: Catalogue, reason: str
) -> None:
    scan(catalogue, "/m", [seen("/m/a"), seen("/m/b")])
    for service in (METADATA, FINGERPRINT, ANALYSIS):
        catalogue.record(AGENT, [result(service, record, f"/m/{name}") for record, name in ((1, "a"), (2, "b"))])
    failed = result(ANALYSIS, 1, "/m/a", token=2, outcome="rejected", reason=reason)
    assert catalogue.record(AGENT, [failed]) == [None]
    assert owed(catalogue) == set()
    scan(catalogue, "/m", [seen("/m/a"), seen("/m/b")])
    assert owed(catalogue) == {(ANALYSIS, "1")}
    assert catalogue.record(AGENT, [failed]) == [None], "found missing again, after it was seen"
    assert owed(catalogue) == set()


WRITER = """
import sys
from pathlib import Path
from agent.hub.catalogue import Catalogue
from tests.hub.deliveries import AGENT, TOKEN, part, result, scan, seen
catalogue = Catalogue(Path(sys.argv[1]))
catalogue.register_agent(AGENT, TOKEN)
[scan_id] = catalogue.request_scans(AGENT, ["/m"])
batch = 0
while True:
    names = [f"/m/{batch}-{i}" for i in range(20)]
    entries = [part(scan_id, [seen(name) for name in names], number=batch)]
    entries += [result("process_file", batch * 20 + i + 1, name, bpm=100.0) for i, name in enumerate(names)]
    assert catalogue.record(AGENT, entries) == [None] * 21
    print(batch, flush=True)
    batch += 1
"""


@pytest.mark.parametrize("seed", range(2))
def test_what_was_acknowledged_survives_kill_9(tmp_path: Path, seed: int) -> None:
    root = Path(__file__).resolve().parents[2]
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, cwd=root)
    assert writer.stdout is not None
    writer.stdout.readline()
    time.sleep(random.Random(seed).uniform(0.05, 0.8))
    writer.send_signal(signal.SIGKILL)
    lines = writer.stdout.read().split()
    writer.stdout.close()
    writer.wait()
    acknowledged = int(lines[-1]) + 1 if lines else 1
    with Catalogue(tmp_path) as catalogue:
        found = catalogue.tracks(sort="path")
        assert len(found) >= acknowledged * 20
        assert len(found) % 20 == 0, "a batch is there whole or not at all"
        assert {track.bpm for track in found} == {100.0}
        assert len(stored(catalogue)) == len(found)
        assert not {key for key in owed(catalogue) if key[0] == ANALYSIS}
        with catalogue._database.read() as connection:
            assert connection.exec_driver_sql("PRAGMA integrity_check").scalar_one() == "ok"
