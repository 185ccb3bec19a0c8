"""Printed units as UCUM, and from one to another."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.documents.atoms import charge, molar_mass
from pipelines.documents.names import analytes, rows
from pipelines.documents.units import convert, factor, registry, ucum


@pytest.mark.parametrize(
    ("printed", "code"),
    [
        ("mg/dL", "mg/dL"),
        ("MG/DL", "mg/dL"),
        ("µmol/l", "umol/L"),
        ("\u03bcmol/L", "umol/L"),
        ("mcg/dL", "ug/dL"),
        ("K/uL", "10*3/uL"),
        ("gm%", "g/dL"),
        ("GM %", "g/dL"),
        ("mg%", "mg/dL"),
        ("%", "%"),
        ("Téra/L", "10*12/L"),
        ("Tsd./µl", "10*3/uL"),
        ("x 10^3 / µL", "10*3/uL"),
        ("x10E3/uL", "10*3/uL"),
        ("G/L", "10*9/L"),
        ("T/l", "10*12/L"),
        ("/nl", "/nL"),
        ("cells/µL", "/uL"),
        ("lakhs/cumm", "10*5/uL"),
        ("UI/L", "[iU]/L"),
        ("µIU/mL", "u[iU]/mL"),
        ("mL/min/1,73 m²", "mL/min/{1.73_m2}"),
        ("mg/g Krea", "mg/g"),
        ("mm/1h", "mm/h"),
        ("ng/mL FEU", "ng{FEU}/mL"),
        ("ммоль/л", "mmol/L"),
        ("INR", "{ratio}"),
    ],
)
def test_printed_units_have_a_code(printed: str, code: str) -> None:
    assert ucum(printed) == code


@pytest.mark.parametrize(
    "printed",
    [
        "",
        "K",
        "M",
        "G",
        "T",
        "E",
        "IU",
        "Main/Street",
        "and/or",
        "N/A",
        "12/13",
        "M/K",
        "Page",
        "U/",
        "G%",
        "M%",
        "Mg%",
    ],
)
def test_what_is_no_unit_has_none(printed: str) -> None:
    assert ucum(printed) is None


@settings(deadline=None)
@given(st.text(max_size=40))
def test_no_text_breaks_the_grammar_and_every_code_has_a_quantity(printed: str) -> None:
    code = ucum(printed)
    assert code is None or factor(code) is not None


def test_thousands_are_never_kelvin() -> None:
    assert registry().Quantity("K/uL").check("[temperature]/[volume]")  # what pint alone would say
    thousands = factor(ucum("K/uL") or "")
    assert thousands is not None
    assert thousands.check("1/[volume]")
    assert convert(6.5, "10*3/uL", "10*9/L") == pytest.approx(6.5)


def test_every_part_of_the_table_and_every_unit_of_an_analyte_has_a_quantity() -> None:
    assert all(factor(code) is not None for code, *_ in rows("units.tsv"))
    for analyte in analytes().values():
        assert factor(analyte.conventional) is not None, analyte
        assert factor(analyte.si) is not None, analyte


@pytest.mark.parametrize(
    ("slug", "value", "si"),
    [
        # Factors: AMA Manual of Style, 11th edition, SI conversion table, to its digits.
        ("glucose", 1, 0.0555),
        ("cholesterol", 1, 0.0259),
        ("triglycerides", 1, 0.0113),
        ("creatinine", 1, 88.4),
        ("bun", 1, 0.357),
        ("uric_acid", 1, 59.48),
        ("bilirubin", 1, 17.104),
        ("calcium", 1, 0.25),
        ("iron", 1, 0.179),
        ("vitamin_d", 1, 2.496),
        ("vitamin_b12", 1, 0.7378),
        ("folate", 1, 2.266),
        ("cortisol", 1, 27.588),
        ("testosterone", 1, 0.0347),
        ("ft4", 1, 12.871),
        ("hemoglobin", 1, 10),
        ("sodium", 1, 1),
        ("alt", 1, 0.0167),
    ],
)
def test_conventional_units_become_si_by_the_published_factors(slug: str, value: float, si: float) -> None:
    analyte = analytes()[slug]
    converted = convert(value, analyte.conventional, analyte.si, molar_mass(analyte.mass), charge(analyte.mass))
    assert converted == pytest.approx(si, rel=0.005)


@settings(deadline=None)
@given(st.sampled_from(sorted(analytes())), st.floats(1e-3, 1e6))
def test_there_and_back_is_the_same(slug: str, value: float) -> None:
    analyte = analytes()[slug]
    mass, ions = molar_mass(analyte.mass), charge(analyte.mass)
    there = convert(value, analyte.conventional, analyte.si, mass, ions)
    if there is not None:
        assert convert(there, analyte.si, analyte.conventional, mass, ions) == pytest.approx(value)


def test_what_measures_something_else_is_not_converted() -> None:
    assert convert(1, "mg/dL", "mmol/L") is None
    assert convert(1, "%", "g/L") is None
    assert convert(1, "[iU]/L", "U/L") is None
    assert convert(1, "ng{FEU}/mL", "ng/mL") is None
    assert convert(2, "meq/L", "mmol/L", charge=2) == pytest.approx(1)
