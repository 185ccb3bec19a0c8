"""What surrounds every task: claim, lease, settling, retries, circuits, dead letters, and the outbox with its relay."""
