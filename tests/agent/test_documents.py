"""`phaze documents`: lab reports in, a table over time, CSV or JSON out; nothing but this machine."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pypdfium2
import pytest
from reportlab.pdfgen import canvas

from agent.documents import command
from agent.documents.reading import Document
from agent.documents.table import Findings
from pipelines.documents.parser import parse_by_rules
from pipelines.documents.samples import PERSON, write_samples
from tests.conftest import REPO
from tests.pipelines.documents.pages import page


def phaze(*args: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The command, in a process of its own. What it says is as it was said, each end of a line too."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PHAZE_", "OPENAI_"))} | variables
    command = [sys.executable, "-m", "agent.cli", "documents", *args]
    done = subprocess.run(command, env=env, capture_output=True, timeout=110, check=False)
    return subprocess.CompletedProcess(command, done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reports") / "of years"
    write_samples(folder / "inner")
    return folder


def test_a_folder_becomes_a_table_of_results_over_time(reports: Path) -> None:
    done = phaze(str(reports))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split()[:3] == ["analyte", "unit", "2022-03-14"]
    (glucose,) = [line.split() for line in lines if line.startswith("Glucose")]
    assert glucose[1] == "mg/dL"
    assert "112*" in glucose, "flagged, in the unit in which it is printed"
    assert "100.9*" in glucose, "printed in mmol/L"
    assert "in 4 documents" in done.stdout
    assert done.stderr.count("results on 1 page") == 4
    assert PERSON not in done.stdout + done.stderr


def test_every_printed_result_is_in_the_csv_with_its_place(reports: Path, tmp_path: Path) -> None:
    samples = write_samples(tmp_path / "again")
    truth = {(result.name, result.value, result.unit) for sample in samples for result in sample.results}
    done = phaze(str(reports), "--csv")
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert {(row["printed_name"], row["printed_value"], row["printed_unit"]) for row in rows} == truth
    assert all(Path(row["document"]).is_relative_to(reports) and row["page"] == "1" for row in rows)


def test_json_has_the_documents_with_their_facts_and_the_groups(reports: Path) -> None:
    said = json.loads(phaze(str(reports), "--json").stdout)
    assert [document["outcome"] for document in said["documents"]] == ["done"] * 4
    assert sum(len(document["facts"]["biomarkers"]) for document in said["documents"]) >= 30
    assert {"glucose", "hba1c", "tsh"} <= {group["slug"] for group in said["groups"]}


def test_what_cannot_be_read_is_said_by_name_and_spoils_nothing_else(reports: Path, tmp_path: Path) -> None:
    (tmp_path / "a.PDF").write_bytes(b"no PDF at all")
    (tmp_path / "=b.pdf").write_bytes(next(reports.rglob("*.pdf")).read_bytes())
    (tmp_path / "elsewhere.pdf").symlink_to(next(reports.rglob("*.pdf")))
    done = phaze(str(tmp_path), "http://127.0.0.1:9/private.pdf?token=s3cret", "--csv")
    assert done.returncode == 3
    assert f"{tmp_path}/a.PDF: rejected: not-a-pdf" in done.stderr
    assert "http://127.0.0.1:9/private.pdf: " in done.stderr
    assert "s3cret" not in done.stdout + done.stderr
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert {row["document"] for row in rows} == {f"{tmp_path}/=b.pdf"}, "links are not followed"


def test_documents_of_two_persons_are_not_shown_in_one_table_without_a_word(tmp_path: Path) -> None:
    for name, born in (("a", "03/04/1980"), ("b", "04.03.1980"), ("c", "07.09.1951")):
        sheet = canvas.Canvas(str(tmp_path / f"{name}.pdf"))
        sheet.drawString(60, 780, f"Patient: {name}    DOB: {born}")
        sheet.drawString(60, 740, "Glucose  101  mg/dL  70 - 99")
        sheet.save()
    done = phaze(str(tmp_path))
    assert done.returncode == 3, done.stderr
    said = "a.pdf and c.pdf print different dates of birth: the table may be of several persons"
    assert done.stderr.splitlines()[-1] == said
    (tmp_path / "c.pdf").unlink()
    assert phaze(str(tmp_path)).returncode == 0


def test_a_document_is_read_once_by_whichever_names_it_is_given(reports: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(reports)
    inner = reports / "inner"
    one = next(reports.rglob("*.pdf"))
    names = (
        reports,
        reports / "inner/../inner",
        tmp_path / "link",
        tmp_path / "link/inner",
        inner / ".." / "inner" / one.name,
    )
    found, _ = command._found(tuple(map(str, names)))
    assert sorted(found) == sorted(map(str, reports.rglob("*.pdf"))), "by the first name that was given"


NAMES = [b"\x1b[31mred\n[9] fake: 3 results.pdf", b"\xff\r.pdf"]


def test_a_name_commands_no_terminal_and_is_a_whole_cell(reports: Path, tmp_path: Path) -> None:
    for name, report in zip(NAMES, reports.rglob("*.pdf"), strict=False):
        (tmp_path / os.fsdecode(name)).write_bytes(report.read_bytes())
    (tmp_path / os.fsdecode(b"no\x1b]0;x\x07\n.pdf")).write_bytes(b"no PDF at all")
    done = phaze(str(tmp_path))
    assert done.returncode == 3, done.stderr
    lines = (done.stdout + done.stderr).split("\n")
    assert all(line.isprintable() for line in lines)
    assert sum(line.startswith("[") for line in lines) == 3, "a line each"

    rows = list(csv.DictReader(io.StringIO(phaze(str(tmp_path), "--csv").stdout, newline="")))
    want = {f"{tmp_path}/{name.decode('utf-8', 'replace')}" for name in NAMES}
    assert {row["document"] for row in rows} == want
    said = phaze(str(tmp_path), "--json").stdout
    assert said.replace("\n", "").isprintable()
    assert want < {document["source"] for document in json.loads(said)["documents"]}


def test_an_error_is_one_line_whatever_name_is_in_it() -> None:
    done = phaze("no\x1b[31m\nphaze: all well")
    assert done.stderr.count("\n") == 1
    assert done.stderr.rstrip("\n").isprintable()


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (Document("a", "done", pages=2), "0 results on 2 pages"),
        (Document("a", "done", pages=1, passed_over={"blank": 2}), "0 results on 1 page; 2 other pages blank"),
        (Document("a", "partial", "1 of 9 pages: gone", 1), "0 results on 1 page; 1 of 9 pages: gone"),
        (Document("a", "rejected", "not-a-pdf: x"), "not-a-pdf: x"),
        (Document("a"), "failed"),
    ],
)
def test_of_every_document_something_is_said(document: Document, said: str) -> None:
    assert document.said == said


def test_a_document_with_nothing_on_it_is_told_to_have_nothing(tmp_path: Path) -> None:
    with pypdfium2.PdfDocument.new() as blank:
        for _ in range(2):
            blank.new_page(200, 200).close()
        blank.save(tmp_path / "blank.pdf")
    done = phaze(str(tmp_path))
    assert done.stderr == "[1/1] blank.pdf: 0 results on 0 pages; 2 pages blank\n"
    assert done.stdout == "0 results of 0 analytes in 1 document\n", "no table of nothing"
    assert done.returncode == 0, "it was read whole"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((), "give a folder of PDFs"),
        (("/no/such/folder",), "/no/such/folder does not exist"),
        (("--csv", "--json", "."), "give one of --json and --csv"),
        ((str(REPO / "docs"),), "there is no PDF"),
    ],
)
def test_wrong_use_is_one_line_that_names_the_remedy(args: tuple[str, ...], said: str) -> None:
    done = phaze(*args)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_the_sample_set_needs_nothing_at_all_and_leaves_nothing(tmp_path: Path) -> None:
    done = phaze("--samples", TMPDIR=str(tmp_path), HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    _, _, shown = (REPO / "README.md").read_text("utf-8").partition("<!-- real output: make up-documents -->\n```\n")
    assert done.stdout == shown.partition("```")[0], "as README shows it"
    assert list(tmp_path.glob("phaze-*")) == []


def cells(*results: tuple[str, str, str, str, str]) -> list[str]:
    """The cells of a day of one analyte's line: of (name, value, unit, range, flag) of each result."""
    rows = "\n".join(" | ".join(result) for result in results)
    facts = parse_by_rules([page(f"Test | Result | Unit | Reference | Flag\n{rows}")])
    document = Document("a.pdf", "done", facts=facts)
    table = Findings([document]).table(200)
    assert table.row_count == 1
    return str(next(iter(table.columns[2].cells))).split(", ")


@pytest.mark.parametrize(
    ("value", "flag", "starred"),
    [
        ("140", "Normal", False), ("140", "in range", False), ("140", "N", False), ("140", "-", False),
        ("129", "-", True), ("129", "N", True), ("129", "L", True), ("150", "(H)", True), ("140", "!", True),
    ],
)  # fmt: skip
def test_a_flag_that_says_all_is_well_is_no_star(value: str, flag: str, starred: bool) -> None:
    (cell,) = cells(("Sodium", value, "mmol/L", "135-145", flag))
    assert cell == value + "*" * starred


def test_a_number_without_a_unit_does_not_pass_for_one_of_the_lines_unit() -> None:
    of_glucose = [("Glucose", "95", "mg/dL", "", ""), ("Glucose", "5.4", "", "3.9-5.6", "")]
    assert cells(*of_glucose) == ["95", "5.4 ?"]
    assert cells(of_glucose[1]) == ["5.4"], "the line has no unit"


@pytest.mark.parametrize("printed", ["12345", "123456.7", "138.25", "0.0123", "0", "0.00001234", "1234567"])
def test_a_result_in_its_own_unit_is_shown_as_it_is_printed(printed: str) -> None:
    assert cells(("Ferritin", printed, "ng/mL", "30-400", "")) == [printed]


def test_a_converted_result_has_four_digits_and_no_power_of_ten() -> None:
    assert cells(("Vitamin B12", "25000", "pmol/L", "", "")) == ["33885"]
    assert cells(("Glucose", "5.43", "mmol/L", "", "")) == ["97.82"]
