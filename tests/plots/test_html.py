"""A page of one file: whatever gets into its body, no script but its own runs, and nothing leaves the machine."""

import re

from hypermargin.plots.html import document

BODY = """<p>text</p><script>window.other = 1</script>
<img src="data:image/png;base64,x" onerror="window.other = 2"><a href="javascript:window.other = 3">x</a>
<form action="https://example.invalid/"><input name="a"></form>"""


def policy_of(html):
    return re.search(r'Content-Security-Policy" content="([^"]*)"', html)[1]


def test_only_the_pages_own_script_runs(browser, tmp_path):
    file = tmp_path / "page.html"
    file.write_text(document("t", "", BODY, "window.own = 'é\u2028';"), encoding="utf-8")
    asked = []
    page = browser.new_page()
    try:
        page.on("request", lambda request: asked.append(request.url))
        page.goto(file.as_uri())
        page.locator("a").click()
        page.evaluate("document.forms[0].submit()")
        page.wait_for_timeout(100)
        assert page.evaluate("[window.own, window.other ?? null]") == ["é\u2028", None]
        assert page.url == file.as_uri()
    finally:
        page.close()
    assert {url.split(":")[0] for url in asked} <= {"file", "data"}


def test_a_page_without_a_script_allows_none():
    assert "script-src" not in policy_of(document("t", "", "", ""))
    assert "'unsafe-inline'" not in policy_of(document("t", "", "", "x")).split("script-src")[1]


def test_only_a_page_that_is_served_may_fetch():
    assert "connect-src" not in policy_of(document("t", "", "", "x"))
    assert "connect-src 'self'" in policy_of(document("t", "", "", "x", fetches=True))
