"""What a report says around its results, in six languages: headings, addresses, comments, none of them a result."""

from __future__ import annotations

from tests.pipelines.documents.reports.analytes import LANGUAGES, table


def _by_language(name: str) -> dict[str, dict[str, str]]:
    return {key: dict(zip(LANGUAGES, texts, strict=True)) for key, *texts in table(name)}


HEADINGS = _by_language("headings.txt")

PANELS = _by_language("panels.txt")

LABELS = _by_language("labels.txt")

LABS = _by_language("labs.txt")

PEOPLE = {
    "en": ("Doe, Jane A.", "Whitfield, Robert"),
    "de": ("Schneider, Anna", "Brandt, Jürgen"),
    "fr": ("Mme DUPONT Claire", "M. LEFÈVRE Paul"),
    "es": ("García López, María", "Ortega Ruiz, Juan"),
    "it": ("Rossi Giulia", "Bianchi Marco"),
    "nl": ("Jansen, M.", "de Vries, P."),
}

COMMENTS = {
    "en": (
        "Comment: fasting glucose of 126 mg/dL or more on two occasions suggests diabetes.",
        "Vitamin D: deficiency <20 ng/mL, insufficiency 20-29 ng/mL, sufficiency 30-100 ng/mL.",
        "eGFR was calculated by the 2021 CKD-EPI equation; repeat in 3 months if below 60.",
        "Results verified 2 times by analyzer 4417. Call 1-800-555-0176 with questions.",
        "LDL goal for patients at high risk is below 70 mg/dL (guideline of 2018).",
    ),
    "de": (
        "Kommentar: Nüchternglukose ab 126 mg/dl an 2 Tagen spricht für einen Diabetes mellitus.",
        "Vitamin D: Mangel < 20 ng/ml, ausreichend 30 - 100 ng/ml.",
        "Befund am 3. Tag nach Eingang freigegeben, Probe 4 Std. haltbar.",
        "LDL-Zielwert bei hohem Risiko < 70 mg/dl (ESC 2019).",
    ),
    "fr": (
        "Commentaire : une glycémie à jeun supérieure à 1,26 g/L à 2 reprises évoque un diabète.",
        "Échantillon conservé 7 jours. Dossier validé à 14h32 par le Dr Morel.",
        "Objectif LDL < 0,70 g/L en cas de risque élevé (ESC 2019).",
    ),
    "es": (
        "Comentario: glucosa basal igual o superior a 126 mg/dL en 2 ocasiones sugiere diabetes.",
        "Muestra conservada 7 días. Validado a las 14:32 por el Dr. Pardo.",
        "Objetivo de LDL en riesgo alto: inferior a 70 mg/dL (ESC 2019).",
    ),
    "it": (
        "Commento: glicemia a digiuno superiore a 126 mg/dL in 2 occasioni suggerisce un diabete.",
        "Campione conservato per 7 giorni. Validato alle 14:32 dal Dott. Neri.",
        "Obiettivo LDL con rischio alto: inferiore a 70 mg/dL (ESC 2019).",
    ),
    "nl": (
        "Opmerking: nuchter glucose boven 7,0 mmol/L op 2 dagen past bij diabetes mellitus.",
        "Monster 7 dagen bewaard. Geautoriseerd om 14.32 uur door dr. Bos.",
        "Streefwaarde LDL bij hoog risico: lager dan 1,8 mmol/L (ESC 2019).",
    ),
}

MONTHS = _by_language("months.txt")
"""Number of the month -> its name."""
