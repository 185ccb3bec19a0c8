"""One name and one unit for what many laboratories print, and never a guess."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.context import InlineContext
from pipelines.documents.facts import Biomarker, Facts, Span
from pipelines.documents.grouper import GroupPayload, analyte_of, group, group_facts, run
from pipelines.documents.names import aliases, analytes, known, specimen_in_name
from pipelines.documents.parser import parse_by_rules
from pipelines.documents.values import parse_value
from tests.pipelines.documents.pages import page


def marker(
    name: str, value: str, unit: str = "", specimen: str = "", date: str = "2024-01-01", number: int = 1
) -> Biomarker:
    parsed = parse_value(value)
    assert parsed is not None
    span = Span(page=number, start=0, end=1)
    return Biomarker(name=name, value=parsed, unit=unit, specimen=specimen, date=date, span=span)


def slug(*args: str) -> str | None:
    found, _ = analyte_of(marker(*args))
    return found.slug if found else None


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        (("Glukose", "5.3", "mmol/l"), "glucose"),
        (("Glucose, Serum", "95", "mg/dL"), "glucose"),
        (("Glucose", "Negative", "", "urine"), "urine_glucose"),
        (("HbA1c", "5.4", "%"), "hba1c"),
        (("Hemoglobin A1c (HbA1c)", "36", "mmol/mol"), "hba1c"),
        (("GOT (AST)", "20", "U/L"), "ast"),
        (("Cholesterol, HDL", "55", "mg/dL"), "hdl"),
        (("Chol/HDL ratio", "3.1"), "cholesterol_hdl_ratio"),
        (("Neutrophils", "60", "%"), "neutrophils_pct"),
        (("Neutrophils", "4.1", "10^3/uL"), "neutrophils_abs"),
        (("WBC", "2", "/HPF", "urine"), "urine_wbc"),
        (("Витамин В12", "400", "пг/мл"), "vitamin_b12"),
        (("Draslík", "4,1", "mmol/l"), "potassium"),
        (("Kyselina močová", "300", "µmol/l"), "uric_acid"),
        (("Lökosit", "6,1", "10^3/µL"), "wbc"),
        (("Üre", "29", "mg/dL"), "urea"),
        (("Nötrofil", "54", "%"), "neutrophils_pct"),
        (("INR", "1.0"), "inr"),
        (("TSH", "1.98", "mU/L"), "tsh"),
        (("TSH", "1.98", "\u00b5U/mL"), "tsh"),
        (("ALT", "20", "IU/L"), "alt"),
        (("Haemoglobn", "14", "g/dL"), "hemoglobin"),
        (("Creatinlne", "1.1", "mg/dL"), "creatinine"),
    ],
)
def test_names_are_known(printed: tuple[str, ...], expected: str) -> None:
    assert slug(*printed) == expected


@pytest.mark.parametrize(
    "printed",
    [
        ("Kryptonite", "1", "mg/dL"),
        ("Hemoglobin", "5.4", "mmol/mol"),  # a unit of another kind
        ("Hemoglobin Alc", "5.4", "%"),  # nearly HbA1c and nearly Hemoglobin
        ("Free T5", "1.1", "ng/dL"),
        ("Bilirubin, unknown", "1", "mg/dL"),
        ("Haemoglobn", "14", "mmol/L/h"),
        ("Albumin", "30", "mg/L"),  # urine's unit, and no specimen said
        ("Ig", "1", "g/L"),
        ("Glucose", "95", "U/L"),
    ],
)
def test_what_is_not_known_is_unmapped_and_never_guessed(printed: tuple[str, ...]) -> None:
    assert slug(*printed) is None


def mistaken(step: int) -> list[tuple[str, str, str]]:
    """Names of the table that with one letter less are taken for another analyte's; every `step`-th name."""
    wrong = []
    for count, (key, slugs) in enumerate(list(aliases().items())[::step]):
        name = " ".join(key)
        at = count % len(name)
        broken = name[:at] + name[at + 1 :]
        for found in slugs:
            analyte = analytes()[found]
            other, how = analyte_of(marker(broken, "1", analyte.conventional, analyte.specimen))
            if how == "likeness" and other is not None and other.slug not in slugs:
                wrong.append((name, broken, other.slug))
    return wrong


def test_a_letter_lost_never_makes_a_name_another_analytes() -> None:
    assert not mistaken(step=9)


def test_a_space_lost_never_makes_a_name_another_analytes() -> None:
    for name in ("libretestosterona", "testosteronalibre"):
        found, _ = analyte_of(marker(name, "1", "pg/mL", "blood"))
        assert found is not None
        assert found.slug == "testosterone_free"


def test_values_are_converted_to_conventional_and_si_units() -> None:
    markers = [
        marker("Glucose", "95", "mg/dL"),
        marker("HbA1c", "5.4", "%"),
        marker("Insulin", "10", "µIU/mL"),
        marker("TSH", "<0.01", "mIU/L"),
        marker("Calcium", "4.75", "mEq/L"),
        marker("Leucocitos", "7", "mil/mm3"),
        marker("D-Dimer", "500", "ng/mL FEU"),
    ]
    grouped = {entry.slug: entry.results[0] for entry in group_facts([Facts(biomarkers=markers)]).groups}

    def si(name: str) -> tuple[float, str]:
        amount = grouped[name].si
        assert amount is not None
        return round(amount.value, 2), amount.unit

    assert si("glucose") == (5.27, "mmol/L")
    assert si("hba1c") == (35.51, "mmol/mol")
    assert si("insulin") == (60.0, "pmol/L")
    assert si("calcium") == (2.38, "mmol/L")
    assert si("wbc") == (7.0, "10*9/L")
    assert si("d_dimer") == (500.0, "ug{FEU}/L")
    tsh = grouped["tsh"].conventional
    assert tsh is not None
    assert tsh.comparator == "<"


@pytest.mark.parametrize(
    ("printed", "value", "unit"),
    [
        (("TSH", "2.1", "mU/L"), 2.1, "m[iU]/L"),
        (("ALT", "20", "IU/L"), 20.0, "U/L"),
        (("RF", "9", "kU/L"), 9.0, "[iU]/mL"),
    ],
)
def test_units_of_hormones_are_international_and_those_of_enzymes_are_not(
    printed: tuple[str, ...], value: float, unit: str
) -> None:
    ((found,),) = (one.results for one in group_facts([Facts(biomarkers=[marker(*printed)])]).groups)
    assert found.conventional is not None
    assert (found.conventional.value, found.conventional.unit) == (value, unit)


def test_the_same_result_printed_again_is_one_and_another_date_another() -> None:
    first = Facts(biomarkers=[marker("Glucose", "95", "mg/dL"), marker("Glukose", "5.27", "mmol/L", number=2)])
    second = Facts(biomarkers=[marker("Glucose", "95", "mg/dL", date="2023-05-05")])
    [found] = group_facts([first, second]).groups
    assert [result.printed.date for result in found.results] == ["2023-05-05", "2024-01-01"]
    assert [span.page for span in found.results[1].also_at] == [2]


async def test_the_doors_of_the_grouper_take_what_the_parser_gives() -> None:
    facts = parse_by_rules([page("Test | Result | Units\nGlucose | 95 | mg/dL\nNonsense | 3 | mg/dL")])
    grouped = await group(InlineContext(), GroupPayload(version="v", facts=[facts]))
    assert [entry.slug for entry in grouped.groups] == ["glucose"]
    assert [fact.name for fact in grouped.unmapped] == ["Nonsense"]
    said = await run("r", "u", [{"facts": facts.model_dump(mode="json")}])
    assert said["groups"][0]["results"][0]["conventional"]["value"] == 95


def test_one_name_of_one_specimen_is_one_analyte_unless_its_unit_tells() -> None:
    for key, slugs in aliases().items():
        kinds = [(analytes()[found].specimen, analytes()[found].conventional) for found in slugs]
        assert len(set(kinds)) == len(kinds), (key, slugs)


@settings(deadline=None)
@given(st.text(max_size=80))
def test_no_name_breaks_it(name: str) -> None:
    known(name)
    analyte_of(marker(name, "1", "mg/dL"))


@pytest.mark.parametrize(
    ("name", "unit", "slug"),
    [
        ("Glucose 60 min", "mg/dL", ""), ("Glucose, 2h", "mg/dL", ""), ("Insulin 120 min", "mIU/L", ""),
        ("Vitamin D 1,25", "pg/mL", "vitamin_d_1_25"), ("1,25(OH)2D", "pg/mL", "vitamin_d_1_25"),
        ("1,25-Dihydroxyvitamin D3", "pg/mL", "vitamin_d_1_25"), ("Vitamin D 1,25-OH", "pg/mL", "vitamin_d_1_25"),
        ("ESR 1 h", "mm/h", "esr"), ("VS 1h", "mm/h", "esr"), ("Glucose", "mg/dL", "glucose"),
    ],
)  # fmt: skip
def test_a_number_in_a_name_may_make_it_another(name: str, unit: str, slug: str) -> None:
    grouped = group_facts([parse_by_rules([page(f"Test | Result | Unit\n{name} | 40 | {unit}")])])
    assert [group.slug for group in grouped.groups] == [slug] * bool(slug)
    assert len(grouped.unmapped) == (not slug)


@pytest.mark.parametrize(
    ("name", "value", "unit", "expected"),
    [
        ("Amylase urine", "200", "U/L", None),
        ("U-Amylase", "200", "U/L", None),
        ("Kalium im Urin", "30", "mmol/L", "urine_potassium"),
        ("Leukozyten im Urin", "3", "/uL", None),
        ("Glucose CSF", "3.1", "mmol/L", None),
        ("Cortisol saliva", "5", "nmol/L", None),
        ("Urine albumin", "12", "mg/L", "urine_albumin"),
        ("Blood urea", "30", "mg/dL", "urea"),
        ("Harnstoff", "30", "mg/dL", "urea"),
        ("Uric acid", "6", "mg/dL", "uric_acid"),
    ],
)
def test_what_a_name_says_was_sampled_is_never_taken_for_blood(
    name: str, value: str, unit: str, expected: str | None
) -> None:
    assert slug(name, value, unit) == expected


def test_no_name_of_the_table_says_another_specimen_than_its_own() -> None:
    table = analytes()
    said = [
        (slug, specimen_in_name(alias)) for words, slugs in aliases().items() for slug in slugs
        for alias in [" ".join(words)] if specimen_in_name(alias)
    ]  # fmt: skip
    assert said
    assert [(slug, found) for slug, found in said if found != table[slug].specimen] == []
