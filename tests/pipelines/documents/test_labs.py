"""Laboratory tables as different houses print them, and what is printed between them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.documents.facts import Biomarker
from pipelines.documents.labs import biomarkers
from pipelines.documents.page import Cell, Line, Page
from pipelines.documents.units import ucum
from tests.pipelines.documents.pages import page


def read(*texts: str) -> list[Biomarker]:
    return biomarkers([page(text, number) for number, text in enumerate(texts, 1)])


def said(*texts: str) -> list[tuple[str, str, str]]:
    return [(fact.name, fact.value.printed, fact.unit) for fact in read(*texts)]


def test_a_table_with_flags_and_notes_under_its_rows() -> None:
    found = read("""
Specimen ID: 123-456-7890-0 | Acct: 90000999 | Phone: (555) 123-4567
Date collected: 07/28/2023
TESTS | RESULT | FLAG | UNITS | REFERENCE INTERVAL | LAB
CBC With Differential
RBC | 3.91 | Low | x10E6/uL | 4.14-5.80 | 01
Hemoglobin A1c | 6.1 | High | % | 4.8-5.6 | 01
Prediabetes: 5.7 - 6.4
Diabetes: >6.4
Glycemic control for adults with diabetes: <7.0
eGFR | 91 | | mL/min/1.73 | >59
HIV Screen | Non Reactive | | | Non Reactive
Please Note: | | | | | 01
""")
    assert [(fact.name, fact.value.printed, fact.unit, fact.flag) for fact in found] == [
        ("RBC", "3.91", "x10E6/uL", "Low"),
        ("Hemoglobin A1c", "6.1", "%", "High"),
        ("eGFR", "91", "mL/min/1.73", ""),
        ("HIV Screen", "Non Reactive", "", ""),
    ]
    assert {fact.date for fact in found} == {"2023-07-28"}
    reference = found[0].reference
    assert reference is not None
    assert (reference.low, reference.high) == (4.14, 5.8)


def test_the_previous_result_is_not_taken_wherever_its_column_stands() -> None:
    after = "Test | Result | Previous | Units\nGlucose | 95 | 88 | mg/dL\nSodium | | 140 | mmol/L"
    before = "Untersuchung | Vorwert | Ergebnis | Einheit\nKalium | 4,1 | 4,4 | mmol/l"
    assert said(after) == [("Glucose", "95", "mg/dL")]
    assert said(before) == [("Kalium", "4,4", "mmol/l")]


def test_dated_columns_are_results_of_their_dates() -> None:
    found = read("Test | Units | 2024-03-05 | 2023-02-01\nGlucose | mg/dL | 95 | 88")
    assert [(fact.value.printed, fact.date) for fact in found] == [("95", "2024-03-05"), ("88", "2023-02-01")]


def test_a_dated_columns_year_may_have_two_digits_and_its_month_a_name() -> None:
    found = read("Test | Units | 01 Jan 24 | 14 Feb. 24 | 30 Sept 23\nGlucose | mg/dL | 95 | 88 | 90")
    dated = [(fact.value.printed, fact.date) for fact in found]
    assert dated == [("95", "2024-01-01"), ("88", "2024-02-14"), ("90", "2023-09-30")]


def test_tables_side_by_side() -> None:
    assert said("Test | Result | Units | Test | Result | Units\nGlucose | 95 | mg/dL | TSH | 2.1 | mIU/L") == [
        ("Glucose", "95", "mg/dL"),
        ("TSH", "2.1", "mIU/L"),
    ]


def test_a_table_goes_on_over_the_page_without_its_head() -> None:
    first = "Test | Result | Units | Range\nGlucose | 95 | mg/dL | 70-99\nPage 1 of 2"
    assert said(first, "Chloride | 101 | mmol/L | 98-107\nPage 2 of 2") == [
        ("Glucose", "95", "mg/dL"),
        ("Chloride", "101", "mmol/L"),
    ]


def test_names_over_two_lines_above_and_below_the_value_and_headings_are_no_part_of_them() -> None:
    assert said("""
Test | Result | Units | Range
HEMATOLOGY
Iron | 80 | ug/dL | 60-170
Alanine Aminotransferase
~(ALT/SGPT) | 28 | U/L | 7-56
CHEMISTRY
Thyroid Stimulating | 2.1 | mIU/L | 0.4-4.0
~Hormone
Ferritin | 50 | ng/mL | 15-150
Sodium | 140 | mmol/L | 135-145
Potassium | 4.0 | mmol/L | 3.5-5.1
""")[1:3] == [("Alanine Aminotransferase (ALT/SGPT)", "28", "U/L"), ("Thyroid Stimulating Hormone", "2.1", "mIU/L")]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Analyse | Wert | Einheit | Normbereich\nKreatinin | 0,9 | mg/dl | 0,5-1,1", "Kreatinin"),
        ("Analyses | Résultats | Unités | Valeurs de référence\nUrée | 5,1 | mmol/L | 2,5 à 7,5", "Urée"),
        ("Prueba | Resultado | Unidades | Valores de referencia\nUrea | 35 | mg/dL | 15 - 50", "Urea"),
        ("Esame | Risultato | U.M. | Valori di riferimento\nGlicemia | 88 | mg/dL | 70 - 99", "Glicemia"),
        ("Exame | Resultado | Unidade | Valores de referência\nSódio | 140 | mmol/L | 135 a 145", "Sódio"),
        ("Bepaling | Uitslag | Eenheid | Referentiewaarden\nKalium | 4,1 | mmol/L | 3,5 - 5,0", "Kalium"),
        ("Badanie | Wynik | Jednostka | Zakres referencyjny\nGlukoza | 91 | mg/dl | 70 - 99", "Glukoza"),
        ("Показатель | Результат | Ед. изм. | Норма\nГемоглобин | 142 | г/л | 130-160", "Гемоглобин"),
        ("检验项目 | 结果 | 单位 | 参考区间\n葡萄糖 | 5.1 | mmol/L | 3.9-6.1", "葡萄糖"),
    ],
)
def test_heads_in_many_languages(text: str, name: str) -> None:
    assert [fact.name for fact in read(text)] == [name]


def test_lines_without_a_head_are_results_only_where_they_plainly_are() -> None:
    assert said("""
Glucose 95 mg/dL 70-99
TSH: 2.1 mIU/L
Ferritin | 55 | ng/mL | 15-150
Main Street 12, 70174 Stuttgart
Tel 0711 4820
Take 5 mg daily
Vitamin D3 2000 IU
Aspirin 81 mg
Weight | 72 | kg
BMI 24.5 kg/m2
Blood pressure 120/80 mmHg
Invoice | 4711 | 2024
Desirable: <200 mg/dL
LDL goal for patients at high risk is below 70 mg/dL (2018).
""") == [("Glucose", "95", "mg/dL"), ("TSH", "2.1", "mIU/L"), ("Ferritin", "55", "ng/mL")]


def test_units_in_names_in_ranges_and_glued_to_values_are_found() -> None:
    assert said("Untersuchung | Ergebnis | Referenz\nNatrium (mmol/l) | 140 | 135-145") == [
        ("Natrium", "140", "mmol/l")
    ]
    assert said("Component | Value | Range\nSodium | 140 | 135-145 mmol/L") == [("Sodium", "140", "mmol/L")]
    assert said("Component | Value | Range\nSodium | 140mmol/L | 135-145") == [("Sodium", "140", "mmol/L")]
    assert said("Component | Value | Range\nLeptin | < 0.4 µg/L | <5") == [("Leptin", "< 0.4", "µg/L")]


def test_cards_with_labels() -> None:
    assert said("""
Hemoglobin A1c
Normal range: 4.0 - 5.6 %
Value | 6.1 % | High
Test: Glucose
Result: 95
Units: mg/dL
Reference range: 70-99
""") == [("Hemoglobin A1c", "6.1", "%"), ("Glucose", "95", "mg/dL")]


def test_the_specimen_is_heard_from_headings_and_names() -> None:
    found = read("""
Test | Result | Units | Range
Chemistry (Serum)
Glucose | 95 | mg/dL | 70-99
Urinalysis
Glucose | Negative | | Negative
Creatinine, Plasma | 0.9 | mg/dL | 0.5-1.1
""")
    assert [fact.specimen for fact in found] == ["serum", "urine", "plasma"]


def test_each_result_says_where_it_is_printed() -> None:
    text = "Test | Result | Units | Range\nGlucose | 95 | mg/dL | 70-99"
    [fact] = read(text)
    assert page(text).text[fact.span.start : fact.span.end] == "Glucose  95  mg/dL  70-99"


CELLS = st.builds(
    lambda text, left: Cell(text=text, left=left, right=left + 5 * len(text) + 1),
    st.text(min_size=1, max_size=20)
    | st.sampled_from(["Test", "Result", "Units", "5.4", "mg/dL", "3-5", "H", "Glucose", "<5", "+", "(", "2024-01-01"]),
    st.floats(0, 500),
)
LINES = st.builds(
    lambda cells, top: Line(cells=cells, top=top, bottom=top + 9), st.lists(CELLS, max_size=7), st.floats(0, 800)
)


@settings(deadline=None, max_examples=50)
@given(st.lists(LINES, max_size=12))
def test_no_page_breaks_the_rules_and_every_span_lies_on_it(lines: list[Line]) -> None:
    whole = Page(number=1, width=600, height=800, source="text", lines=lines)
    for fact in biomarkers([whole, whole.model_copy(update={"number": 2})]):
        assert fact.value.printed
        assert 0 <= fact.span.start < fact.span.end <= len(whole.text)


def test_tables_side_by_side_whose_heads_stand_at_different_heights() -> None:
    found = said("""
Test | Result | Units
Glucose | 95 | mg/dL
~ | | | Test | Result | Units
Sodium | 140 | mmol/L
~ | | | TSH | 2.1 | mIU/L
Potassium | 4.1 | mmol/L
""")
    assert sorted(found) == [
        ("Glucose", "95", "mg/dL"),
        ("Potassium", "4.1", "mmol/L"),
        ("Sodium", "140", "mmol/L"),
        ("TSH", "2.1", "mIU/L"),
    ]


def test_a_method_below_a_name_that_is_known_is_no_part_of_it() -> None:
    found = said(
        "Test | Result | Units\nGlucose | 95 | mg/dL\n(Hexokinase)\nSodium | 140 | mmol/L\nPotassium | 4 | mmol/L"
    )
    assert [name for name, *_ in found] == ["Glucose", "Sodium", "Potassium"]


UNITS = (
    "mg/dL",
    "10^3/µL",
    "x 10^6/µL",
    "mL/min/1,73 m²",
    "mg/g Krea",
    "%",
    "/HPF",
    "× 10⁹/L",
    "E/L",
    "mil/mm³",
    "ng/mL FEU",
)
VALUES = ("5.4", "<5", "> 90", "0-2", "1.2e3", "≥ 60")


@pytest.mark.parametrize("unit", UNITS)
def test_a_value_and_its_unit_in_one_cell_are_two_whatever_follows(unit: str) -> None:
    for value in VALUES:
        for flag in ("", " H"):
            for reference in ("3-9", "< 10", ""):
                [found, _] = read(
                    f"Test | Result | Range\nGlucose | {value} {unit}{flag} | {reference}\nSodium | 140 mmol/L"
                )
                assert (found.value.printed, found.unit, found.flag) == (value, unit, flag.strip())


@pytest.mark.parametrize(
    "name", ["IgG Subclass 1", "CA 19-9", "25-OH Vitamin D", "Cl-", "T3, Free", "Mg", "K", "INR", "pH"]
)
def test_names_that_hold_numbers_signs_and_units_stay_whole(name: str) -> None:
    for rest in ("5.4 | mg/dL | 3-9", "<5 | U/L | 0-10", "Negative | | Negative"):
        assert read(f"Test | Result | Units | Range\n{name} | {rest}")[0].name == name


@pytest.mark.parametrize(
    ("value", "limits", "number", "low", "high"),
    [
        ("1.234", "0.4-4.0", 1.234, 0.4, 4.0),
        ("2.1", "0.270-4.200", 2.1, 0.27, 4.2),
        ("6.7", "4.000 - 10.000", 6.7, 4, 10),
        ("1.234", "0,4-4,0", 1234, 0.4, 4.0),
        ("1,234", "0.4-4.0", 1.234, 0.4, 4.0),
        ("6.700", "4.000-10.000", 6700, 4000, 10000),
        ("6.700", "4.000-10.000,5", 6700, 4000, 10000.5),
        ("\u22122,3", "\u22122 - +3", -2.3, -2, 3),
        ("-2,3", "-5,0 - -1,5", -2.3, -5, -1.5),
    ],
)
def test_in_a_document_with_commas_a_row_may_have_points(
    value: str, limits: str, number: float, low: float, high: float
) -> None:
    (_, found) = read(f"""
Untersuchung | Ergebnis | Einheit | Referenzbereich
Kalium | 4,1 | mmol/l | 3,5-5,1
Ferritin | {value} | ng/ml | {limits}
""")
    assert found.reference is not None
    assert (found.value.number, found.reference.low, found.reference.high) == (number, low, high)


@pytest.mark.parametrize(
    "line", ["Calcium 9.9 mg/dL 8.5-10.5", "Calcium: 9.9 mg/dL | 8.5-10.5", "Calcium 9.9 mg/dL < 10.5"]
)
def test_a_range_is_no_result_though_it_stands_in_the_results_column(line: str) -> None:
    assert said(f"Test | Result | Unit | Reference\nGlucose | 95 | mg/dL | 70-99\n{line}") == [
        ("Glucose", "95", "mg/dL"),
        ("Calcium", "9.9", "mg/dL"),
    ]


def test_a_range_after_a_numbered_name_is_a_result() -> None:
    assert said("Test | Result | Unit\nUrine WBC | 0-2 | /HPF\nGlucose | 70-99 | mg/dL")[0] == (
        "Urine WBC",
        "0-2",
        "/HPF",
    )


@pytest.mark.parametrize("columns", ["Serum | Urine", "Urine | Serum"])
def test_a_column_for_each_specimen_gives_each_result_its_own(columns: str) -> None:
    first, second = columns.lower().split(" | ")
    found = read(f"Substance | {columns} | Unit\nCreatinine | 0.9 | 110 | mg/dL\nSodium | | 60 | mmol/L")
    assert [(fact.name, fact.value.printed, fact.specimen) for fact in found] == [
        ("Creatinine", "0.9", first),
        ("Sodium", "60", second),
    ]


@pytest.mark.parametrize("heading", ["Medications:", "Current Medications", "Entlassmedikation:", "Medicación actual:"])
def test_a_dose_is_no_result(heading: str) -> None:
    assert said(f"""
Results:
Testosterone: 512 ng/dL
{heading}
Testosterone 50 mg/mL
Insulin 100 U/mL
Ferritin 95 ng/mL 15-150

Results:
Insulin: 12 mU/L
""") == [("Testosterone", "512", "ng/dL"), ("Ferritin", "95", "ng/mL"), ("Insulin", "12", "mU/L")]


@pytest.mark.parametrize("flag", ["+", "++", "-", "*", "H"])
def test_a_flag_before_its_value_is_not_the_value(flag: str) -> None:
    head = page("Bepaling | Uitslag | Eenheid | Referentie").lines[0]
    row = page("\n\nKreatinine | 121 | umol/l | 60 - 110").lines[0].model_copy(update={"top": 70.0, "bottom": 79.0})
    row.cells.insert(1, Cell(text=flag, left=130, right=135))
    table = Page(number=1, width=600, height=800, source="text", lines=[head, row])
    found = [(fact.name, fact.value.printed, fact.flag) for fact in biomarkers([table])]
    assert found == [("Kreatinine", "121", flag)]


def test_a_plus_alone_is_a_result() -> None:
    assert said("Test | Result | Unit\nUrine protein | + |") == [("Urine protein", "+", "")]


def test_of_several_results_on_a_line_each_has_its_own_flag() -> None:
    found = read("Test | Units | 2024-03-05 | 2024-02-01 | 2024-01-03\nPotassium | mmol/L | 4.8 | 5.6 H | 3.1 L")
    assert [(fact.value.printed, fact.flag) for fact in found] == [("4.8", ""), ("5.6", "H"), ("3.1", "L")]


def test_a_second_name_in_brackets_is_no_unit() -> None:
    assert said("Test | Result | Range\nProthrombin time (INR) | 1.02 | 0.8-1.2\nIron (mg/L) | 1.1 | 0.6-1.8") == [
        ("Prothrombin time (INR)", "1.02", ""),
        ("Iron", "1.1", "mg/L"),
    ]


def test_a_method_in_brackets_is_no_name_of_the_second_units_value() -> None:
    assert said("Créatinine | 8,4 | mg/L | 5,0 à 9,0\n(Enzymatique - Roche) | 74 | µmol/L | 44 à 80") == [
        ("Créatinine", "8,4", "mg/L")
    ]


def test_a_laboratorys_code_after_a_name_is_no_part_of_it() -> None:
    assert said("Test | Result | Units\nWBC 01 | 6.2 | x10E3/uL\nMCV 02 | 78 | fL") == [
        ("WBC", "6.2", "x10E3/uL"),
        ("MCV", "78", "fL"),
    ]


def test_calculated_behind_a_range_or_a_unit_hides_neither() -> None:
    found = read(
        "Test Name | In Range | Reference Range\nLDL | 125 | <130 mg/dL (calc)\nChol/HDL ratio | 3.7 | <5.0 (calc)"
    )
    ends = [fact.reference.high if fact.reference else None for fact in found]
    assert [(fact.unit, end) for fact, end in zip(found, ends, strict=True)] == [("mg/dL", 130.0), ("", 5.0)]
    assert ucum("mg/dL (calc)") == "mg/dL"


@pytest.mark.parametrize("name", ["Calcium ionised pH 7.4", "Ionized Calcium, pH 7.4", "Ionisiertes Calcium (pH 7.4)"])
def test_the_ph_for_which_a_result_is_given_is_of_its_name(name: str) -> None:
    assert said(f"Test | Result | Unit | Reference\n{name} | 1.21 | mmol/L | 1.15 - 1.30") == [(name, "1.21", "mmol/L")]
