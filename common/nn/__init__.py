"""What the networks of all systems share."""
