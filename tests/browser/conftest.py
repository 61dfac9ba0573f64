"""One real server for all browser tests, and pages that fail on console errors and on requests to other hosts.

`HOOKLAB_URL=http://... pytest tests/browser` tests a page that is already running instead. Screenshots that a test
takes with `shot` are kept in artifacts/.
"""

import os
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import pytest
from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = shutil.which("chromium")  # None: the one that `playwright install chromium` fetched
STARTING_SECONDS = 180  # two busy cores import PyTorch and Gradio in 12 to 60 seconds
SETTLED = "() => window.hooklab?.answer && !document.querySelector('#hooklab[aria-busy]')"


@pytest.fixture(scope="session")
def url():
    """The address of `python app.py`, as a user would start it, with the shipped checkpoints: "http://127.0.0.1:PORT"."""
    if os.environ.get("HOOKLAB_URL"):
        yield os.environ["HOOKLAB_URL"].rstrip("/")
        return
    for _ in range(3):  # Gradio gives its server five seconds to start, and a busy machine may need more
        server, address, lines = start_server()
        if address:
            break
        stop(server)
    else:
        pytest.fail(f"app.py did not start:\n{''.join(lines)}")
    yield address
    stop(server)


def start_server() -> tuple[subprocess.Popen, str, list[str]]:
    """The process, its address ("" if it did not start) and what it printed."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "app.py", "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines, known = [], threading.Event()

    def read():  # to the end, or the server would block on a full pipe
        for line in server.stdout:
            lines.append(line)
            if "hooklab: open" in line:
                known.set()
        known.set()

    threading.Thread(target=read, daemon=True).start()
    known.wait(STARTING_SECONDS)
    started = any("hooklab: open" in line for line in lines)
    return server, f"http://127.0.0.1:{port}" if started else "", lines


def stop(server: subprocess.Popen) -> None:
    server.terminate()
    try:
        server.wait(20)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


@pytest.fixture(scope="session")
def browser():
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def new_page(browser, url):
    """`new_page(width=..., locale=..., color_scheme=...) -> Page`, watched for errors and foreign requests."""
    contexts, problems = [], []

    def make(width=1440, height=900, locale="en-US", **options) -> Page:
        context = browser.new_context(viewport={"width": width, "height": height}, locale=locale, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.on("console", lambda m: problems.append(f"console: {m.text} {m.location}") if m.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(f"uncaught: {error}"))
        page.on("request", watch)
        return page

    def watch(request):
        if urlsplit(request.url).scheme in ("http", "https") and not request.url.startswith(url + "/"):
            problems.append(f"request to another host: {request.url}")

    yield make
    for context in contexts:
        context.close()
    assert not problems, "\n".join(problems)


@pytest.fixture
def page(new_page) -> Page:
    """An English page of 1440 x 900; nothing is opened yet."""
    return new_page()


@pytest.fixture
def visit(url):
    """`visit(page, tab="browse", lang="zh")` opens the link with that state and waits until the answer is painted.

    The first visit loads the page; later ones follow the link within it, as the back button does, which costs a tenth.
    """

    def go(page: Page, **state) -> Page:
        link = f"{url}/?{urlencode(state)}"
        if page.url.startswith(url):
            page.evaluate(
                "link => { history.pushState(null, '', link); dispatchEvent(new PopStateEvent('popstate')) }", link
            )
        else:
            page.goto(link)
        return settle_page(page)

    return go


def settle_page(page: Page) -> Page:
    page.wait_for_function(SETTLED)
    return page


@pytest.fixture
def settle():
    """`settle(page)` waits until the server's answer to the last change is painted."""
    return settle_page


@pytest.fixture
def shot(request):
    """`shot(page, "name")` keeps a screenshot in artifacts/, named after the test."""

    def take(page: Page, name: str = "") -> Path:
        folder = ROOT / "artifacts"
        folder.mkdir(exist_ok=True)
        path = folder / f"{request.node.name}{'-' + name if name else ''}.png"
        page.screenshot(path=path)
        return path

    return take
