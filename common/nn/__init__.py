"""Network code that all systems share."""
