"""The hub's templates, escaped by default."""

from __future__ import annotations

from pathlib import Path

from starlette.templating import Jinja2Templates

templates = Jinja2Templates(directory=Path(__file__).parent / "templates")
templates.env.trim_blocks = templates.env.lstrip_blocks = True
