"""A printed report as a scanner sees it: a grey picture, a little askew, with noise, as JPEG in a PDF."""

from __future__ import annotations

import io
import random

import numpy as np
import pypdfium2
from PIL import Image
from reportlab.lib.utils import ImageReader
from reportlab.pdfgen.canvas import Canvas

from tests.pipelines.documents.reports.layouts import Scan


def scanned(pdf: bytes, scan: Scan, chance: random.Random) -> bytes:
    """The same pages as pictures; no text is left in the file."""
    file = io.BytesIO()
    canvas = Canvas(file, invariant=1)
    grain = np.random.default_rng(chance.randrange(2**32))
    with pypdfium2.PdfDocument(pdf) as document:
        for page in document:
            bitmap = page.render(scale=scan.dpi / 72, grayscale=True)
            picture = bitmap.to_pil().convert("L")
            picture = picture.rotate(
                chance.uniform(-scan.skew, scan.skew), resample=Image.Resampling.BICUBIC, fillcolor=250
            )
            grey = np.asarray(picture, dtype=np.float32)
            grey = 20 + grey * 0.9 + grain.normal(0, scan.noise, grey.shape).astype(np.float32)
            noisy = Image.fromarray(np.clip(grey, 0, 255).astype(np.uint8))
            jpeg = io.BytesIO()
            noisy.save(jpeg, "JPEG", quality=scan.quality)
            width, height = page.get_size()
            canvas.setPageSize((width, height))
            canvas.drawImage(ImageReader(jpeg), 0, 0, width, height)
            canvas.showPage()
            page.close()
    canvas.save()
    return file.getvalue()
