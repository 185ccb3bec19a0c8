"""Paths survive as bytes."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pipelines.music.scan import ScanPayload
from pipelines.payload import decode_path, display_path, encode_path

names = st.binary(min_size=1, max_size=255).filter(
    lambda name: b"\0" not in name and b"/" not in name and name not in (b".", b"..")
)


@given(st.lists(names, min_size=1, max_size=5))
def test_any_path_survives_json_and_finds_the_same_bytes(parts: list[bytes]) -> None:
    path = b"/" + b"/".join(parts)
    sent = json.loads(json.dumps(encode_path(path)))
    assert sent.isascii()
    assert os.fsencode(decode_path(sent)) == path
    assert display_path(sent).isprintable()


def test_a_field_that_only_a_newer_producer_knows_is_left_out() -> None:
    assert ScanPayload.model_validate({"version": "1", "root": "/m", "shiny": "new"}) == ScanPayload(
        version="1", root="/m"
    )
    with pytest.raises(ValidationError, match="root"):
        ScanPayload.model_validate({"version": "1"})
