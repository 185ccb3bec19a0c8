"""Approved batches in the catalogue: what is filled in, what is owed, how the files follow, and the way back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from agent.hub.batches import BatchRefused
from agent.hub.catalogue import Catalogue
from agent.hub.file_tasks import ANALYSIS, BATCH, FILE_TASKS, METADATA, use_engine
from agent.phoenix.outbox import Entry
from pipelines.files.execute_approved_batch import BatchPayload, Item, Move
from pipelines.files.proposals import Proposal, report_of
from pipelines.payload import encode_path
from tests.hub.deliveries import AGENT, TOKEN, owed, result, scan, seen, sha


def moved(source: str, destination: str, **more: Any) -> dict[str, Any]:
    return {"action": "move", "source": source, "destination": destination, **more}


def outcome(proposal: Proposal, **more: Any) -> Item:
    """As if the agent had done it."""
    path = proposal.destination if isinstance(proposal, Move) else proposal.source
    common = {"sha256_before": proposal.sha256, "sha256": proposal.sha256, "size": 7, "mtime_ns": 9, **more}
    return Item(proposal_id=proposal.proposal_id, action=proposal.action, source=proposal.source, path=path, **common)


def ended(batch_id: str, payload: BatchPayload, items: list[Item], token: int = 1) -> Entry:
    report = report_of(items)
    return Entry(
        service=BATCH,
        record_id=batch_id,
        version=payload.version,
        token=token,
        outcome=report.outcome,
        reason=report.reason,
        result=report.model_dump(mode="json"),
    )


def do(catalogue: Catalogue, *proposals: dict[str, Any], undoes: str | None = None, **more: Any) -> str:
    """Ask for a batch and report all of it done; its id."""
    batch_id, payload = catalogue.request_batch(AGENT, {"proposals": list(proposals)}, undoes=undoes)
    assert batch_id is not None
    items = [outcome(proposal, **more) for proposal in payload.proposals]
    assert catalogue.record(AGENT, [ended(batch_id, payload, items)]) == [None]
    return batch_id


def ids(catalogue: Catalogue) -> dict[str, int]:
    return {track.encoded_path: track.id for track in catalogue.tracks()}


def test_what_is_left_out_comes_from_the_catalogue(catalogue: Catalogue) -> None:
    odd = encode_path(b"/m/\xff b")
    scan(catalogue, "/m", [seen("/m/a"), seen(odd)])
    request = {
        "proposals": [
            moved("/m/%61", "/m/c"),
            {"action": "tag", "source": "/m/c", "tags": {"title": ["T"]}},
            moved("/m/c", "/m/d"),
            moved(odd, "/m/e", sha256=sha("mine"), proposal_id="own"),
        ]
    }
    batch_id, payload = catalogue.request_batch(AGENT, request, dry_run=True)
    assert (batch_id, payload.roots) == (None, ["/m"])
    first, second, third, own = payload.proposals
    assert (first.source, first.sha256, first.size, first.proposal_id) == ("/m/a", sha("/m/a"), 1000, "1")
    assert (second.sha256, second.follows) == (sha("/m/a"), None)
    assert (third.sha256, third.follows) == (sha("/m/a"), "2"), "what the tag write leaves is not known yet"
    assert (own.sha256, own.proposal_id) == (sha("mine"), "own")
    assert catalogue.batches(10) == []


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({}, "proposals"),
        ({"proposals": ["x"]}, "JSON object"),
        ({"proposals": []}, "at least 1"),
        ({"proposals": [moved("/m/nope", "/m/x")]}, "not in the catalogue"),
        ({"proposals": [moved("/m/a", "/m/x", shiny=1)]}, "shiny"),
        ({"proposals": [{"action": "delete", "source": "/m/a"}]}, "delete"),
        ({"proposals": [moved("/m/a", "/m/x", proposal_id="1"), moved("/m/a", "/m/y", proposal_id="1")]}, "its own"),
        ({"proposals": [moved("/m/a", "/m/x")], "roots": "all"}, "roots"),
    ],
)
def test_what_cannot_be_a_batch_is_refused_with_the_reason(
    catalogue: Catalogue, request_: dict[str, Any], said: str
) -> None:
    scan(catalogue, "/m", [seen("/m/a")])
    with pytest.raises(BatchRefused, match=said):
        catalogue.request_batch(AGENT, request_)
    assert catalogue.batches(10) == []


def test_a_batch_is_owed_until_it_ends_and_the_same_again_meanwhile_is_the_same(catalogue: Catalogue) -> None:
    scan(catalogue, "/m", [seen("/m/a")])
    request = {"proposals": [moved("/m/a", "/m/b")]}
    batch_id, payload = catalogue.request_batch(AGENT, request)
    assert batch_id is not None
    assert catalogue.request_batch(AGENT, request)[0] == batch_id
    assert (BATCH, batch_id) in owed(catalogue)
    [debt] = catalogue.owed(AGENT, BATCH, 10)
    assert debt.payload() == payload
    catalogue.record(AGENT, [ended(batch_id, payload, [outcome(payload.proposals[0])])])
    assert (BATCH, batch_id) not in owed(catalogue)
    batch = catalogue.batch(batch_id)
    assert batch is not None
    assert (batch.state, [item.outcome for item in batch.details]) == ("done", ["done"])


def test_a_moved_file_keeps_its_id_and_its_results_and_the_next_scan_sees_nothing_new(catalogue: Catalogue) -> None:
    scan(catalogue, "/m", [seen("/m/a"), seen("/m/b")])
    catalogue.record(
        AGENT,
        [
            result(service, number, f"/m/{name}", bpm=120)
            for service in FILE_TASKS
            for number, name in ((1, "a"), (2, "b"))
        ],
    )
    assert owed(catalogue) == set()
    do(catalogue, moved("/m/a", "/m/t"), moved("/m/b", "/m/a"), moved("/m/t", "/m/b"))
    assert ids(catalogue) == {"/m/b": 1, "/m/a": 2}
    assert owed(catalogue) == set()
    scan(catalogue, "/m", [seen("/m/a", "/m/b"), seen("/m/b", "/m/a")])
    assert ids(catalogue) == {"/m/b": 1, "/m/a": 2}
    assert owed(catalogue) == set()
    assert catalogue.scans_since(0)[-1].passed_over["gone"] == 0


def test_a_file_that_a_scan_saw_at_its_new_place_first_keeps_its_old_id(catalogue: Catalogue) -> None:
    scan(catalogue, "/m", [seen("/m/a"), seen("/m/x")])
    batch_id, payload = catalogue.request_batch(AGENT, {"proposals": [moved("/m/a", "/m/b")]})
    assert batch_id is not None
    scan(catalogue, "/m", [seen("/m/b", "/m/a"), seen("/m/x")])
    assert ids(catalogue) == {"/m/b": 3, "/m/x": 2}
    catalogue.record(AGENT, [ended(batch_id, payload, [outcome(payload.proposals[0])])])
    assert ids(catalogue) == {"/m/b": 1, "/m/x": 2}
    scan(catalogue, "/m", [seen("/m/b", "/m/a"), seen("/m/x")])
    assert ids(catalogue) == {"/m/b": 1, "/m/x": 2}


def test_a_result_that_comes_twice_or_late_moves_nothing_a_second_time(catalogue: Catalogue) -> None:
    scan(catalogue, "/m", [seen("/m/a")])
    batch_id, payload = catalogue.request_batch(AGENT, {"proposals": [moved("/m/a", "/m/b")]})
    assert batch_id is not None
    entry = ended(batch_id, payload, [outcome(payload.proposals[0])])
    catalogue.record(AGENT, [entry, entry])
    scan(catalogue, "/m", [seen("/m/b", "/m/a"), seen("/m/a", "new")])
    before = ids(catalogue)
    again = ended(batch_id, payload, [outcome(payload.proposals[0])], token=2)
    assert catalogue.record(AGENT, [entry, again]) == [None, None]
    assert ids(catalogue) == before


@pytest.fixture(params=[None, "http://audfprint:8001"], ids=["no engine", "an engine"])
def engine(request: pytest.FixtureRequest) -> Iterator[str | None]:
    """Another fingerprint engine that every file is owed to, or none."""
    use_engine(request.param)
    yield request.param
    use_engine(None)


@pytest.mark.usefixtures("engine")
def test_new_tags_are_read_again_and_the_sound_is_not_listened_to_again(catalogue: Catalogue) -> None:
    scan(catalogue, "/m", [seen("/m/a")])
    catalogue.record(AGENT, [result(service, 1, "/m/a", bpm=120, finished_at=100.0) for service in FILE_TASKS])
    do(catalogue, {"action": "tag", "source": "/m/a", "tags": {"title": ["T"]}}, sha256=sha("new"), old={"x": 1})
    assert owed(catalogue) == {(METADATA, "1")}
    assert catalogue.tracks()[0].bpm == 120
    assert {work.service: work.jobs for work in catalogue.work_since(50)}[ANALYSIS] == 1, "nothing was done anew"
    scan(catalogue, "/m", [seen("/m/a", "new")])
    assert owed(catalogue) == {(METADATA, "1")}
    assert catalogue.tracks()[0].pending == [METADATA]


def test_an_undo_takes_back_the_last_first_and_only_what_was_done(catalogue: Catalogue) -> None:
    scan(catalogue, "/m", [seen("/m/a"), seen("/m/b")])
    request = {
        "proposals": [
            moved("/m/a", "/m/new/c"),
            {"action": "tag", "source": "/m/new/c", "tags": {"title": ["T"]}},
            moved("/m/b", "/m/taken"),
        ]
    }
    batch_id, payload = catalogue.request_batch(AGENT, request)
    assert batch_id is not None
    first, second, third = payload.proposals
    items = [
        outcome(first, made=["/m/new"]),
        outcome(second, sha256=sha("tagged"), old={"family": "id3", "keys": {}}),
        outcome(third, outcome="failed", reason="destination-exists"),
    ]
    with pytest.raises(BatchRefused, match="not over yet"):
        catalogue.request_batch(AGENT, {}, undoes=batch_id)
    catalogue.record(AGENT, [ended(batch_id, payload, items)])
    undo_id, back = catalogue.request_batch(AGENT, {}, undoes=batch_id)
    assert undo_id is not None
    restore, move = back.proposals
    assert (restore.action, restore.source, restore.sha256) == ("restore", "/m/new/c", sha("tagged"))
    assert isinstance(move, Move)
    assert (move.source, move.destination, move.prune, move.follows) == ("/m/new/c", "/m/a", ["/m/new"], "2")
    assert catalogue.request_batch(AGENT, {}, undoes=batch_id)[0] == undo_id, "while it is under way it is the same"
    half = [outcome(restore), outcome(move, outcome="failed", reason="destination-exists")]
    catalogue.record(AGENT, [ended(undo_id, back, half)])
    _, rest = catalogue.request_batch(AGENT, {}, undoes=batch_id, dry_run=True)
    assert [proposal.proposal_id for proposal in rest.proposals] == ["1"]
    do(catalogue, undoes=batch_id)
    with pytest.raises(BatchRefused, match="nothing is left"):
        catalogue.request_batch(AGENT, {}, undoes=batch_id)
    for nobody in ("bnope", "1"):
        with pytest.raises(BatchRefused, match="no batch"):
            catalogue.request_batch(AGENT, {}, undoes=nobody)


def test_another_agents_batch_is_neither_undone_nor_reported(catalogue: Catalogue) -> None:
    scan(catalogue, "/m", [seen("/m/a")])
    catalogue.register_agent("other", "t")
    batch_id, payload = catalogue.request_batch(AGENT, {"proposals": [moved("/m/a", "/m/b")]})
    assert batch_id is not None
    [refusal] = catalogue.record("other", [ended(batch_id, payload, [outcome(payload.proposals[0])])])
    assert refusal is not None
    assert "another agent" in refusal.reason
    assert list(ids(catalogue)) == ["/m/a"]
    with pytest.raises(BatchRefused, match="no batch"):
        catalogue.request_batch("other", {}, undoes=batch_id)


def test_a_batch_that_was_set_aside_is_over_and_says_why(catalogue: Catalogue) -> None:
    scan(catalogue, "/m", [seen("/m/a")])
    batch_id, payload = catalogue.request_batch(AGENT, {"proposals": [moved("/m/a", "/m/b")]})
    assert batch_id is not None
    entry = ended(batch_id, payload, [])
    entry = entry.model_copy(update={"outcome": "rejected", "reason": "quarantined: x", "result": {"odd": 1}})
    assert catalogue.record(AGENT, [entry]) == [None]
    batch = catalogue.batch(batch_id)
    assert batch is not None
    assert (batch.state, batch.reason, batch.details) == ("rejected", "quarantined: x", [])


async def test_over_http_only_the_agent_asks_and_everybody_reads(
    client: httpx.AsyncClient, catalogue: Catalogue
) -> None:
    scan(catalogue, "/m", [seen("/m/a")])
    body = {"agent_id": AGENT, "proposals": [moved("/m/a", "/m/b")]}
    dry = (await client.post("/api/batches", json={**body, "dry_run": True})).json()
    assert dry["batch"] is None
    assert dry["payload"]["proposals"][0]["sha256"] == sha("/m/a")
    refused = await client.post("/api/batches", json={**body, "proposals": [moved("/m/nope", "/m/b")]})
    assert (refused.status_code, "not in the catalogue" in refused.json()["error"]) == (400, True)
    stranger = await client.post("/api/batches", json=body, headers={"Authorization": f"Bearer {TOKEN}x"})
    assert stranger.status_code == 403
    assert (await client.post("/api/batches", json={"proposals": []})).status_code == 400
    batch_id = (await client.post("/api/batches", json=body)).json()["batch"]
    assert (await client.post(f"/api/batches/{batch_id}/undo", json={"agent_id": AGENT})).status_code == 400
    [listed] = (await client.get("/api/batches")).json()["batches"]
    assert (listed["id"], listed["state"], listed["proposals"], listed["done"]) == (batch_id, "open", 1, 0)
    assert (await client.get(f"/api/batches/{batch_id}")).json()["details"] == []
    assert (await client.get("/api/batches/bnope")).status_code == 404


def test_an_older_catalogue_gets_the_table(tmp_path: Any) -> None:
    with Catalogue(tmp_path / "old") as old, old._database.write() as connection:
        connection.exec_driver_sql("DROP TABLE batches")
        connection.exec_driver_sql("PRAGMA user_version = 1")
    with Catalogue(tmp_path / "old") as new:
        new.register_agent(AGENT, TOKEN)
        scan(new, "/m", [seen("/m/a")])
        assert new.request_batch(AGENT, {"proposals": [moved("/m/a", "/m/b")]})[0]
        assert (ANALYSIS, "1") in owed(new)
