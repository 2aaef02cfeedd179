"""Delegates that are driven by other workers than their Job."""
