"""The chat page: self-contained, and in a real browser: streaming, stop, markup shown as text, the meters."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from running_server import Running, Serve, wait_until

from localllm.server.page import page_text, policy

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # https://www.w3.org/TR/webdriver2/#elements


def test_the_page_needs_nothing_else(server: Running) -> None:
    response = server.get("/")
    assert response.headers["content-type"].startswith("text/html")
    assert response.headers["content-security-policy"] == policy()
    assert "default-src 'none'" in policy()
    assert "unsafe" not in policy()
    text = page_text()
    assert not re.search(r"https?://|<link|<img|@import|innerHTML|eval\(|\son\w+=", text)
    assert len(text) < 16_000


class Browser:
    """Chromium without a screen, by the WebDriver protocol."""

    def __init__(self, client: httpx2.Client) -> None:
        self._client = client
        options = {"args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]}
        wanted = {"capabilities": {"alwaysMatch": {"browserName": "chrome", "goog:chromeOptions": options}}}
        self._session = self._call("POST", "/session", wanted)["sessionId"]

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        response = self._client.request(method, path, json=body)
        assert response.status_code == 200, response.text
        return response.json()["value"]

    def call(self, method: str, path: str, body: Any = None) -> Any:
        return self._call(method, f"/session/{self._session}{path}", body)

    def open(self, url: str) -> None:
        self.call("POST", "/url", {"url": url})

    def run(self, script: str) -> Any:
        return self.call("POST", "/execute/sync", {"script": script, "args": []})

    def type(self, css: str, text: str) -> None:
        element = self.call("POST", "/element", {"using": "css selector", "value": css})[ELEMENT]
        self.call("POST", f"/element/{element}/value", {"text": text})

    def click(self, css: str) -> None:
        element = self.call("POST", "/element", {"using": "css selector", "value": css})[ELEMENT]
        self.call("POST", f"/element/{element}/click", {})

    def text(self, css: str) -> str:
        return str(self.run(f"return [...document.querySelectorAll({css!r})].map(e => e.textContent).join('|')"))

    def close(self) -> None:
        self.call("DELETE", "")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    driver = shutil.which("chromedriver")
    if driver is None or not any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))):
        pytest.skip("no Chromium with chromedriver on this machine")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with subprocess.Popen([driver, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        client = httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, verify=False)

        def listens() -> bool:
            try:
                return client.get("/status").status_code == 200
            except httpx2.HTTPError:
                return False

        try:
            wait_until(listens)
            one = Browser(client)
            yield one
            one.close()
        finally:
            client.close()
            process.terminate()


def ask(browser: Browser, text: str) -> None:
    browser.type("#text", text + "\ue007")  # Enter


def test_a_chat(browser: Browser, server: Running) -> None:
    server.model.executor.say("<think>\nhm\n</think>\nHi <b>you</b> <script>document.title = 'bad'</script>")
    browser.open(server.url)
    wait_until(lambda: browser.text("#model option") == "m")
    ask(browser, "hello <i>there</i>")
    wait_until(lambda: browser.text("article.assistant > pre").endswith("</script>"))
    wait_until(lambda: "of 512 tokens" in browser.text("#used"))
    assert browser.text("article.user > pre") == "hello <i>there</i>"
    assert browser.text("article.assistant > pre") == "Hi <b>you</b> <script>document.title = 'bad'</script>"
    assert browser.text("article.assistant details pre").strip() == "hm"
    assert browser.run("return document.querySelectorAll('article b, article i').length") == 2  # the names only
    assert browser.run("return document.title") == "localllm"
    assert "tokens/s" in browser.text("#speed")
    assert 0 < browser.run("return document.getElementById('context').value") < 1
    server.model.executor.say("again")
    ask(browser, "more")
    wait_until(lambda: browser.text("article.assistant > pre").endswith("|again"))
    browser.click("#new")
    assert browser.text("article") == ""


def test_stop(browser: Browser, serve: Serve) -> None:
    server = serve(model={"context": 4096})
    server.model.executor.say("word " * 700)
    server.model.executor.delay = 0.005
    browser.open(server.url)
    wait_until(lambda: browser.text("#model option") == "m")
    ask(browser, "go")
    wait_until(lambda: len(browser.text("article.assistant > pre")) > 20)
    browser.click("#stop")
    wait_until(lambda: server.active == 0)
    wait_until(lambda: browser.run("return document.getElementById('stop').hidden"))
    assert "word word" in browser.text("article.assistant > pre")
    assert browser.text("article.error") == ""
    server.model.executor.delay = 0
    server.model.executor.say("done")
    ask(browser, "and now?")
    wait_until(lambda: browser.text("article.assistant > pre").endswith("|done"))


def test_errors_and_keys(browser: Browser, serve: Serve) -> None:
    server = serve(api_key="secret")
    browser.open(server.url)
    wait_until(lambda: not browser.run("return document.getElementById('key').hidden"))
    browser.type("#key", "secret\ue004")  # Tab
    wait_until(lambda: browser.text("#model option") == "m")
    ask(browser, "x" * 600)
    wait_until(lambda: "context" in browser.text("article.error pre"))
    server.model.executor.say("fine")
    ask(browser, "short")
    wait_until(lambda: browser.text("article.assistant > pre").endswith("fine"))


def test_the_page_travels_with_the_package() -> None:
    import localllm.server

    assert (Path(localllm.server.__file__).parent / "page.html").is_file()
