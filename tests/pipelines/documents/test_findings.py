"""Diagnoses, procedures and genetic variants by rules."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.documents.notes import diagnoses, procedures
from pipelines.documents.variants import variants
from tests.pipelines.documents.pages import page


def test_diagnoses_under_their_heading_with_their_codes() -> None:
    here = page("""
Discharge Diagnoses:
1. Type 2 diabetes mellitus (E11.9)
2. Essential hypertension, I10
- Community-acquired pneumonia of the
right lower lobe, J18.9
Medications:
Metformin 500 mg
E78.5 Hyperlipidemia, unspecified
""")
    found = diagnoses(here, "mdy")
    assert [(fact.text, fact.code) for fact in found] == [
        ("Type 2 diabetes mellitus", "E11.9"),
        ("Essential hypertension", "I10"),
        ("Community-acquired pneumonia of the right lower lobe", "J18.9"),
        ("Hyperlipidemia, unspecified", "E78.5"),
    ]
    assert here.text[found[1].span.start : found[1].span.end] == "Essential hypertension, I10"


@pytest.mark.parametrize(
    "heading",
    ["Diagnosen:", "Diagnostic", "Diagnóstico principal:", "Diagnosi:", "Диагноз:", "IMPRESSION AND DIAGNOSIS"],
)
def test_headings_in_many_languages(heading: str) -> None:
    assert [fact.text for fact in diagnoses(page(f"{heading}\nAnaemia"), "")] == ["Anaemia"]


def test_nothing_else_is_a_diagnosis() -> None:
    assert not diagnoses(page("Vitamin B12 | 450 | pg/mL\nRoom B12\nDiagnosis: none\nSuite E10, Springfield"), "")


def test_procedures_with_dates_and_codes() -> None:
    found = procedures(
        page("Procedures performed:\n03/14/2021 Colonoscopy with biopsy (CPT 45380)\n- Cholecystectomy"), "mdy"
    )
    assert [(fact.text, fact.code, fact.date) for fact in found] == [
        ("Colonoscopy with biopsy", "45380", "2021-03-14"),
        ("Cholecystectomy", "", ""),
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "BRCA1 | NM_007294.3:c.5266dupC (p.Gln1756fs) | Heterozygous",
            ("BRCA1", "c.5266dupC", "p.Gln1756fs", "", "", "heterozygous"),
        ),
        (
            "CFTR | c.1521_1523delCTT | p.Phe508del | rs113993960 | homozygous",
            ("CFTR", "c.1521_1523delCTT", "p.Phe508del", "rs113993960", "", "homozygous"),
        ),
        ("rs1801133 | MTHFR | C/T | heterozygot", ("MTHFR", "", "", "rs1801133", "C/T", "heterozygous")),
        ("F5 c.1601G>A p.(Arg534Gln) het", ("F5", "c.1601G>A", "p.(Arg534Gln)", "", "", "heterozygous")),
        ("LDLR: c.313+1G>A; hétérozygote", ("LDLR", "c.313+1G>A", "", "", "", "heterozygous")),
        (
            "HBB c.20A>T p.Glu7Val compound heterozygous",
            ("HBB", "c.20A>T", "p.Glu7Val", "", "", "compound heterozygous"),
        ),
    ],
)
def test_variants_in_hgvs_and_by_rsid(line: str, expected: tuple[str, ...]) -> None:
    here = page(line)
    [fact] = variants(here)
    assert (fact.gene, fact.coding, fact.protein, fact.rsid, fact.genotype, fact.zygosity) == expected
    assert here.text[fact.span.start : fact.span.end].startswith((fact.coding or "-", fact.rsid or "-"))


def test_two_variants_on_one_line_are_two() -> None:
    assert [fact.coding for fact in variants(page("GJB2 c.35delG; c.101T>C"))] == ["c.35delG", "c.101T>C"]


@settings(deadline=None)
@given(st.text(alphabet="cgp.rsACGT0123_+-*>del()=: FfsTer\n", max_size=80))
def test_no_text_breaks_them(text: str) -> None:
    here = page(text)
    for fact in variants(here):
        assert 0 <= fact.span.start < fact.span.end <= len(here.text)
    diagnoses(here, "")
    procedures(here, "")


def test_what_relatives_have_is_not_the_patients() -> None:
    text = page("""
Diagnoses:
- Type 2 diabetes mellitus (E11.9)
- Mother: breast cancer C50.9
- Carcinoma of the colon in maternal grandfather
- Motherhood counselling (Z71.89)
Family history:
- Breast cancer C50.9
- Schizophrenia (F20.9)
Allergies: none
Father: myocardial infarction I21.9
Bruder (Asthma bronchiale) J45.9
Essential hypertension I10.0
""")
    assert [(found.text, found.code) for found in diagnoses(text, "")] == [
        ("Type 2 diabetes mellitus", "E11.9"),
        ("Motherhood counselling", "Z71.89"),
        ("Essential hypertension", "I10.0"),
    ]


@pytest.mark.parametrize(
    "heading", ["Family History", "Familienanamnese:", "Antécédents familiaux", "Anamnesi familiare:"]
)
def test_a_familys_history_in_many_languages(heading: str) -> None:
    assert diagnoses(page(f"{heading}\n- Mamma carcinoma C50.9\n\n\n\nGout M10.90"), "")[0].code == "M10.90"
