"""Retained performance (paper, Section 4.5 and Appendix G): placements on N ranks beside PEARL on N + 1."""
