"""The engine: lanes, workers, the hub, the commands. It imports from `pipelines`, never the other way."""
