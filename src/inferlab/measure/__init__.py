"""Measurements: the clock on a pass, and the record of a machine."""
