"""The demo: one network, three losses, on few classes and on many, and one page that shows what came out.

plan      what is trained, and what that needs
findings  what came out, and which of it may be called better
page      one HTML file in two languages that needs no network
words.json
"""

from hypermargin.demo.findings import TITLES, Findings, find
from hypermargin.demo.page import circles, page, title
from hypermargin.demo.plan import PLAN, demo

__all__ = ["PLAN", "TITLES", "Findings", "circles", "demo", "find", "page", "title"]
