"""The report of a comparison: one HTML file that needs no network.

page      sections and their words
pictures  what is drawn of every head
report.css, report.js
"""

from hypermargin.compare.report.page import page, write_report

__all__ = ["page", "write_report"]
