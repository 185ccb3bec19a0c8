"""Results in sentences: read where a range says that they are results, left alone where anything is unsure."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.documents.dates import Label, Taken
from pipelines.documents.labs import biomarkers
from pipelines.documents.page import Cell, Line, Page
from pipelines.documents.sentences import sentences


def page_of(text: str) -> Page:
    lines = [
        Line(cells=[Cell(text=line, left=50, right=50 + 5 * len(line))], top=50 + 14.0 * at, bottom=60 + 14.0 * at)
        for at, line in enumerate(text.split("\n"))
    ]
    return Page(number=1, width=600, height=800, source="text", lines=lines)


def read(text: str) -> list[tuple[str, str, str, str]]:
    """(name, value, unit, range) of each result, as printed."""
    return [
        (found.name, found.value.printed, found.unit, found.reference.printed if found.reference else "")
        for found in biomarkers([page_of(text)])
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Your ferritin was 12 ng/mL (reference 15-150).", ("ferritin", "12", "ng/mL", "15-150")),
        (
            "Hemoglobin A1c came back at 5.8 % (normal range: 4.0 - 5.6), which is slightly raised.",
            ("Hemoglobin A1c", "5.8", "%", "4.0 - 5.6"),
        ),
        ("Der Hämoglobinwert: das Hämoglobin lag bei 13,1 g/dl (Referenzbereich 12,0-15,5).",
         ("Hämoglobin", "13,1", "g/dl", "12,0-15,5")),
        ("The TSH was 2.35 mIU/L, with a reference range of 0.40 to 4.00 mIU/L.",
         ("TSH", "2.35", "mIU/L", "0.40 to 4.00 mIU/L")),
        ("La ferritine était de 12 µg/L (valeurs de référence : 15 à 150).", ("ferritine", "12", "µg/L", "15 à 150")),
        ("La glucosa fue de 112 mg/dL (valores de referencia 70-99 mg/dL).",
         ("glucosa", "112", "mg/dL", "70-99 mg/dL")),
        ("We found platelets of 251 x 10^9/L (150-400).", ("platelets", "251", "x 10^9/L", "150-400")),
        ("The C-reactive protein was <0.5 mg/L (reference < 5.0 mg/L).",
         ("C-reactive protein", "<0.5", "mg/L", "< 5.0 mg/L")),
        ("Your pH was 7.38 (reference 7.35-7.45).", ("pH", "7.38", "", "7.35-7.45")),
        ("Your potassium level, at\n4.1 mmol/L, lies within the\nreference interval (3.5-5.1).",
         ("potassium", "4.1", "mmol/L", "3.5-5.1")),
        ("LDL cholesterol was 131 mg/dL and HDL cholesterol was 55 mg/dL (reference > 40).",
         ("HDL cholesterol", "55", "mg/dL", "> 40")),
    ],
)  # fmt: skip
def test_a_sentence_with_a_name_a_value_and_a_range_is_a_result(text: str, found: tuple[str, ...]) -> None:
    assert read(text) == [found]


def test_several_sentences_are_as_many_results_with_their_places() -> None:
    text = (
        "Your iron was 80 µg/dL (50-170). Your ferritin was 12 ng/mL (15-150), which is\n"
        "low; TSH was 2.1 mIU/L (0.4-4.0)."
    )
    page = page_of(text)
    found = sentences(page, ".", Taken((Label(page.number, 0, "2024-01-31"),)))
    assert [(one.name, one.value.number, one.date) for one in found] == [
        ("iron", 80.0, "2024-01-31"), ("ferritin", 12.0, "2024-01-31"), ("TSH", 2.1, "2024-01-31"),
    ]  # fmt: skip
    assert page.text[found[1].span.start : found[1].span.end] == "ferritin was 12 ng/mL (15-150)"


@pytest.mark.parametrize(
    "text",
    [
        "Your ferritin was 12 (L) ng/mL (reference 15-150).",
        "Your ferritin was 12 L ng/mL (reference 15-150).",
        "Your ferritin was 12 ng/mL (L), reference 15-150.",
        "Your ferritin was 12 ng/mL L (reference 15-150).",
    ],
)
def test_a_flag_is_no_part_of_value_or_unit(text: str) -> None:
    (found,) = sentences(page_of(text), ".", Taken())
    assert (found.value.printed, found.unit, found.flag) == ("12", "ng/mL", "L")


def test_what_it_was_measured_in_is_no_part_of_a_name_and_brackets_may_be() -> None:
    text = (
        "Serum ferritin was 12 ng/mL (15-150). The ALT (GPT) was 37 U/L (7-56); "
        "eGFR (CKD-EPI) was > 86 mL/min/1.73m2 (>60)."
    )
    found = sentences(page_of(text), ".", Taken())
    assert [one.name for one in found] == ["ferritin", "ALT (GPT)", "eGFR (CKD-EPI)"]
    assert found[0].specimen == "serum"


def test_a_specimen_that_the_sentence_names_counts() -> None:
    (found,) = sentences(page_of("The albumin in your urine was 12 mg/L (reference < 20)."), ".", Taken())
    assert (found.name, found.specimen) == ("albumin", "urine")


@pytest.mark.parametrize(
    "text",
    [
        "A ferritin below 15 ng/mL indicates a deficiency of iron.",
        "An HbA1c of 6.5 % or more is diagnostic of diabetes.",
        "If your ferritin were 12 ng/mL (reference 15-150), we would treat it.",
        "The target for your LDL cholesterol is 70 mg/dL (normal range 0-130).",
        "Patients with a ferritin of 12 ng/mL (normal 15-150) lack iron.",
        "For example, a TSH of 9 mIU/L (reference 0.4-4.0) asks for another look.",
        "Previously the ferritin was 9 ng/mL (reference 15-150).",
        "Glucose and creatinine were 94 mg/dL (70-99) and 0.86 mg/dL (0.6-1.2), respectively.",
        "Your ferritin was 12 mmHg (reference 15-150).",
        "Your blood pressure was 120 mmHg (reference 90-130).",
        "Your ferritin was low. Take 12 mg of iron a day (10-15).",
        "Reference 15-150 ng/mL.",
        "Ferritin was measured, 12 without a unit (reference 15-150).",
        "The ferritin (15-150) was 12 ng/mL, the hemoglobin (12-15) was 13.1 g/dL.",
        "See page 12 (reference 15-150).",
        "Ferritin  was  12  ng/mL  (reference 15-150)",
    ],
)
def test_what_is_no_result_for_sure_is_left_alone(text: str) -> None:
    assert sentences(page_of(text), ".", Taken()) == []


PARTS = (
    "Your", "ferritin", "was", "12", "12.5", "<0.5", "ng/mL", "(15-150)", "(reference", "15-150)", ".", "\n", "TSH",
    "mIU/L", "with", "normal range", "0.4 to 4.0", ",", ";", "x 10^9/L", "",
)  # fmt: skip


@settings(max_examples=60)
@given(st.lists(st.sampled_from(PARTS) | st.text(max_size=5), max_size=40).map(" ".join))
def test_any_text_is_read_and_every_result_stands_where_it_says(text: str) -> None:
    page = page_of(text)
    for found in sentences(page, ".", Taken()):
        printed = page.text[found.span.start : found.span.end]
        assert printed.startswith(found.name)
        assert found.value.printed in printed
