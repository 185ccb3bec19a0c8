"""Local documents: only below the allowed folders, whatever links say; and what is held stays what was judged."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

import pytest

from pipelines.documents.addresses import networks_of
from pipelines.documents.fetch import Fetcher
from pipelines.documents.source import downloaded, local
from pipelines.errors import InputRejected, NotGranted, RecordNotFoundError
from tests.pipelines.documents.site import ok, serving

PDF = b"%PDF-1.7\n" + b"x" * 5000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "documents"
    (folder / "2024").mkdir(parents=True)
    (folder / "2024" / "a.pdf").write_bytes(PDF)
    (tmp_path / "secret.pdf").write_bytes(PDF)
    return folder


async def content(path: Path, *roots: Path, most: int = 1 << 20) -> bytes:
    async with local(path, roots, most) as held:
        found = held.path.read_bytes()
        assert held.size == len(found)
        return found


async def reason(path: Path, *roots: Path, most: int = 1 << 20) -> str:
    with pytest.raises(InputRejected) as error:
        await content(path, *roots, most=most)
    return error.value.reason


async def test_a_document_below_a_root_is_read_and_one_beside_it_is_not(root: Path) -> None:
    assert await content(root / "2024" / "a.pdf", Path("/nowhere"), root) == PDF
    assert await reason(root.parent / "secret.pdf", root) == "outside-roots"
    assert await reason(root / ".." / "secret.pdf", root) == "outside-roots"
    assert await reason(Path("2024/a.pdf"), root) == "outside-roots"
    assert await reason(Path(f"{root}-more/a.pdf"), root) == "outside-roots"


async def test_a_link_counts_as_what_it_leads_to(root: Path) -> None:
    (root / "inside.pdf").symlink_to(root / "2024" / "a.pdf")
    (root / "outside.pdf").symlink_to(root.parent / "secret.pdf")
    (root / "folder").symlink_to(root.parent)
    (root.parent / "root").symlink_to(root)
    assert await content(root / "inside.pdf", root) == PDF
    assert await content(root.parent / "root" / "2024" / "a.pdf", root) == PDF
    assert await content(root / "2024" / "a.pdf", root.parent / "root") == PDF
    assert await reason(root / "outside.pdf", root) == "outside-roots"
    assert await reason(root / "folder" / "secret.pdf", root) == "outside-roots"


async def test_without_roots_no_local_document_is_read_and_the_remedy_is_named(root: Path) -> None:
    with pytest.raises(NotGranted, match="PHAZE_DOCUMENT_ROOTS"):
        await content(root / "2024" / "a.pdf")


async def test_what_is_no_file_or_no_pdf_or_too_large_is_rejected(root: Path) -> None:
    os.mkfifo(root / "pipe.pdf")
    (root / "page.pdf").write_bytes(b"<html>")
    (root / "empty.pdf").touch()
    assert await reason(root / "2024", root) == "not-a-file"
    assert await reason(root / "pipe.pdf", root) == "not-a-file"
    assert await reason(root / "page.pdf", root) == "not-a-pdf"
    assert await reason(root / "empty.pdf", root) == "empty"
    assert await reason(root / "2024" / "a.pdf", root, most=5000) == "too-large"


async def test_a_file_that_is_gone_is_a_dead_letter_and_an_unmounted_root_is_not(root: Path) -> None:
    with pytest.raises(RecordNotFoundError):
        await content(root / "2023" / "a.pdf", root)
    empty = root.parent / "empty"
    empty.mkdir()
    for gone in (empty, root.parent / "unmounted"):
        with pytest.raises(FileNotFoundError):
            await content(gone / "a.pdf", gone)


async def test_what_is_read_is_what_was_judged_even_if_the_path_leads_elsewhere_by_then(root: Path) -> None:
    path = root / "2024" / "a.pdf"
    async with local(path, [root], 1 << 20) as held:
        path.unlink()
        path.symlink_to(root.parent / "secret.pdf")
        program = ["cat", str(held.path)]  # another process, as a child is
        process = await asyncio.create_subprocess_exec(*program, stdout=asyncio.subprocess.PIPE)
        assert (await process.communicate())[0] == PDF


async def test_a_download_has_no_name_that_could_be_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    async with serving() as site:
        site.answers["/"] = ok(PDF)
        async with downloaded(site.url(), Fetcher(networks_of("127.0.0.1/32"))) as held:
            assert held.path.read_bytes() == PDF
            assert not list(tmp_path.iterdir())
        assert not held.path.exists()
