"""The parser's doors, and what a model adds to the rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from pipelines.context import InlineContext
from pipelines.documents.by_model import printed_facts
from pipelines.documents.facts import Facts
from pipelines.documents.llm_errors import KeyRefused, ModelBusy
from pipelines.documents.parser import ModelChoice, Parsed, ParsePayload, parse, parse_by_rules, parse_pages, run
from pipelines.payer import ApiKey, paid_by
from tests.pipelines.documents.endpoint import Reply, endpoint, fails, says
from tests.pipelines.documents.pages import page

TABLE = page("""
Test | Result | Units | Reference Range
Glucose | 95 | mg/dL | 70-99
Sodium | 140 | mmol/L | 135-145
The patient's ferroportin stood at 12 arbitrary marks.
""")
EMPTY: dict[str, Any] = {"biomarkers": [], "diagnoses": [], "procedures": [], "variants": []}


def marker(name: str, value: str, unit: str = "") -> dict[str, str]:
    return {"name": name, "value": value, "unit": unit, "reference_range": "", "flag": "", "specimen": ""}


def names(parsed: Parsed) -> list[tuple[str, str, str]]:
    return [(fact.name, fact.value.printed, fact.by) for fact in parsed.facts.biomarkers]


async def test_the_library_answers_by_rules_without_key_or_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_MODEL", raising=False)
    said = await run("r1", "u1", [TABLE.model_dump()])
    assert said["record_id"] == "r1"
    assert [fact["name"] for fact in said["facts"]["biomarkers"]] == ["Glucose", "Sodium"]
    assert said["tokens"]["attempts"] == 0


async def test_the_task_asks_for_the_users_key_and_keeps_it_out_of_the_result() -> None:
    with endpoint(says(EMPTY)) as there:
        context = InlineContext(key=ApiKey("ann", SecretStr("sk-ann")))
        model = ModelChoice(base_url=there.url, name="m")
        payload = ParsePayload(version="v", pages=[TABLE], user_id="ann", model=model)
        with paid_by(context):
            parsed = await parse(context, payload)
    assert there.keys == ["Bearer sk-ann"]
    assert parsed.outcome == "done"
    assert "sk-" not in parsed.model_dump_json()
    assert len(context.calls) == 1, "each attempt is reported"


async def test_what_the_model_adds_is_printed_on_the_page_and_what_it_invents_is_left_out() -> None:
    said = {
        **EMPTY,
        "biomarkers": [
            marker("ferroportin", "12"),
            marker("Kryptonite", "12"),
            marker("Glucose", "95"),
            marker("Sodium", "141"),
        ],
    }
    with endpoint(says(said)) as there:
        parsed = await parse_pages([TABLE], ModelChoice(base_url=there.url, name="m"), SecretStr("k"))
    assert names(parsed) == [("Glucose", "95", "rules"), ("Sodium", "140", "rules"), ("ferroportin", "12", "model")]
    for fact in parsed.facts.biomarkers:
        printed = TABLE.text[fact.span.start : fact.span.end]
        assert fact.name in printed
        assert fact.value.printed in printed


ROWS = page("""
The results in words
Free T4 1.2 ng/dL
Non-HDL cholesterol 130 mg/dL
Glucose 95 mg/dL 70-99
HDL 1.2 mmol/L 1.0-1.9 H
Ferritin 120 ng/mL
CRP <0.5 mg/L
Base excess -5.2 mmol/L
HIV RNA 3.5 x 10^4 copies/mL
Leukocytes 1 234 /uL
Urine WBC 0-2 /HPF
ANA 1:80
Anti-HBs 12/03/2024
Troponin not detected
Anti-HCV non reactive
CA 125 35 U/mL
Sodium 140 L mmol/L 145
Kalium (mmol/L) 4.1
Calcium
2.4
mmol/L (2.1-2.6)
""")


async def model_said(**said: str) -> tuple[str, ...] | None:
    """(value, unit, range, flag) of what is taken of a model's one result, where the rules find nothing."""
    answer = {**EMPTY, "biomarkers": [{**marker("", ""), **said}]}
    with endpoint(says(answer)) as there:
        parsed = await parse_pages([ROWS], ModelChoice(base_url=there.url, name="m"), facts=Facts())
    if not parsed.facts.biomarkers:
        return None
    (found,) = parsed.facts.biomarkers
    return found.value.printed, found.unit, found.reference.printed if found.reference else "", found.flag


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("T4", "1.2"), ("HDL cholesterol", "130"), ("Glucose", "1.2"), ("HDL", "120"), ("Glucose", "70"),
        ("CRP", "0.5"), ("Base excess", "5.2"), ("HIV RNA", "3.5"), ("Leukocytes", "1"), ("Leukocytes", "234"),
        ("Urine WBC", "2"), ("Urine WBC", "0"), ("ANA", "80"), ("ANA", "1"), ("Anti-HBs", "12"), ("Anti-HBs", "2024"),
        ("Troponin", "detected"), ("Anti-HCV", "reactive"), ("CA", "125"),
    ],
)  # fmt: skip
async def test_a_part_of_a_value_or_a_name_or_another_rows_is_not_what_the_page_prints(name: str, value: str) -> None:
    assert await model_said(name=name, value=value) is None


@pytest.mark.parametrize(
    ("said", "taken"),
    [
        ({"name": "Free T4", "value": "1.2", "unit": "ng/dL"}, ("1.2", "ng/dL", "", "")),
        ({"name": "CRP", "value": "<0.5", "unit": "mg/L"}, ("<0.5", "mg/L", "", "")),
        ({"name": "Base excess", "value": "-5.2", "unit": "mmol/L"}, ("-5.2", "mmol/L", "", "")),
        ({"name": "Urine WBC", "value": "0-2", "unit": "/HPF"}, ("0-2", "/HPF", "", "")),
        ({"name": "ANA", "value": "1:80"}, ("1:80", "", "", "")),
        ({"name": "Troponin", "value": "not detected"}, ("not detected", "", "", "")),
        ({"name": "CA 125", "value": "35", "unit": "U/mL"}, ("35", "U/mL", "", "")),
        ({"name": "Kalium", "value": "4.1", "unit": "mmol/L"}, ("4.1", "mmol/L", "", "")),
        ({"name": "Sodium", "value": "140", "unit": "mmol/L", "flag": "L"}, ("140", "mmol/L", "", "L")),
        (
            {"name": "Calcium", "value": "2.4", "unit": "mmol/L", "reference_range": "2.1-2.6"},
            ("2.4", "mmol/L", "", ""),
        ),
        (
            {"name": "HDL", "value": "1.2", "unit": "mmol/L", "reference_range": "1.0-1.9", "flag": "H"},
            ("1.2", "mmol/L", "1.0-1.9", "H"),
        ),
        (  # the unit, the range and the flag are those of the row below
            {"name": "Glucose", "value": "95", "unit": "mmol/L", "reference_range": "1.0-1.9", "flag": "H"},
            ("95", "", "", ""),
        ),
    ],
)
async def test_of_a_models_result_that_is_taken_which_the_row_prints(
    said: dict[str, str], taken: tuple[str, ...]
) -> None:
    assert await model_said(**said) == taken


async def test_an_answer_of_more_than_a_page_can_hold_is_a_bad_one() -> None:
    flood = {**EMPTY, "biomarkers": [marker("ferroportin", "12")] * 1001}
    with endpoint(says(flood)) as there:
        parsed = await parse_pages([TABLE], ModelChoice(base_url=there.url, name="m"))
    assert (parsed.outcome, parsed.warnings) == ("partial", ["page 1: the model's answer was bad-answer"])
    assert [fact.by for fact in parsed.facts.biomarkers] == ["rules", "rules"]


async def test_what_a_model_says_is_looked_for_in_a_child_process() -> None:
    asked: list[Any] = []

    class Watched(InlineContext):
        async def child(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
            asked.append(function)
            return await super().child(function, *args, **kwargs)

    with endpoint(says({**EMPTY, "biomarkers": [marker("ferroportin", "12")]})) as there:
        parsed = await parse_pages([TABLE], ModelChoice(base_url=there.url, name="m"), context=Watched())
    assert names(parsed)[-1] == ("ferroportin", "12", "model")
    assert printed_facts in asked


async def test_a_models_diagnoses_are_the_patients_once_with_code_and_date_of_their_line() -> None:
    letter = page("""
Born 1 May 1960
Gout of the left foot (M10.9) since 3 May 2021
Cataract
Family history:
Breast cancer C50.9
""")
    said = [("Gout of the left foot", "M10.9", "3 May 2021"), ("Gout of the left foot", "M10", "1 May 1960"),
            ("Cataract", "C50.9", "1 May 1960"), ("Breast cancer", "C50.9", "")]  # fmt: skip
    answer = {**EMPTY, "diagnoses": [{"text": text, "code": code, "date": date} for text, code, date in said]}
    with endpoint(says(answer)) as there:
        parsed = await parse_pages([letter], ModelChoice(base_url=there.url, name="m"), facts=Facts())
    assert [(one.text, one.code, one.date) for one in parsed.facts.diagnoses] == [
        ("Gout of the left foot", "M10.9", "2021-05-03"),
        ("Cataract", "", ""),
    ]


async def test_a_page_that_is_cut_is_asked_for_in_halves_and_never_without_bound() -> None:
    long = page("\n".join(f"word {n}" for n in range(200)))
    with endpoint(says("{", finish="length")) as there:
        parsed = await parse_pages([long], ModelChoice(base_url=there.url, name="m"))
    assert len(there.requests) == 16
    assert parsed.outcome == "partial"
    assert parsed.tokens.attempts == 16

    def halves(body: dict[str, Any]) -> Reply:
        return says("{", finish="length") if len(body["messages"][1]["content"]) > 1000 else says(EMPTY)

    with endpoint(halves) as there:
        parsed = await parse_pages([long], ModelChoice(base_url=there.url, name="m"))
    assert parsed.outcome == "done"
    asked = "\n".join(
        request["messages"][1]["content"]
        for request in there.requests
        if len(request["messages"][1]["content"]) <= 1000
    )
    assert all(f"word {n}\n" in asked for n in range(200))


@pytest.mark.parametrize(("act", "warning"), [(says(None, refusal="no"), "refused"), (says("no json"), "bad-answer")])
async def test_a_page_that_the_model_will_not_read_keeps_what_the_rules_found(act: Reply, warning: str) -> None:
    with endpoint(act) as there:
        parsed = await parse_pages([TABLE], ModelChoice(base_url=there.url, name="m"))
    assert parsed.outcome == "partial"
    assert warning in parsed.warnings[0]
    assert len(parsed.facts.biomarkers) == 2


@pytest.mark.parametrize(("act", "error"), [(fails(401), KeyRefused), (fails(503), ModelBusy)])
async def test_what_is_not_the_pages_fault_fails_the_job_and_its_tokens_are_told(
    act: Reply, error: type[Exception]
) -> None:
    used: list[Any] = []
    with endpoint(act) as there, pytest.raises(error):
        await parse_pages([TABLE], ModelChoice(base_url=there.url, name="m"), on_usage=used.append)
    assert [usage.prompt_tokens for usage in used] == [70]


def test_a_models_address_holds_no_password() -> None:
    with pytest.raises(ValidationError):
        ModelChoice(base_url="https://user:pass@host/v1", name="m")


def test_pages_without_any_text_give_no_facts() -> None:
    assert not parse_by_rules([page("")]).biomarkers
    assert not parse_by_rules([]).biomarkers
