"""The watcher: folders are watched, and the hub is asked for a scan of what has changed in them and settled."""
