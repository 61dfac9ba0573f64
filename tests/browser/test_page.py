"""The page as a whole: every tab in both languages and themes, the keyboard, accessibility, files, no network."""

import re

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from PIL import Image

from hooklab import data
from tests.browser.test_main import ANSWER, painted

TABS = ("gradcam", "features", "classes", "evidence", "hooks", "lessons", "networks", "browse", "about")


# What each tab shows, and what else it can show.
VIEWS = [
    *({"tab": tab} for tab in TABS),
    *({"tab": "classes", "show": show} for show in ("difference", "layers", "methods")),
    {"tab": "hooks", "result": "channels", "edits": "conv3~forward~noise~0.5~~3,fc1~tensor~clip~0.1"},
    *({"tab": "lessons", "lesson": letter} for letter in "bdfgj"),
]
BROKEN = re.compile(r"\{\w+\}|undefined|NaN")  # a text that lacks a value
WORDS = """() => { const copy = document.querySelector("#hooklab").cloneNode(true);
    for (const code of copy.querySelectorAll("code")) code.remove(); return copy.textContent; }"""


@pytest.mark.parametrize(("scheme", "options"), [("light", {}), ("dark", {"runOnly": ["color-contrast"]})])
def test_axe_finds_no_violation_of_ours(new_page, visit, scheme, options):
    page = new_page(color_scheme=scheme)
    for tab in TABS:
        visit(page, tab=tab)
        page.wait_for_timeout(300)
        found = Axe().run(page, "#hooklab", options).response["violations"]
        rows = [(row["id"], row["help"], [node["html"][:160] for node in row["nodes"][:3]]) for row in found]
        assert not rows, (tab, rows)


@pytest.mark.parametrize(("scheme", "locale"), [("light", "en-US"), ("dark", "zh-CN")])
def test_every_view_fits_every_width_and_no_text_is_missing(new_page, visit, shot, scheme, locale):
    page = new_page(color_scheme=scheme, locale=locale)
    for view in VIEWS:
        visit(page, **view)
        for width, height in ((1440, 900), (1024, 768), (390, 844)):
            page.set_viewport_size({"width": width, "height": height})
            page.wait_for_timeout(100)
            shot(page, "-".join(map(str, [*list(view.values())[:2], width])))
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (view, width)
            assert not BROKEN.search(page.evaluate(WORDS)), (view, width)


def test_nothing_jumps_when_results_arrive(page, visit, settle):
    visit(page)
    parts = "['.hl-three', '.hl-tools', '.hl-classes', '#hl-strip']"
    places = f"() => {parts}.map(s => document.querySelector(s).getBoundingClientRect().top)"
    before = page.evaluate(places)
    for change in ("[data-class='3']", "[data-step='1']", "[data-layer='conv2']", "#hl-random"):
        page.click(change)
        settle(page)
        assert page.evaluate(places) == before, change


def test_the_keyboard_reaches_everything(page, visit, settle):
    visit(page)
    page.focus("#hl-tab-gradcam")
    page.keyboard.press("ArrowRight")
    settle(page)
    assert page.evaluate(ANSWER) and "tab=features" in page.url
    assert page.evaluate("document.activeElement.id") == "hl-tab-features"
    reached = set()
    page.focus("#hl-code")
    for _ in range(90):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("(e => e.id || e.dataset.class || e.dataset.layer)(document.activeElement)"))
    assert {"hl-copy", "hl-qr", "hl-index", "hl-random", "hl-model", "hl-layer", "0", "9", "conv1", "fc2"} <= reached


def test_projector_mode_by_key_and_by_link(page, visit, settle):
    visit(page)
    page.click("h1")
    page.keyboard.press("p")
    assert not page.is_visible("#hl-rail") and page.is_visible("#hl-say") and "present=true" in page.url
    page.keyboard.press("ArrowRight")
    settle(page)
    assert page.evaluate(ANSWER)["index"] == 1219
    page.keyboard.press("Escape")
    assert page.is_visible("#hl-rail")
    visit(page, present=1)
    assert not page.is_visible("#hl-rail")


def test_the_language_switch_keeps_everything_else(page, visit, settle):
    visit(page, index=77, target="cat", tab="features", channel=3)
    page.click("#hl-language")
    settle(page)
    assert page.evaluate("document.documentElement.lang") == "zh-CN"
    state = page.evaluate("() => hooklab.state")
    assert (state["index"], state["target"], state["tab"], state["channel"]) == (77, "cat", "features", 3)
    assert "lang=zh" in page.url


def test_reduced_motion_builds_the_map_only_by_hand(new_page, visit):
    page = visit(new_page(reduced_motion="reduce"))
    page.click("#hl-show-build")
    page.wait_for_selector("#hl-build:not([hidden])")
    page.wait_for_timeout(400)
    assert page.input_value("#hl-count") == "0"


def test_the_map_built_up_from_all_channels_is_the_map(page, visit):
    visit(page)
    whole = painted(page, "[data-panel=heatmap] canvas").astype(int)
    page.click("#hl-show-build")
    page.wait_for_selector("#hl-build:not([hidden])")
    last = page.get_attribute("#hl-count", "max")
    page.locator("#hl-count").fill("0")
    assert (painted(page, "[data-panel=heatmap] canvas").std(axis=(0, 1)) == 0).all()  # nothing yet
    page.locator("#hl-count").fill(last)
    assert np.abs(painted(page, "[data-panel=heatmap] canvas") - whole).max() <= 8  # float16 of 128 channels


def test_every_class_layer_and_method(page, visit, settle):
    for show, tiles in (("classes", 10), ("difference", 3), ("layers", 9), ("methods", 8)):
        visit(page, tab="classes", show=show)
        assert page.locator(".hl-tile").count() == tiles
    page.click(".hl-tile >> nth=1")
    settle(page)
    assert "tab=" not in page.url and page.evaluate(ANSWER)["method"] == "gradcam++"


def test_erasing_by_slider_and_by_brush(page, visit):
    visit(page, tab="evidence", percent=0)
    page.wait_for_selector("#hl-paired div")
    assert all(curve.bounding_box()["width"] > 200 for curve in page.locator(".hl-curve svg").all())
    page.locator("#hl-percent").fill("100")
    page.wait_for_function("() => document.querySelector('#hl-say').textContent.includes('100 %')")
    page.click("#hl-clear")
    box = page.locator("#hl-left").bounding_box()
    page.mouse.move(box["x"] + 60, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 160, box["y"] + 160, steps=5)
    page.mouse.up()
    page.wait_for_function("() => document.querySelector('#hl-say').textContent.includes('You cover')")


def test_slow_tests_end_in_a_sentence(page, visit):
    for test, words in (("sanity", "passes|fails"), ("stability", "keeps")):
        visit(page, tab="evidence", test=test)
        page.wait_for_function(f"() => /{words}/.test(document.querySelector('#hl-say').textContent)")


def test_the_code_in_the_dialog_gives_what_the_page_shows(page, visit):
    visit(page, target="truck", layer="conv3")
    page.click("#hl-code")
    code = page.inner_text(".hl-script code")
    answer = page.evaluate(ANSWER)
    scope = {}
    exec(compile(code, "from the page", "exec"), scope)
    assert float(scope["raw"].max()) == pytest.approx(answer["map"]["high"], rel=1e-4)
    page.keyboard.press("Escape")
    page.wait_for_selector(".hl-script", state="detached")


def test_a_saved_view_opens_without_a_server(page, visit, browser, tmp_path):
    visit(page, index=25, target="dog")
    whole = painted(page, "[data-panel=overlay] canvas")
    with page.expect_download() as saved:
        page.click("#hl-html")
    path = tmp_path / "view.html"
    saved.value.save_as(path)
    assert path.stat().st_size < 1_000_000
    context = browser.new_context(viewport={"width": 1440, "height": 900}, offline=True)
    alone = context.new_page()
    problems = []
    alone.on("pageerror", lambda error: problems.append(str(error)))
    alone.on("request", lambda request: problems.append(request.url) if request.url.startswith("http") else None)
    alone.goto(path.as_uri())
    alone.wait_for_function("() => window.hooklab?.answer && !document.querySelector('#hooklab[aria-busy]')")
    assert (painted(alone, "[data-panel=overlay] canvas") == whole).all()
    alone.select_option("[data-key=colors]", "jet")
    alone.locator("[data-key=opacity]").fill("0.9")
    assert (painted(alone, "[data-panel=overlay] canvas") != whole).any()
    alone.click("[data-class='0']")
    alone.wait_for_function("() => hooklab.answer.target === 0")
    alone.click("[data-class='5']")
    alone.wait_for_function("() => hooklab.answer.target === 5")
    alone.click("#hl-tab-features")
    alone.wait_for_selector(".hl-sheet canvas")
    alone.select_option("[data-key=order]", "index")
    context.close()
    assert not problems


def test_P5_the_page_works_with_every_other_host_blocked(new_page, visit, url):
    page = new_page()
    page.route("**/*", lambda route: route.continue_() if route.request.url.startswith(url) else route.abort())
    visit(page)
    assert page.evaluate(ANSWER)["index"] == 1218


def test_P10_nothing_is_left_in_the_browser(page, visit, settle, tmp_path):
    visit(page)
    Image.new("RGB", (64, 64), "red").save(tmp_path / "mine.png")
    page.set_input_files("#hl-file", tmp_path / "mine.png")
    page.wait_for_function("() => hooklab.answer.index === null")
    left = page.evaluate("() => JSON.stringify([{...localStorage}, {...sessionStorage}])")
    assert "mine" not in left and len(left) < 2000, left


def test_P1_two_visitors_never_see_each_other(new_page, visit, settle):
    first, second = visit(new_page(), index=3, target="cat"), visit(new_page(), index=8, model="resnet")
    for turn in range(4):
        first.click("[data-step='1']")
        second.click("[data-step='-1']")
        settle(first), settle(second)
        a, b = first.evaluate(ANSWER), second.evaluate(ANSWER)
        assert (a["index"], a["model"], a["target"]) == (4 + turn, "simple_cnn", a["predicted"])
        assert (b["index"], b["model"]) == (7 - turn, "resnet")
        assert (painted(first, "#hl-input") == np.asarray(data.test_image(4 + turn)[0])).all()
