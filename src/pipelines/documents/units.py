"""Units as laboratories print them, as UCUM codes, and from one to another by pint.

A closed table (`units.tsv`) says what a printed part of a unit means, so that `K/uL` is thousands and never kelvin, and
what is not in it is no unit at all. UCUM: the Unified Code for Units of Measure, https://ucum.org.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pint

_LONGEST = 32
_ONLY_OVER_VOLUME = {"K", "k", "G", "M", "T", "E", "1000"}
"""What these mean without a volume below them nobody can say."""

_VOLUMES = {"L", "dL", "mL", "uL", "nL", "pL", "cL"}
_COUNTED = {"10*3", "10*5", "10*6", "10*9", "10*12", "{mil}"}
_ALONE = {
    "g",
    "m",
    "mm",
    "cm",
    "m2",
    "kg",
    "h",
    "d",
    "min",
    "s",
    "L",
    "mL",
    "dL",
    "cL",
    "uL",
    "nL",
    "pL",
    "U",
    "fL",
    "pg",
    "mg",
    "ug",
    "ng",
}
_NEVER_ALONE = {
    "[iU]",
    "m[iU]",
    "u[iU]",
    "k[iU]",
    "[HPF]", "[LPF]", "{1.73_m2}", "{cells}", "{copies}", "{CFU}", "eq", "osm", "kat", "U", "mU", "uU", "kU", "L", "cL",
    "nL", "pL", "dL", "m2", "m", *_COUNTED,
}  # fmt: skip
_CREATININE = re.compile(
    r"[\s.(]*(?:of\s+|de\s+|di\s+|d'|)(?:creat(?:inine|inina|ine|\.)?|crea|cre|cr|krea(?:tinin)?|kreat|créat(?:inine)?|hb|hgb|"
    r"hemoglobin|hämoglobin|prot(?:ein)?|feces|stool|stuhl|selles|heces|blood|serum|plasma|krea\.|креатинина?)\.?\)?$",
    re.I,
)
_IN_HUNDRED = re.compile(r"^(g|gr|[Gg]ms?|GMS?|mg|MG|mcg|ug|\u00b5g)\.?\s?%$")
"""`gm%`, `mg %`: in 100 mL."""

FEU = "{FEU}"
"""Fibrinogen equivalent units, of D-dimer: about twice the mass of D-dimer itself (DDU), so never one for the other."""

_MASSES = {"g", "kg", "mg", "mmol", "mol", "umol", "ug"}


@cache
def _parts() -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Printed part -> UCUM, the same without case, UCUM -> pint's words."""
    table = resources.files("pipelines.documents").joinpath("units.tsv").read_text("utf-8")
    exact: dict[str, str] = {}
    folded: dict[str, str] = {}
    words: dict[str, str] = {}
    for line in table.splitlines():
        if not line or line.startswith("#"):
            continue
        code, pint_words, *printed = line.split("\t")
        words[code] = pint_words
        for spelling in (code, *"|".join(printed).split("|")):
            if spelling:
                exact.setdefault(spelling, code)
    for spelling, code in exact.items():
        if spelling not in _ONLY_OVER_VOLUME:
            folded.setdefault(spelling.casefold(), code)
    return exact, folded, words


def _part(printed: str) -> str | None:
    exact, folded, _ = _parts()
    printed = printed.strip().replace("\u03bc", "\u00b5")
    if (code := exact.get(printed)) is not None:
        return code
    if len(printed) == 1:
        return None
    return folded.get(printed.casefold().rstrip(".") or printed)


CALCULATED = re.compile(r"\s+\(calc(?:ulated)?\.?\)$", re.I)
"""What may stand behind the unit or range of a result that was not measured: `mg/dL (calc)`."""


def _tidied(printed: str) -> str:
    text = " ".join(printed.replace("\u2044", "/").replace("\u2215", "/").replace("\u03bc", "\u00b5").split())
    if text.startswith(("[", "(")) and text.endswith(("]", ")")) and text[1:-1].count("(") == 0 and "iU" not in text:
        text = text[1:-1].strip()
    text = CALCULATED.sub("", text)
    text = re.sub(r"\s+(?:per|pro|par|por|je)\s+", "/", text, flags=re.I)
    text = re.sub(r"\s*/\s*", "/", text)
    return _IN_HUNDRED.sub(lambda match: f"{match[1].lower()}/dL", text)


@cache
def ucum(printed: str) -> str | None:
    """The UCUM code of a printed unit (`µmol/l` -> `umol/L`, `K/uL` -> `10*3/uL`), None if it is not a known unit."""
    text = _tidied(printed)
    if not text or len(text) > _LONGEST:
        return None
    whole = _part(text)
    if whole is not None and text not in _ONLY_OVER_VOLUME:
        return None if whole in _NEVER_ALONE else whole
    if match := re.fullmatch(r"(.+?)[ (]*FEU\)?", text):
        code = ucum(match[1])
        mass, slash, volume = (code or "").partition("/")
        return f"{mass}{FEU}/{volume}" if slash and mass in ("mg", "ug", "ng", "g") else None
    bare = _CREATININE.sub("", text)
    numerator, *denominators = bare.split("/")
    codes = [_part(part) for part in denominators]
    if not denominators or len(denominators) > 2 or None in codes:
        return None
    below = [code for code in codes if code is not None]
    if bare != text and below[-1] not in _MASSES:
        return None
    if not numerator:
        above: str | None = ""
    else:
        above = _over_volume(numerator) if below[0] in _VOLUMES or below == ["[HPF]"] else _part(numerator)
        if above is None or (numerator in _ONLY_OVER_VOLUME and below[0] not in _VOLUMES):
            return None
    if not above and below[0] not in _VOLUMES | {"[HPF]", "[LPF]"}:
        return None
    return "/".join([above or "", *below])


def _over_volume(numerator: str) -> str | None:
    """`10^3`, `x 10^3 cells`, `mg`: what stands over a volume, without what is counted."""
    if (code := _part(numerator)) is not None:
        return "" if code == "{cells}" else code
    counted = re.sub(r"\s*(?:cells|cell|Zellen|cel\.?|células|cellule|cellules|#|wbc|rbc)$", "", numerator, flags=re.I)
    code = _part(counted) if counted != numerator else None
    return code if code in _COUNTED else None


def is_weak(code: str) -> bool:
    """True for units that also stand in prose and addresses (`g`, `h`, `mm`): they alone make no laboratory result."""
    return code in _ALONE or code in ("[pH]", "[arb'U]", "{ratio}", "[ppm]")


@cache
def registry() -> pint.UnitRegistry[float]:
    """pint's units, and those of the laboratory that it lacks. Made once: a third of a second.

    Equivalents and international units are of a kind of their own: only an analyte says what they are in moles.
    """
    import pint

    units: pint.UnitRegistry[float] = pint.UnitRegistry(cache_folder=None)
    units.define("international_unit = [international_unit]")
    units.define("equivalent_charge = [charge_in_moles]")
    units.define("osmole = [osmole]")
    return units


@cache
def factor(code: str) -> pint.Quantity[float] | None:
    """One of a UCUM unit as a pint quantity; None for codes that are not of the table."""
    _, _, words = _parts()
    numerator, *denominators = code.replace(FEU, "").split("/")
    if any(part not in words for part in denominators) or (numerator and numerator not in words):
        return None
    above = f"({words[numerator]})" if numerator else "1"
    expression = "/".join([above, *(f"({words[part]})" for part in denominators)])
    quantity: pint.Quantity[float] = 1.0 * registry().Quantity(expression)
    return quantity


def convert(
    value: float, unit: str, to: str, molar_mass: float | None = None, charge: int | None = None
) -> float | None:
    """`value` of one UCUM unit in another; None where they measure different things.

    `molar_mass` (g/mol) goes between mass and amount of substance, `charge` (of an ion) between these and equivalents.
    """
    if unit == to:
        return value
    first, second = factor(unit), factor(to)
    if first is None or second is None or (FEU in unit) != (FEU in to):
        return None
    for bridge in _bridges(molar_mass, charge):
        bridged: pint.Quantity[float] = first * bridge
        if bridged.check(second.dimensionality):
            return float(value * (bridged / second).to_base_units().magnitude)
    return None


def _bridges(molar_mass: float | None, charge: int | None) -> list[pint.Quantity[float]]:
    quantity = registry().Quantity
    bridges = [quantity(1.0, "")]
    mole = quantity(molar_mass, "gram/mole") if molar_mass else None
    charged = quantity(float(abs(charge)), "equivalent_charge/mole") if charge else None
    for bridge in (mole, charged, mole / charged if mole is not None and charged is not None else None):
        if bridge is not None:
            bridges += [bridge, 1 / bridge]
    return bridges
