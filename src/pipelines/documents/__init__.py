"""Documents: Router (fetch and read pages), Parser (facts of a page), Grouper (one name and unit for each)."""
