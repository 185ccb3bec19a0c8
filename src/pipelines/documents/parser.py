"""parse: pages -> biomarkers, diagnoses, procedures and genetic variants.

    rules (always) -> a language model, where one is set: what it names and the page prints is added

Three doors: `parse_pages` (a function), `run` (the library's: record id, user id, pages -> dict), `parse` (the task).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, SecretStr

from pipelines.context import InlineContext, Policy, TaskContext, task
from pipelines.documents.facts import Facts
from pipelines.documents.labs import biomarkers, conventions
from pipelines.documents.notes import diagnoses, procedures
from pipelines.documents.page import MOST_PAGES, Page
from pipelines.documents.persons import births, doubt
from pipelines.documents.variants import variants
from pipelines.payer import spent
from pipelines.payload import Payload, PlainAddress, TaskResult

if TYPE_CHECKING:
    from pipelines.documents.llm import Model, OnUsage, Usage

SECONDS_A_PAGE = 5.0
ANSWERS_A_PAGE = 2.5
"""Of a model, the longest ones; a page that wants more of them ends its job, which is tried again."""
LONGEST = 4 * 3600.0
OPENAI = "https://api.openai.com/v1"


class ModelChoice(BaseModel):
    """A model to ask besides the rules. Its key is never here: the task asks for it (`ctx.api_key()`)."""

    base_url: PlainAddress
    """Before `/chat/completions`, without user or password: it is shown."""
    name: str
    seconds: float = Field(120.0, ge=1, le=3600)
    """For one answer in all."""

    @classmethod
    def of(cls, variables: Mapping[str, str]) -> ModelChoice | None:
        """PHAZE_DOCUMENT_MODEL at PHAZE_LLM_URL, with PHAZE_DOCUMENT_MODEL_SECONDS; None: no model is named.

        Raises ValueError for what is no address or no such time.
        """
        if not (name := variables.get("PHAZE_DOCUMENT_MODEL")):
            return None
        given = {"seconds": seconds} if (seconds := variables.get("PHAZE_DOCUMENT_MODEL_SECONDS")) else {}
        return cls.model_validate({"base_url": variables.get("PHAZE_LLM_URL") or OPENAI, "name": name, **given})

    def as_model(self) -> Model:
        """What a client asks."""
        from pipelines.documents.llm import Model

        return Model(base_url=self.base_url, name=self.name, timeout=self.seconds)


class ParsePayload(Payload):
    """The pages of one document. `version`: of the document, and of the model if one is asked."""

    pages: list[Page] = Field(max_length=MOST_PAGES)
    user_id: str = ""
    model: ModelChoice | None = None


class Tokens(BaseModel):
    """What the model was asked and said, all attempts together."""

    attempts: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Parsed(TaskResult):
    """What a document says. `partial`: the model could not be asked about some pages (`model-trouble`), or the
    pages print several dates of birth (`several-persons`); `warnings` name the pages."""

    format: int = 1
    facts: Facts = Field(default_factory=Facts)
    pages: int = 0
    pages_without_text: int = 0
    tokens: Tokens = Field(default_factory=Tokens)
    warnings: list[str] = Field(default_factory=list)


def parse_by_rules(pages: list[Page]) -> Facts:
    """The facts of a document by rules alone; its pages in order, because a table may go on from page to page."""
    order = conventions(pages).order
    return Facts(
        biomarkers=biomarkers(pages),
        diagnoses=[fact for page in pages for fact in diagnoses(page, order)],
        procedures=[fact for page in pages for fact in procedures(page, order)],
        variants=[fact for page in pages for fact in variants(page)],
    )


async def parse_pages(
    pages: list[Page], model: ModelChoice | None = None, key: SecretStr | None = None, *, facts: Facts | None = None,
    on_usage: OnUsage | None = None, context: TaskContext | None = None,
) -> Parsed:  # fmt: skip
    """The facts of a document; with a model, what it adds. `facts`: what the rules found, where that is done already.

    `context` runs the rules in a child process: a page that is made to be slow costs its own document. `on_usage` hears
    of every attempt at the model (`llm.Usage`). Raises ModelBusy, KeyRefused, ModelMisused, ChildDied.
    """
    context = context or InlineContext()
    facts = await context.child(parse_by_rules, pages) if facts is None else facts
    result = Parsed(facts=facts, pages=len(pages), pages_without_text=sum(not page.text.strip() for page in pages))
    if said := doubt(await context.child(births, pages)):
        result.warnings.append(said)
        result.outcome, result.reason = "partial", "several-persons"
    if model is None:
        return result
    from pipelines.documents.by_model import merged, read_by_model
    from pipelines.documents.llm import Client

    def used(usage: Usage) -> None:
        result.tokens.attempts += 1
        result.tokens.prompt_tokens += usage.prompt_tokens
        result.tokens.completion_tokens += usage.completion_tokens
        if on_usage is not None:
            on_usage(usage)

    habits = await context.child(conventions, pages)
    async with Client(model.as_model(), used) as client:
        for page in pages:
            found, troubles = await read_by_model(client, page, habits, key, context)
            result.facts = merged(result.facts, found)
            result.warnings += [f"page {page.number}: the model's answer was {trouble}" for trouble in troubles]
            if troubles:
                result.outcome, result.reason = "partial", "model-trouble"
    return result


def model_of_the_environment() -> tuple[ModelChoice | None, SecretStr | None]:
    """OPENAI_MODEL, OPENAI_BASE_URL and OPENAI_API_KEY; no model unless one is named."""
    name, base_url, key = (os.environ.get(f"OPENAI_{what}", "") for what in ("MODEL", "BASE_URL", "API_KEY"))
    model = ModelChoice.of({**os.environ, "PHAZE_DOCUMENT_MODEL": name, "PHAZE_LLM_URL": base_url})
    return model, SecretStr(key) if model and key else None


async def run(
    record_id: str, user_id: str, pages: list[Page] | list[dict[str, Any]], *, model: ModelChoice | None = None,
    key: SecretStr | None = None, on_usage: OnUsage | None = None,
) -> dict[str, Any]:  # fmt: skip
    """What a document says, as JSON (`Parsed`). Without `model` the environment names one, or there is none."""
    if model is None:
        model, named = model_of_the_environment()
        key = key or named
    read = [Page.model_validate(page) for page in pages]
    result = await parse_pages(read, model, key, on_usage=on_usage)
    return {"record_id": record_id, "user_id": user_id, **result.model_dump(mode="json")}


def reported(usage: Usage) -> None:
    """Tell whoever pays what an attempt came to."""
    spent(usage.prompt_tokens, usage.completion_tokens, usage.model)


def parse_seconds(pages: int, model: ModelChoice | None) -> float:
    """60 s, and 5 s a page; with a model the time of 2.5 of its answers a page more."""
    each = SECONDS_A_PAGE + (ANSWERS_A_PAGE * model.seconds if model else 0)
    return min(LONGEST, 60 + each * pages)


def llm_of(model: ModelChoice | None) -> str:
    """The dependency: `llm:<host>`; empty without a model."""
    return "" if model is None else f"llm:{urlsplit(model.base_url).netloc}"


def payer_of(payload: ParsePayload) -> str:
    """Who pays for the model; nobody without one."""
    return payload.user_id if payload.model is not None else ""


@task(
    Policy(
        timeout=lambda payload: parse_seconds(len(payload.pages), payload.model),
        dependency=lambda payload: llm_of(payload.model),
        user=payer_of,
    )
)
async def parse(ctx: TaskContext, payload: ParsePayload) -> Parsed:
    """The facts of one document. Raises what `parse_pages` does, and NotGranted (no key for this user)."""
    key = None if payload.model is None else (await ctx.api_key()).secret
    return await parse_pages(payload.pages, payload.model, key, on_usage=reported, context=ctx)
