"""The page of a run under way: on this machine alone, to be read alone, and it follows the log."""

import http.client
import json
import socket
import struct
import threading
import time
import urllib.parse

import pytest
from browser import PHONE

from hypermargin.runpage.live import live


def line(step, loss):
    return json.dumps({"kind": "train", "step": step, "epoch": 1, "loss": loss}) + "\n"


@pytest.fixture
def served(tmp_path):
    (tmp_path / "log.jsonl").write_text(line(1, 3.0) + line(2, 2.5) + '{"kind": "tr')
    (tmp_path / "config.toml").write_text("secret = 1")
    with live(tmp_path, "arcface on </script>photos") as address:
        yield tmp_path, urllib.parse.urlsplit(address)


def ask(place, path=None, method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", place.port, timeout=10)
    try:
        connection.putrequest(method, path or place.path, skip_host="Host" in headers)
        for name, text in headers.items():
            for each in [text] if isinstance(text, str) else text:
                connection.putheader(name, each)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def test_it_serves_the_page_and_the_log_and_nothing_else(served):
    folder, place = served
    assert place.hostname == "127.0.0.1"
    assert len(place.path) > 30
    status, headers, body = ask(place)
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cache-Control"] == "no-store"
    assert b"connect-src 'self'" in body
    assert json.loads(ask(place, place.path + "log.json")[2]) == {
        "train": {"step": [1, 2], "epoch": [1, 1], "loss": [3, 2.5]}
    }
    assert ask(place, method="HEAD")[::2] == (200, b"")
    guesses = ["/", "/log.json", "/config.toml", place.path[:-2] + "x/", place.path.rstrip("/")]
    guesses += [place.path + each for each in ("config.toml", "../config.toml", "%2e%2e/config.toml")]
    for path in guesses:
        status, _, body = ask(place, path)
        assert status == 404, path
        assert b"secret" not in body
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert ask(place, method=method)[0] == 501
    assert sorted(each.name for each in folder.iterdir()) == ["config.toml", "log.jsonl"]


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "", ["127.0.0.1:{port}", "x"]]
)
def test_another_host_is_refused(served, host):
    """A name of somebody else's that points at 127.0.0.1 must not open the page to his scripts."""
    _, place = served
    given = [each.format(port=place.port) for each in ([host] if isinstance(host, str) else host)]
    assert ask(place, Host=given)[0] == 403
    assert ask(place, Host=f"localhost:{place.port}")[0] == 200


def test_nothing_is_served_afterwards(tmp_path):
    with live(tmp_path, "x") as address:
        place = urllib.parse.urlsplit(address)
        assert json.loads(ask(place, place.path + "log.json")[2]) == {}, "no log yet"
    with pytest.raises(ConnectionRefusedError):
        ask(place)


def test_a_browser_that_goes_away_leaves_no_traceback(served, capfd):
    _, place = served
    with socket.create_connection(("127.0.0.1", place.port)) as browser:
        browser.sendall(b"GET /")
        browser.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # to end with a reset
    assert ask(place)[0] == 200
    for _ in range(100):  # until the thread of that request has ended
        if not any("process_request_thread" in thread.name for thread in threading.enumerate()):
            break
        time.sleep(0.05)
    assert capfd.readouterr().err == ""


def test_the_page_follows_the_log(served, browser):
    folder, place = served
    context = browser.new_context(viewport={"width": PHONE[0], "height": PHONE[1]}, color_scheme="dark")
    problems = []
    try:
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda said: said.type in ("error", "warning") and problems.append(said.text))
        page.on("request", lambda r: r.url.startswith(place.geturl()) or problems.append(r.url))
        page.goto(place.geturl())
        status = page.locator('[data-shows="live"]')
        page.wait_for_function("() => document.querySelector('[data-shows=live]').textContent.includes('step 2')")
        (folder / "log.jsonl").write_text(line(1, 3.0) + line(2, 2.5) + line(300, 0.5))
        page.wait_for_function("() => document.querySelector('[data-shows=live]').textContent.includes('step 300')")
        assert page.locator("#curves svg path.hm-main").first.get_attribute("d").count("L") == 2
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.locator('[data-choice="lang"]').select_option("zh")
        assert "第 300 步" in status.text_content()
        assert page.locator("h1").text_content() == "arcface on </script>photos"
    finally:
        context.close()
    assert not problems
