"""What is written of a run's end."""

from __future__ import annotations

from saq.job import Job

from agent.phoenix.endings import version_of
from agent.phoenix.runs import Run


def test_the_version_of_arguments_is_the_same_in_every_release() -> None:
    reply = [b"saq:job:q:work:1", b"{}", b"work", b"1", b"7", None, None]
    run = Run(reply, claimed_before=0.0, lease=15.0)
    run.job = Job("work", kwargs={"b": [1, 2.5, None], "a": {"d": "é", "c": 1e16}})
    stored = "e2e7b8b64d7000785aac7406ed970c8ae6d5c51826d7cd048032adc7d484ca79"
    assert version_of(run) == stored, "markers name it: done jobs would run again"
