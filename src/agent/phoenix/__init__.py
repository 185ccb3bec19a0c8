"""What surrounds every task: the outbox and its relay here; claim, lease, settle, retry and breaker join them."""
