"""`phaze documents`: PDFs in, a table of biomarkers over time out."""
