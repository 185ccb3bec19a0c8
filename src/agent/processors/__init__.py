"""Wrappers of about 50 lines that put a processing library on a lane."""
