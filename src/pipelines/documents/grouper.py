"""group: the biomarkers of one or more documents under one name and in one unit each.

    printed name -> alias table -> likeness, where unit and specimen agree -> `unmapped`, never a guess

A result keeps what is printed, and gets its value in the conventional and in the SI unit of its analyte where it can be
converted. The same result printed twice (on two pages, in two documents) is one, with every place it is printed at.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections import defaultdict
from typing import Any, Literal

from pydantic import BaseModel, Field

from pipelines.context import Policy, TaskContext, task
from pipelines.documents.atoms import charge, molar_mass
from pipelines.documents.facts import Biomarker, Facts, Span
from pipelines.documents.likeness import alike
from pipelines.documents.names import Analyte, analytes, known, specimen_in_name
from pipelines.documents.units import FEU, convert, ucum
from pipelines.documents.values import Comparator
from pipelines.payload import Payload, TaskResult

MOST_FACTS = 100_000

INSULIN = 6.0
"""pmol in 1 mIU of human insulin. Knopp, Holder-Pearson, Chase: Insulin units and conversion factors, J Diabetes Sci
Technol 2019, 13(3)."""

ROUNDED = 0.006
"""Relative: 5.3 mmol/L and 95 mg/dL of glucose are one result, each rounded as it is printed."""

_PLAIN_UNITS = re.compile(r"(?<![\w{])([a-z]?)U(?![\w\]}])")

How = Literal["alias", "likeness"]


class Amount(BaseModel):
    """A number in a UCUM unit. `high`: the upper end, of an interval."""

    value: float
    unit: str
    high: float | None = None
    comparator: Comparator | None = None


class Measured(BaseModel):
    """One result of a group: as printed, and converted where that can be (None where not)."""

    printed: Biomarker
    ucum: str = Field(default="", description="of the printed unit; empty where it is not known")
    conventional: Amount | None = None
    si: Amount | None = None
    also_at: list[Span] = Field(default_factory=list, description="where else the same result is printed")


class Group(BaseModel):
    """All results of one analyte, by date."""

    slug: str
    name: str
    specimen: str
    how: How
    results: list[Measured]


class Grouped(TaskResult):
    format: int = 1
    groups: list[Group] = Field(default_factory=list)
    unmapped: list[Biomarker] = Field(default_factory=list)


class GroupPayload(Payload):
    """The facts of one document or several of one person. `version`: of what they were parsed from."""

    facts: list[Facts] = Field(max_length=MOST_FACTS)


def group_facts(facts: list[Facts]) -> Grouped:
    """Biomarkers of some documents by analyte; the order of the documents breaks ties."""
    found: dict[str, list[Measured]] = defaultdict(list)
    how: dict[str, How] = {}
    unmapped: list[Biomarker] = []
    for marker in (marker for document in facts for marker in document.biomarkers):
        analyte, by = analyte_of(marker)
        if analyte is None:
            unmapped.append(marker)
            continue
        measured = _measured(marker, analyte)
        same = next((before for before in found[analyte.slug] if _is_same(before, measured)), None)
        if same is not None:
            same.also_at.append(marker.span)
            continue
        found[analyte.slug].append(measured)
        how[analyte.slug] = "alias" if "alias" in (by, how.get(analyte.slug)) else "likeness"
    groups = [_group(analytes()[slug], found[slug], how[slug]) for slug in analytes() if slug in found]
    return Grouped(groups=groups, unmapped=unmapped)


def analyte_of(marker: Biomarker) -> tuple[Analyte | None, How]:
    """What a biomarker measures, and how that is known; None rather than a guess."""
    table = analytes()
    if named := [table[slug] for slug in known(marker.name)]:
        return _the_one(marker, named), "alias"
    return _the_one(marker, [table[slug] for slug in alike(marker.name)], strict=True), "likeness"


def _the_one(marker: Biomarker, named: list[Analyte], *, strict: bool = False) -> Analyte | None:
    """The one analyte of those so called that specimen and unit leave; None if they leave none or several.

    `strict`: the unit must be known and of the analyte's kind. Otherwise a unit that is not known, or not printed, is
    no reason against a name that is known; one of another kind always is.
    """
    said = marker.specimen or specimen_in_name(marker.name)
    if not said and _is_of_another(ucum(marker.unit) or "", named):
        return None
    specimen = {"serum": "blood", "plasma": "blood"}.get(said, said) or _usual_specimen(named)
    left = [analyte for analyte in named if analyte.specimen == specimen]
    fitting = [analyte for analyte in left if _unit_agrees(marker, analyte, strict)]
    if len(fitting) > 1:
        exact = [analyte for analyte in fitting if _same_kind(ucum(marker.unit) or "", analyte)]
        fitting = exact or fitting
    return fitting[0] if len(fitting) == 1 else None


def _is_of_another(code: str, named: list[Analyte]) -> bool:
    """True where no specimen is said, and the unit is the very unit of another specimen's: albumin in mg/L."""
    blood = {unit for analyte in named if analyte.specimen == "blood" for unit in (analyte.conventional, analyte.si)}
    others = {unit for analyte in named if analyte.specimen != "blood" for unit in (analyte.conventional, analyte.si)}
    return bool(blood) and code in others - blood - {"{ratio}", "[pH]"}


def _usual_specimen(named: list[Analyte]) -> str:
    """Blood, unless what is so called is never measured in it."""
    specimens = {analyte.specimen for analyte in named}
    return "blood" if "blood" in specimens or not specimens else min(specimens)


def _unit_agrees(marker: Biomarker, analyte: Analyte, strict: bool) -> bool:
    code = ucum(marker.unit) if marker.unit else None
    if marker.value.kind in ("text", "titre"):
        return not strict or code is None or _same_kind(code, analyte)
    if code is None:
        return analyte.conventional in ("{ratio}", "[pH]") if strict else True
    if analyte.conventional in ("{ratio}", "[pH]") and not strict:
        return True
    return _same_kind(code, analyte)


def _same_kind(code: str, analyte: Analyte) -> bool:
    if analyte.slug in ("hba1c",):
        return code in ("%", "mmol/mol")
    if code in ("%", analyte.conventional, analyte.si) or "%" in (analyte.conventional, analyte.si):
        return code in (analyte.conventional, analyte.si) or (
            analyte.conventional == "%" and _is_part(code) and analyte.si != "%"
        )
    return _converted(1.0, code, analyte.conventional, analyte) is not None


def _is_part(code: str) -> bool:
    return code in ("L/L", "{ratio}", "[ppth]", "mL/L")


def _converted(value: float, code: str, to: str, analyte: Analyte) -> float | None:
    """`value` in another unit of the same analyte."""
    code = _international(code, analyte)
    if analyte.slug == "hba1c" and code != to:
        return _hba1c(value, code, to)
    if analyte.slug == "insulin" and ("iU" in code) != ("iU" in to):
        moles, units = convert(1.0, "pmol/L", to), convert(value, code, "m[iU]/L")
        if "iU" in code:
            return None if moles is None or units is None else units * INSULIN * moles
        amount, back = convert(value, code, "pmol/L"), convert(1.0, "m[iU]/L", to)
        return None if amount is None or back is None else amount / INSULIN * back
    if "{mil}" in code:  # thousands in Spanish and Portuguese, short for millions in English: the analyte says which
        code = code.replace("{mil}", "10*6" if analyte.conventional.startswith("10*6") else "10*3")
    if FEU in code and FEU not in to:
        to = _in_feu(to)
    return convert(value, code, to, molar_mass(analyte.mass), charge(analyte.mass))


def _international(code: str, analyte: Analyte) -> str:
    """Laboratories print mU/L of a hormone for mIU/L, and IU/L of an enzyme for U/L: the analyte says which it is."""
    if "[iU]" in analyte.conventional:
        return _PLAIN_UNITS.sub(r"\1[iU]", code)
    return code.replace("[iU]", "U") if _PLAIN_UNITS.search(analyte.conventional) else code


def _in_feu(unit: str) -> str:
    """The same unit of fibrinogen equivalents, which D-dimer has where it says so: neither is ever made the other."""
    mass, _, volume = unit.partition("/")
    return f"{mass}{FEU}/{volume}"


def _hba1c(value: float, code: str, to: str) -> float | None:
    """Between % (NGSP) and mmol/mol (IFCC): NGSP = 0.09148 IFCC + 2.152, https://ngsp.org/ifccngsp.asp."""
    if (code, to) == ("mmol/mol", "%"):
        return 0.09148 * value + 2.152
    if (code, to) == ("%", "mmol/mol"):
        return (value - 2.152) / 0.09148
    return None


def _amount(marker: Biomarker, code: str, to: str, analyte: Analyte) -> Amount | None:
    if marker.value.kind not in ("number", "interval") or marker.value.number is None:
        return None
    if FEU in code:
        to = _in_feu(to)
    value = _converted(marker.value.number, code, to, analyte)
    high = None if marker.value.high is None else _converted(marker.value.high, code, to, analyte)
    if value is None:
        return None
    upper = None if high is None else _rounded(high)
    return Amount(value=_rounded(value), unit=to, high=upper, comparator=marker.value.comparator)


def _rounded(value: float) -> float:
    """Seven digits: more than any laboratory has, fewer than a float's noise."""
    return float(f"{value:.7g}")


def _measured(marker: Biomarker, analyte: Analyte) -> Measured:
    code = ucum(marker.unit) if marker.unit else None
    if code is None and not marker.unit and analyte.conventional in ("{ratio}", "[pH]"):
        code = analyte.conventional
    if code is None:
        return Measured(printed=marker)
    conventional, si = (_amount(marker, code, to, analyte) for to in (analyte.conventional, analyte.si))
    return Measured(printed=marker, ucum=code, conventional=conventional, si=si)


def _is_same(one: Measured, other: Measured) -> bool:
    """The same result, printed again: of one day and value. In two units, of values that rounding makes differ."""
    first, second = one.printed, other.printed
    if (first.date, first.value.kind, first.value.comparator) != (
        second.date,
        second.value.kind,
        second.value.comparator,
    ):
        return False
    if one.conventional is None or other.conventional is None or one.ucum == other.ucum:
        values = [
            (fact.value.number, fact.value.high, fact.value.text, ucum(fact.unit) or fact.unit)
            for fact in (first, second)
        ]
        return values[0] == values[1]
    return math.isclose(one.conventional.value, other.conventional.value, rel_tol=ROUNDED)


def _group(analyte: Analyte, results: list[Measured], how: How) -> Group:
    ordered = sorted(results, key=lambda measured: measured.printed.date)
    return Group(slug=analyte.slug, name=analyte.name, specimen=analyte.specimen, how=how, results=ordered)


async def run(record_id: str, user_id: str, pages: list[dict[str, Any]]) -> dict[str, Any]:
    """`pages`: what the parser answered for each document (`Parsed` as JSON); all groups, as JSON (`Grouped`)."""
    facts = [Facts.model_validate(parsed["facts"]) for parsed in pages]
    grouped = await asyncio.to_thread(group_facts, facts)
    return {"record_id": record_id, "user_id": user_id, **grouped.model_dump(mode="json")}


def group_seconds(payload: GroupPayload) -> float:
    """60 s, and a second for each hundred biomarkers."""
    return 60 + sum(len(facts.biomarkers) for facts in payload.facts) / 100


@task(Policy(timeout=group_seconds))
async def group(ctx: TaskContext, payload: GroupPayload) -> Grouped:
    """The biomarkers of a person's documents by analyte, in a child process."""
    return await ctx.child(group_facts, payload.facts)
