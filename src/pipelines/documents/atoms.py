"""Molar masses from chemical formulas.

Standard atomic weights, abridged to five digits: IUPAC Commission on Isotopic Abundances and Atomic Weights, 2021
(https://ciaaw.org/abridged-atomic-weights.htm).
"""

from __future__ import annotations

import re

WEIGHTS = {
    "H": 1.008, "C": 12.011, "N": 14.007, "O": 15.999, "P": 30.974, "S": 32.06, "Na": 22.990,
    "Mg": 24.305, "Cl": 35.45, "K": 39.098, "Ca": 40.078,
    "Fe": 55.845, "Co": 58.933, "Cu": 63.546, "Zn": 65.38,
    "Se": 78.971, "I": 126.90, "Pb": 207.2,
}  # fmt: skip


def molar_mass(formula: str) -> float | None:
    """g/mol of `C6H12O6`, `Ca+2`, or of a number as it stands; None for no formula, or one of no substance (`X-1`)."""
    if re.fullmatch(r"\d+(?:\.\d+)?", formula):
        return float(formula)
    atoms = re.findall(r"([A-Z][a-z]?)(\d*)", re.sub(r"[+-]\d+$", "", formula))
    if not atoms or any(symbol not in WEIGHTS for symbol, _ in atoms):
        return None
    return sum(WEIGHTS[symbol] * int(count or 1) for symbol, count in atoms)


def charge(formula: str) -> int | None:
    """2 of `Ca+2`; None where no charge is given."""
    match = re.search(r"([+-]\d+)$", formula)
    return int(match[1]) if match else None
