"""The dashboard and the login in a real browser."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator

import pytest
import uvicorn
from playwright.async_api import Browser, Page, async_playwright, expect
from redis.asyncio import Redis
from saq.queue.redis import RedisQueue
from saq.web.starlette import saq_web
from starlette.applications import Starlette
from starlette.routing import Mount

from agent.hub.server import listen, url_of
from agent.lanes import queue_name
from agent.phoenix.queue import LaneQueue
from tests.hub.conftest import PASSWORD, USER
from tests.hub.deliveries import AGENT
from tests.hub.test_page import CHROMIUM, pytestmark

__all__ = ["pytestmark"]

IO = queue_name(AGENT, "io")
ATTACK = {"props": {"innerHTML": "<img src=x onerror=\"document.title='owned'\">"}}
ODD = "push_file:a/b?c=#d%2F é"


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        found = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--headless=new", "--disable-dev-shm-usage"]
        )
        yield found
        await found.close()


@pytest.fixture
async def attack(redis: Redis) -> None:
    """A job whose every field wants to run a script."""
    queue = RedisQueue(redis, name=IO)
    job = await queue.enqueue("push_file", key="push_file:1", **ATTACK)
    assert job is not None
    fields = ("function", "error", "attempts")
    await redis.set(job.id, json.dumps({**json.loads(queue.serialize(job)), **dict.fromkeys(fields, ATTACK)}))


@pytest.fixture
async def saqs_own_url(redis: Redis) -> AsyncIterator[str]:
    """SAQ's dashboard as SAQ mounts it."""
    app = Starlette(routes=[Mount("/saq", saq_web("/saq", [RedisQueue(redis, name=IO)]))])
    server = uvicorn.Server(uvicorn.Config(app, log_config=None))
    listener = listen("127.0.0.1", 0)
    running = asyncio.create_task(server._serve([listener]))
    while not server.started:
        assert not running.done()
        await asyncio.sleep(0.01)
    yield url_of(listener)
    server.should_exit = True
    await running
    listener.close()


async def test_saqs_own_mount_runs_a_script_out_of_a_jobs_arguments(
    browser: Browser, saqs_own_url: str, attack: None
) -> None:
    """If this fails, SAQ has mended it, and shown_jobs.py may go."""
    page = await browser.new_page()
    await page.goto(f"{saqs_own_url}/saq/queues/{IO}")
    await expect(page).to_have_title("owned")


async def test_no_script_runs_out_of_a_jobs_arguments_even_without_our_policy(
    browser: Browser, hub_url: str, attack: None
) -> None:
    page = await (await browser.new_context(bypass_csp=True)).new_page()
    for path in (f"/saq/queues/{IO}", f"/saq/queues/{IO}/jobs/push_file%3A1", "/saq/"):
        await page.goto(f"{hub_url}{path}")
        await expect(page.locator("h1")).to_be_visible()
        await page.wait_for_load_state("networkidle")
        assert await page.title() == "Queues · phaze"
        assert await page.locator("#app img").count() == 0
        if "queues" in path:
            await expect(page.get_by_text("innerHTML").first).to_be_visible()


@pytest.fixture
async def page(browser: Browser, hub_url: str, redis: Redis) -> AsyncIterator[Page]:
    """A queue's page with a job of an odd key; what the policy forbids, and any fault, fails the test."""
    await LaneQueue(redis, name=IO).enqueue("push_file", key=ODD)
    found = await browser.new_page()
    complaints: list[str] = []
    found.on("console", lambda message: complaints.append(message.text))
    found.on("pageerror", lambda error: complaints.append(str(error)))
    await found.goto(f"{hub_url}/saq/queues/{IO}")
    yield found
    assert [text for text in complaints if not re.search(r"status of 40[49]", text)] == []


async def test_a_job_with_any_key_opens_and_its_links_stay_under_saq(page: Page, hub_url: str) -> None:
    await page.get_by_text(ODD, exact=True).click()
    heading = page.locator("h2").first
    await expect(heading).to_have_text(ODD)
    await page.reload()
    await expect(heading).to_have_text(ODD)
    await page.get_by_role("link", name=IO).click()
    assert page.url == f"{hub_url}/saq/queues/{IO}"
    await expect(page.get_by_text(ODD, exact=True)).to_be_visible()
    await page.go_back()
    await expect(heading).to_have_text(ODD)
    await page.goto(f"{hub_url}/saq/queues/{IO}/jobs/push_file:a/b")  # as somebody writes it
    await expect(page.get_by_text("there is no job push_file:a/b")).to_be_visible()
    await page.get_by_role("link", name="SAQ").click()
    assert page.url == f"{hub_url}/saq/"
    await page.get_by_role("link", name="phaze", exact=True).click()
    assert page.url == f"{hub_url}/"


async def test_a_running_job_is_not_retried_and_the_page_says_why(page: Page, redis: Redis) -> None:
    queue = LaneQueue(redis, name=IO)
    await queue.step("w", "io", 1)
    await page.get_by_text(ODD, exact=True).click()
    await page.get_by_role("button", name="Retry").click()
    await expect(page.get_by_role("alert")).to_have_text(f"{ODD} is running; abort it first")
    await page.get_by_role("button", name="Abort").click()
    await expect(page.get_by_role("alert")).to_have_text("Its worker is told to end it.")
    _, _, asked = await queue.upkeep(orphans=False, aborts=True)
    assert asked == [queue.job_id(ODD)]


async def test_a_person_logs_in_is_led_on_works_and_logs_out(browser: Browser, locked_url: str, redis: Redis) -> None:
    await LaneQueue(redis, name=IO).enqueue("push_file", key=ODD)
    page = await browser.new_page()
    await page.goto(f"{locked_url}/saq/queues/{IO}")
    await page.get_by_label("User").fill(USER)
    await page.get_by_label("Password").fill("wrong")
    await page.get_by_role("button", name="Log in").click()
    await expect(page.get_by_role("alert")).to_be_visible()
    await page.get_by_label("User").fill(USER)
    await page.get_by_label("Password").fill(PASSWORD)
    await page.get_by_label("Password").press("Enter")
    await page.get_by_text(ODD, exact=True).click()
    await page.get_by_role("button", name="Abort").click()
    await expect(page.get_by_role("alert")).to_have_text("It is aborted.")
    assert await page.evaluate("document.cookie") == ""
    await page.goto(locked_url)
    await page.get_by_role("button", name="Log out").click()
    await expect(page.get_by_label("Password")).to_be_visible()
    await page.goto(locked_url)
    assert "/login" in page.url


async def test_a_session_that_ends_under_an_open_page_leads_to_the_form(browser: Browser, locked_url: str) -> None:
    page = await browser.new_page()
    await page.goto(f"{locked_url}/saq/")
    await page.get_by_label("User").fill(USER)
    await page.get_by_label("Password").fill(PASSWORD)
    await page.get_by_role("button", name="Log in").click()
    await expect(page.get_by_role("link", name=IO)).to_be_visible()
    await page.context.clear_cookies()
    await expect(page.get_by_label("Password")).to_be_visible()
    assert page.url.endswith("/login?next=%2Fsaq%2F")
