"""Wrappers of about 50 lines that put a processing library on a lane: see docs/adding-a-pipeline.md."""

from agent.processors.base import ApiKeyManager, BaseProcessor, Record

__all__ = ["ApiKeyManager", "BaseProcessor", "Record"]
