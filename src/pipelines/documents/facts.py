"""What a document says, fact by fact, each with the page and the place it came from."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from pipelines.documents.ranges import Range
from pipelines.documents.values import Value

Found = Literal["rules", "model"]


class Span(BaseModel):
    """Where a fact is printed: offsets into the page's text (`Page.text`), and its page from 1."""

    page: int
    start: int = Field(ge=0)
    end: int = Field(ge=0)


class Biomarker(BaseModel):
    """One result of a laboratory. Empty or None: not printed.

    `name`, `unit`, `flag`: as printed. `specimen`: `blood`, `serum`, `plasma`, `urine`, `stool`, `csf`, `saliva`, where
    it is said beside the result or above it. `date`: when the specimen was taken, ISO 8601, where it can be read in one
    way.
    """

    name: str
    value: Value
    unit: str = ""
    reference: Range | None = None
    flag: str = ""
    specimen: str = ""
    date: str = ""
    span: Span
    by: Found = "rules"


class Diagnosis(BaseModel):
    """A diagnosis as printed, and its ICD-10 code where one stands beside it."""

    text: str
    code: str = ""
    date: str = ""
    span: Span
    by: Found = "rules"


class Procedure(BaseModel):
    """What was done, as printed; the code (CPT, OPS, CCAM) where one stands beside it."""

    text: str
    code: str = ""
    date: str = ""
    span: Span
    by: Found = "rules"


class Variant(BaseModel):
    """A genetic variant: HGVS at whichever levels are printed, rsID, genotype as printed (`A/G`)."""

    gene: str = ""
    transcript: str = ""
    coding: str = Field(default="", description="HGVS c. (or g., m., n.)")
    protein: str = Field(default="", description="HGVS p.")
    rsid: str = ""
    genotype: str = ""
    zygosity: Literal["", "heterozygous", "homozygous", "hemizygous", "compound heterozygous", "wild type"] = ""
    span: Span
    by: Found = "rules"


class Facts(BaseModel):
    """All that was found in a document, in the order of its pages."""

    biomarkers: list[Biomarker] = Field(default_factory=list)
    diagnoses: list[Diagnosis] = Field(default_factory=list)
    procedures: list[Procedure] = Field(default_factory=list)
    variants: list[Variant] = Field(default_factory=list)
