"""`python -m tests.agent.io_worker`: a worker as it is, but that a dead one's jobs are taken over in seconds."""

from __future__ import annotations

from agent.worker import worker
from tests.chaos.tasks import hurry

if __name__ == "__main__":
    hurry(lease=2.0, sweep=0.5, wedged=60.0)
    worker()
