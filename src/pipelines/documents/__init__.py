"""Documents: Router -> Parser -> Grouper. The room; its libraries move in with their own lanes."""
