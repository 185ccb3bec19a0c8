"""The page of duplicates: what it says, what one hears, and that nothing else on the machine is handed out."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner
from playwright.async_api import async_playwright, expect

from agent.duplicates import duplicates
from agent.hub.catalogue import Catalogue
from agent.hub.file_tasks import FINGERPRINT, METADATA
from agent.hub.limits import HEADERS
from agent.hub.listening import media_type
from agent.settings import load_settings
from pipelines.music.fingerprint import fingerprint
from pipelines.music.metadata import read_metadata
from pipelines.payload import encode_path
from tests.hub.deliveries import AGENT, result, scan, seen
from tests.hub.test_page import ATTACK, CHROMIUM
from tests.pipelines.conftest import Make


@pytest.fixture(scope="session")
def tunes(make: Make) -> dict[str, Path]:
    """A FLAC, its MP3, a clip of it, a faster one; and something else."""
    sound = "aevalsrc='sin(2*PI*t*(220+40*floor(mod(t*2.7,9))))*0.4+0.3*sin(2*PI*t*(330+30*floor(mod(t*1.3,7))))'"
    whole = make("whole.flac", "-f", "lavfi", "-i", sound, "-t", "60")
    return {
        "whole.flac": whole,
        "whole.mp3": make("whole.mp3", "-i", whole, "-b:a", "96k"),
        "clip.mp3": make("clip.mp3", "-ss", "10", "-t", "15", "-i", whole),
        "faster.mp3": make("faster.mp3", "-i", whole, "-af", "atempo=1.05"),
        "other.ogg": make("other.ogg", "-f", "lavfi", "-i", "anoisesrc=a=0.1:seed=1", "-t", "30"),
    }


@pytest.fixture
def shelf(catalogue: Catalogue, tunes: dict[str, Path], tmp_path: Path) -> Path:
    """The tunes in a folder, scanned, with the results that the tasks give; one file is there twice."""
    folder = tmp_path / "music"
    folder.mkdir()
    names = [*tunes, f"again \udcff {ATTACK.replace('/', ' ')}.mp3"]  # a byte that is not UTF-8
    for name in names:
        shutil.copy(tunes.get(name, tunes["whole.mp3"]), folder / name)
    rows = [seen(encode_path(folder / name), "whole.mp3" if "again" in name else name, 100) for name in names]
    scan(catalogue, encode_path(folder), rows)
    for number, name in enumerate(names[:-1], 1):
        printed = fingerprint(folder / name).model_dump(exclude={"outcome", "reason"})
        tags = read_metadata(folder / name).model_dump(exclude={"outcome", "reason", "title", "artist"})
        entries = [
            result(FINGERPRINT, number, name, **printed),
            result(METADATA, number, name, **tags, title=f"{name} {ATTACK}"),
        ]
        assert catalogue.record(AGENT, entries) == [None, None]
    catalogue.compare_prints(at_once=True)
    return folder


def test_the_command_shows_the_best_copy_first_and_deletes_nothing(
    catalogue: Catalogue, shelf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PHAZE_DATA_DIR", str(catalogue.path.parent))
    assert load_settings().data_dir == catalogue.path.parent
    before = sorted(shelf.iterdir())
    told = CliRunner().invoke(duplicates, ["--related"], catch_exceptions=False).output
    assert "best: lossless" in told
    assert "1 recording in 3 files" in told
    assert "clip.mp3 is 0:10 to 0:25 of" in told
    assert "of its tempo" in told
    said = json.loads(CliRunner().invoke(duplicates, ["--json"], catch_exceptions=False).output)
    [group] = said["groups"]
    assert (group["kind"], group["reason"], group["keep"]) == ("same", "lossless", 1)
    assert [member["lossless"] for member in group["members"]] == [True, False, False]
    assert [member["channels"] for member in group["members"]] == [1, 1, 1]
    assert {pair["kind"] for pair in said["pairs"]} == {"part", "tempo"}
    paths = CliRunner().invoke(duplicates, ["--paths"], catch_exceptions=False).stdout_bytes.splitlines()
    assert CliRunner().invoke(duplicates, ["-0"]).stdout_bytes.split(b"\0") == [*paths, b""]
    assert len(paths) == 2
    assert all(os.path.isfile(path) and not path.endswith(b".flac") for path in paths)  # noqa: PTH113 - bytes
    assert CliRunner().invoke(duplicates, ["--paths", "--json"]).exit_code == 2
    assert sorted(shelf.iterdir()) == before


async def test_the_page_is_text_whatever_tags_hold_and_works_without_scripts(
    client: httpx.AsyncClient, shelf: Path
) -> None:
    page = await client.get("/duplicates")
    assert page.status_code == 200
    assert {name: page.headers.get(name) for name in HEADERS} == HEADERS
    assert "<script>document" not in page.text
    assert "best: lossless" in page.text
    assert page.text.count("<audio") == 3 + 2 * len((await client.get("/api/duplicates")).json()["pairs"])
    said = (await client.get("/api/duplicates", params={"page": "x"})).json()
    assert (said["total"], said["pages"], said["groups"][0]["keep"]) == (1, 1, 1)
    assert (await client.get("/duplicates", params={"page": 9})).status_code == 200


async def test_an_empty_library_has_a_page(client: httpx.AsyncClient) -> None:
    assert "No duplicates." in (await client.get("/duplicates")).text


async def test_a_file_is_heard_in_ranges(client: httpx.AsyncClient, shelf: Path) -> None:
    data = (shelf / "whole.mp3").read_bytes()
    whole = await client.get("/files/2/audio")
    assert (whole.status_code, whole.content, whole.headers["content-type"]) == (200, data, "audio/mpeg")
    assert whole.headers["accept-ranges"] == "bytes"
    part = await client.get("/files/2/audio", headers={"Range": "bytes=1000-1999"})
    assert (part.status_code, part.content) == (206, data[1000:2000])
    assert part.headers["content-range"] == f"bytes 1000-1999/{len(data)}"
    tail = await client.get("/files/2/audio", headers={"Range": "bytes=-10"})
    assert tail.content == data[-10:]
    assert (await client.get("/files/2/audio", headers={"Range": f"bytes={len(data)}-"})).status_code == 416
    assert (await client.head("/files/2/audio")).headers["content-length"] == str(len(data))
    assert {name: whole.headers.get(name) for name in HEADERS} == HEADERS
    refused = await client.get("/files/2/audio", headers={"Host": "evil.example"})
    assert refused.status_code == 400


async def test_hearing_leaves_no_file_open(client: httpx.AsyncClient, shelf: Path) -> None:
    def opened() -> int:
        return sum(str(link.resolve()).startswith(str(shelf)) for link in Path("/proc/self/fd").iterdir())

    for headers in ({}, {"Range": "bytes=0-9"}, {"Range": "bytes=999999999-"}):
        await client.get("/files/1/audio", headers=headers)
    async with client.stream("GET", "/files/1/audio") as answer:
        async for _ in answer.aiter_bytes(1000):
            break
    for _ in range(100):
        if not opened():
            break
        await asyncio.sleep(0.05)
    assert opened() == 0


async def test_nothing_but_files_of_the_catalogue_is_handed_out(
    client: httpx.AsyncClient, shelf: Path, tmp_path: Path
) -> None:
    secret = tmp_path / "secret.mp3"
    secret.write_bytes(b"secret")
    for path in ("/files/99/audio", "/files/0/audio", "/files/-1/audio", "/files/1/../../secret.mp3",
                 f"/files/{2**63}/audio", f"/files/{'9' * 30}/audio", "/files/%2e%2e%2fsecret/audio"):  # fmt: skip
        assert (await client.get(path)).status_code == 404, path
    file = shelf / "whole.mp3"
    file.unlink()
    assert (await client.get("/files/2/audio")).status_code == 404, "gone since the scan"
    file.symlink_to(secret)
    assert (await client.get("/files/2/audio")).status_code == 404, "a link to elsewhere"
    file.unlink()
    os.mkfifo(file)
    assert (await client.get("/files/2/audio")).status_code == 404, "a pipe"
    shelf.rename(tmp_path / "moved")
    shelf.symlink_to(tmp_path / "moved")
    assert (await client.get("/files/1/audio")).status_code == 200, "the root itself was asked for, link or not"


async def test_a_folder_that_became_a_link_hands_out_nothing(
    client: httpx.AsyncClient, catalogue: Catalogue, tmp_path: Path
) -> None:
    inner, outside = tmp_path / "m" / "inner", tmp_path / "outside"
    inner.mkdir(parents=True)
    outside.mkdir()
    for folder in (inner, outside):
        (folder / "a.mp3").write_bytes(b"x")
    scan(catalogue, encode_path(tmp_path / "m"), [seen(encode_path(inner / "a.mp3"))])
    assert (await client.get("/files/1/audio")).content == b"x"
    shutil.rmtree(inner)
    inner.symlink_to(outside)
    assert (await client.get("/files/1/audio")).status_code == 404


def test_only_sound_is_called_anything() -> None:
    assert media_type("a.FLAC") == "audio/flac"
    assert media_type("a.mp3") == "audio/mpeg"
    for name in ("a.html", "a.svg", "a", ".mp3", "a.mp4", "a.mp3.js"):
        assert media_type(name) == "application/octet-stream", name


@pytest.mark.skipif(shutil.which("chromium") is None and not os.environ.get("CI"), reason="needs chromium")
async def test_one_looks_and_listens_in_a_browser(hub_url: str, shelf: Path) -> None:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=[
                "--no-sandbox",
                "--headless=new",
                "--disable-dev-shm-usage",
                "--autoplay-policy=no-user-gesture-required",
            ],
        )
        page = await browser.new_page(viewport={"width": 1280, "height": 900})
        complaints: list[str] = []
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        await page.goto(hub_url)
        await page.get_by_role("link", name="Duplicates").click()
        await expect(page.locator("tr.keep")).to_have_count(1)
        await expect(page.locator("tr.keep")).to_contain_text("lossless")
        assert await page.title() == "Duplicates · phaze"
        assert await page.locator("td img, td script").count() == 0
        for number in range(3):
            played = (
                await page.locator("audio")
                .nth(number)
                .evaluate(
                    """async audio => { audio.muted = true; audio.currentTime = 20; await audio.play();
                   await new Promise(done => { audio.ontimeupdate = () => audio.currentTime > 20.1 && done(); });
                   audio.pause(); return [audio.duration, audio.error]; }"""
                )
            )
            assert played[0] == pytest.approx(60, abs=1)
            assert played[1] is None
        if folder := os.environ.get("SHOTS"):
            await page.screenshot(path=f"{folder}/duplicates.png", full_page=True)
        for width in (320, 600, 1000):
            await page.set_viewport_size({"width": width, "height": 800})
            assert await page.evaluate("document.documentElement.scrollWidth") <= width
            if folder:
                await page.screenshot(path=f"{folder}/duplicates-{width}.png", full_page=True)
        await browser.close()
    assert complaints == []
