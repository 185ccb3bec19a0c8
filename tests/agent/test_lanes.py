"""The table decides; everything else follows from it."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest

from agent import lanes


def test_every_task_is_on_exactly_one_lane() -> None:
    names = [name for tasks in lanes.LANE_TASKS.values() for name in tasks]
    assert sorted(names) == sorted(set(names)) == sorted(lanes.AGENT_TASKS)


@pytest.mark.parametrize("name", sorted(lanes.AGENT_TASKS))
def test_every_entry_loads_and_has_a_payload_and_a_policy(name: str) -> None:
    from pipelines.context import policy_of

    function = lanes.load_task(lanes.AGENT_TASKS[name])
    if isinstance(function, type):
        assert lanes.load_checked(name) is function
        return
    assert lanes.payload_model(function).model_fields["version"].is_required()
    assert policy_of(function).timeout is not None


def test_an_agent_runs_the_lanes_for_files_for_documents_or_both_and_those_of_others_always(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lanes, "LANES", (*lanes.FILE_LANES, *lanes.DOCUMENT_LANES, "words"))
    assert lanes.lanes_for() == (*lanes.FILE_LANES, "words")
    assert lanes.lanes_for(files=False, documents=True) == (*lanes.DOCUMENT_LANES, "words")
    assert lanes.lanes_for(documents=True) == lanes.LANES


def test_queue_names_are_the_designs() -> None:
    assert lanes.queue_name("nas", "analyze") == "phaze-agent-nas-analyze"
    assert lanes.queue_name("nas", None) == lanes.base_queue_name("nas") == "phaze-agent-nas"


def test_a_key_gives_back_its_record_id_even_with_colons_in_it() -> None:
    assert lanes.record_id_of(lanes.job_key("process_file", "a:b")) == "a:b"
    assert lanes.record_id_of("0f1e2d") == "0f1e2d"


def test_an_unknown_task_names_the_tasks_there_are() -> None:
    with pytest.raises(KeyError, match=r"analyse_file is not a task; the tasks are process_file, .*push_file"):
        lanes.lane_for_task("analyse_file")


def test_adding_a_task_is_one_line_and_one_function(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "shout_library.py").write_text(
        textwrap.dedent("""
            from pipelines.context import Policy, TaskContext, task
            from pipelines.payload import Payload, TaskResult

            class Shout(Payload):
                text: str

            @task(Policy(timeout=lambda payload: 5.0))
            async def shout(ctx: TaskContext, payload: Shout) -> TaskResult:
                return TaskResult(outcome="done")
        """),
        "utf-8",
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(lanes.LANE_TASKS["meta"], "shout", "shout_library:shout")
    assert lanes.lane_for_task("shout") == "meta"
    assert "shout" in lanes.tasks_of("meta")
    model = lanes.payload_model(lanes.load_task(lanes.tasks_of("meta")["shout"]))
    assert model.__name__ == "Shout"
    sys.modules.pop("shout_library")


def test_a_function_without_a_typed_payload_is_refused_with_the_remedy() -> None:
    async def bare(ctx: object, payload: dict[str, str]) -> None:
        """No model."""

    with pytest.raises(TypeError, match="annotated with a subclass of Payload"):
        lanes.payload_model(bare)  # type: ignore[arg-type]  # the mistake under test
