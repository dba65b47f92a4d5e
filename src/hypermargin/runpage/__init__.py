"""One page that shows what a run, or anybody's embeddings, came to: a file that needs nothing but a browser.

write_report    RUN/report.html, of the weights and data of a run
of_embeddings   what a page shows of features and labels; `page` makes it a document
Subject         embeddings, and what is known of their samples

    content.py     verification, pairs, samples, points      cloud.py       where samples stand, for every s at once
    run.py         the log, the settings, training samples   thumbnails.py  small pictures, and not too many
    page.py        the document, with page.html, page.css    live.py        the page of a run under way
    write.py       all of it put together, as files          words.json     its words, in two languages
    page.js        start, words, tables, what deserves a look
    browse.js      the threshold                             plots.js       its plots
    pairs.js       the pairs it is wrong about               figures.js     curves, angles, features
    live.js        asks for the numbers of a run under way
"""

from hypermargin.runpage.content import Subject
from hypermargin.runpage.page import page, words
from hypermargin.runpage.write import of_embeddings, write_report

__all__ = ["Subject", "of_embeddings", "page", "words", "write_report"]
