"""From knowledge sources to a memory."""
