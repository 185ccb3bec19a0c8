"""What an operator types at a running system: where a job is, what was set aside, what is held and why."""
