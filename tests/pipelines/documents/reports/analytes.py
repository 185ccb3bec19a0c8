"""What the reports measure: names in six languages, units, healthy ranges, and how each language prints numbers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

LANGUAGES = ("en", "de", "fr", "es", "it", "nl")


NEGATIVE = {"en": "Negative", "de": "negativ", "fr": "Négatif", "es": "Negativo", "it": "Negativo", "nl": "Negatief"}
POSITIVE = {"en": "Positive", "de": "positiv", "fr": "Positif", "es": "Positivo", "it": "Positivo", "nl": "Positief"}
TRACE = {"en": "Trace", "de": "Spur", "fr": "Traces", "es": "Indicios", "it": "Tracce", "nl": "Spoor"}

SPECIMENS = {
    "whole": ("Whole blood", "EDTA-Blut", "Sang total", "Sangre total", "Sangue intero", "EDTA-bloed"),
    "blood": ("Whole blood", "EDTA-Blut", "Sang total", "Sangre total", "Sangue intero", "EDTA-bloed"),
    "serum": ("Serum", "Serum", "Sérum", "Suero", "Siero", "Serum"),
    "plasma": ("Plasma", "Citratplasma", "Plasma", "Plasma", "Plasma", "Plasma"),
    "urine": ("Urine", "Urin", "Urines", "Orina", "Urine", "Urine"),
}


@dataclass(frozen=True)
class Analyte:
    """A number that is measured: `units` are (unit, factor and offset to it, decimals), the conventional one first."""

    names: dict[str, str]
    specimen: str
    low: float | None
    high: float | None
    units: tuple[tuple[str, float, float, int], tuple[str, float, float, int]]


@dataclass(frozen=True)
class Finding:
    """What is answered in words, titres or crosses. `reference` is empty or one of `values`."""

    names: dict[str, str]
    specimen: str
    values: tuple[str, ...]
    reference: str
    unit: str = ""


def table(name: str) -> list[list[str]]:
    """The cells of a table beside this module: a row a line, `|` between them, `#` before what explains it."""
    lines = Path(__file__).with_name(name).read_text("utf-8").splitlines()
    return [[cell.strip() for cell in line.split("|")] for line in lines if not line.startswith("#")]


def _analytes() -> list[Analyte]:
    found = []
    for panel, low, high, decimals, unit, si, factor, si_decimals, *names in table("analytes.txt"):
        times, _, plus = factor.partition(" ")
        units = ((unit, 1.0, 0.0, int(decimals)), (si, float(times), float(plus or 0), int(si_decimals)))
        bounds = (float(low) if low else None, float(high) if high else None)
        found.append(Analyte(dict(zip(LANGUAGES, names, strict=True)), panel, *bounds, units))
    return found


def _findings() -> list[Finding]:
    found = []
    for specimen, values, reference, *names in table("findings.txt"):
        unit = "IU/mL" if "e" in values and values[0].isdigit() else ""
        named = dict(zip(LANGUAGES, names, strict=True))
        found.append(Finding(named, specimen, tuple(values.split(",")), reference, unit))
    return found


ANALYTES = _analytes()
FINDINGS = _findings()
