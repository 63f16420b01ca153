"""Drawings for the book: the palette and the matplotlib stills."""
