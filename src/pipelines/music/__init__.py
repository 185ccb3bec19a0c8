"""Music: analysis, fingerprints, tags, scans. Pure functions and the tasks around them."""
