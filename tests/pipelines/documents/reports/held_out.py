"""Layouts that nobody looks at while writing rules; what rules make of them is reported apart."""

from __future__ import annotations

from dataclasses import replace

from tests.pipelines.documents.reports.layouts import DE, EN, EN_WORDS, ES, FR, IT, NL, Layout, Scan

LAYOUTS: tuple[Layout, ...] = (
    Layout(
        "typewriter",
        replace(EN, date="%d %B %Y", flags=("L", "H")),
        (("name", 3.6), ("value", 1.4), ("flag", 0.5), ("range", 1.8), ("unit", 1.8)),
        size="letter",
        font="Courier",
        type_size=8,
        header="none",
        value_align="right",
    ),
    Layout(
        "bordered-previous",
        replace(ES, range="{} - {}", flags=("*", "*")),
        (("name", 3.4), ("value", 1.3), ("previous", 1.3), ("unit", 1.7), ("range", 1.9), ("flag", 0.7)),
        rules="grid",
        value_align="center",
        findings=3,
    ),
    Layout(
        "cumulative-oldest-first",
        replace(IT, range="{} - {}"),
        (("name", 3.4), ("value", 1.4), ("unit", 1.5), ("range", 1.9)),
        rows=(12, 18),
        rules="lines",
        flag="value",
        dates=3,
        oldest_first=True,
    ),
    Layout(
        "wrapped-centred",
        ES,
        (("name", 1.1), ("value", 1.3), ("unit", 1.8), ("range", 2), ("flag", 0.6)),
        rules="grid",
        wrapped=True,
        centred=True,
    ),
    Layout("sentences", NL, arrangement="sentences", rows=(16, 24), type_size=10, flag="value"),
    Layout(
        "unit-beside-value",
        replace(IT, range="[{} - {}]", under="[< {}]", over="[> {}]"),
        (("name", 3.4), ("value", 2.2), ("range", 2)),
        unit="value",
        flag="before",
        rules="shade",
        font="Times-Roman",
        type_size=10,
        findings=4,
    ),
    Layout(
        "two-bordered-side-by-side",
        replace(DE, si=True),
        (("name", 3.4), ("value", 1.3), ("flag", 0.6), ("unit", 1.7), ("range", 2.1)),
        size="a4-landscape",
        type_size=7,
        rows=(24, 32),
        blocks=2,
        rules="grid",
        panels=False,
    ),
    Layout(
        "scanned-french",
        FR,
        (("name", 4), ("value", 1.4), ("unit", 1.6), ("range", 2)),
        type_size=10,
        flag="none",
        rules="lines",
        scan=Scan(skew=1.0, noise=8, quality=50),
    ),
    Layout(
        "upside-down-two-pages",
        replace(EN_WORDS, range="{} to {}"),
        rows=(28, 36),
        lines_a_page=22,
        header="first",
        turned=180,
        rotate=180,
        comments_between=True,
    ),
)
