"""The lessons in a browser: numbers to change, a picture to paint, links, and code to take along."""

import re

from playwright.sync_api import expect


def say(page):
    return page.locator("#hl-say")


def test_each_lesson_opens_from_its_link_with_result_sentence_and_code(page, visit, shot):
    for letter in "abcdefghij":
        visit(page, tab="lessons", lesson=letter)
        expect(page.locator(f"[data-lesson={letter}]")).to_have_attribute("aria-current", "true")
        expect(page.locator("#hl-result")).not_to_be_empty()
        expect(say(page).locator("b").first).to_be_visible()
        expect(page.locator("#hl-lesson-code code")).to_contain_text("import torch")
        assert not re.search(r"\{\w+\}|undefined|NaN", page.locator(".hl-lesson").inner_text())
        shot(page, letter)


def test_a_number_changes_result_link_and_code_at_once(page, visit, settle):
    visit(page, tab="lessons", lesson="c")
    expect(say(page)).to_contain_text("96 instead of 192")
    page.locator("[name=x]").fill("3")
    expect(say(page)).to_contain_text("243")  # 3 y^2 at y = 9
    expect(page.locator("#hl-lesson-code code")).to_contain_text("chain(x=3.0, factor=0.5)")
    assert "numbers=x:3" in page.url
    page.reload()
    settle(page)
    expect(page.locator("[name=x]")).to_have_value("3")


def test_a_number_out_of_range_is_named_with_the_range_and_nothing_changes(page, visit):
    visit(page, tab="lessons", lesson="c")
    before = say(page).inner_text()
    for value in ("1000", "", "-10.5"):
        page.locator("[name=x]").fill(value)
        expect(page.locator("#hl-wrong")).to_contain_text("-10 to 10")
        expect(page.locator("[name=x]")).to_have_attribute("aria-invalid", "true")
    assert say(page).inner_text() == before
    page.locator("[name=x]").fill("2")
    expect(page.locator("#hl-wrong")).to_be_empty()


def test_a_bad_link_falls_back_with_a_note_and_leaves_the_address(page, visit):
    visit(page, tab="lessons", lesson="b", numbers="w:1e9,at:q,x:5", layer="conv2")
    expect(page.locator("#hl-note")).to_contain_text("-100 to 100")
    expect(page.locator("[name=w]")).to_have_value("1")
    expect(page.locator("[name=x]")).to_have_value("5")
    assert "numbers=x:5" in page.url and "1e9" not in page.url
    assert "layer=conv2" in page.url  # what was valid stays


def test_b_the_graph_says_every_value_and_gradient(page, visit):
    visit(page, tab="lessons", lesson="b", numbers="at:w,change:both")
    graph = page.locator(".hl-graph")
    assert "∂y/∂w = 30" in graph.get_attribute("aria-label")
    expect(graph).to_contain_text("5 → ∂y/∂w = 30")
    page.locator("[name=change]").select_option("watch")
    expect(graph).to_contain_text("∂y/∂w = 5")


def test_d_painting_by_pointer_and_keyboard_changes_both_maps(page, visit):
    visit(page, tab="lessons", lesson="d")
    cells, first = page.locator("[data-k]"), page.locator(".hl-cells").first
    assert " ".join(first.inner_text().split()) == "4 6 6 4 6 9 9 6 6 9 9 6 4 6 6 4"
    cells.nth(0).click()  # 9 instead of 1
    expect(first.locator("span").first).to_have_text("12")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("0")
    expect(first.locator("span").first).to_have_text("11")
    assert "image:9011111111111111" in page.url
    page.locator("[name=hook_returns]").select_option("the second map silenced")
    expect(page.locator(".hl-cells").nth(3)).to_contain_text("0")
    expect(page.locator(".hl-cells")).to_have_count(4)


def test_d_a_stroke_paints_every_cell_that_it_crosses(page, visit):
    visit(page, tab="lessons", lesson="d", numbers="image:" + "0" * 16)
    boxes = [page.locator("[data-k]").nth(k).bounding_box() for k in (0, 3)]
    (x1, y1), (x2, y2) = [(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2) for box in boxes]
    page.mouse.move(x1, y1)
    page.mouse.down()
    page.mouse.move(x2, y2, steps=12)
    page.mouse.up()
    expect(page.locator("[data-k]").nth(2)).to_have_text("9")
    page.wait_for_function("location.href.includes('image:9999000000000000')")


def test_numbers_are_kept_when_one_looks_at_another_lesson_and_back_goes_back(page, visit, settle):
    visit(page, tab="lessons", lesson="c", numbers="factor:-1")
    page.locator("[data-lesson=h]").click()
    settle(page)
    expect(page.locator("#hl-lesson-title")).to_have_text("A handle never removed")
    page.locator("[data-lesson=c]").click()
    settle(page)
    expect(page.locator("[name=factor]")).to_have_value("-1")
    page.go_back()
    settle(page)
    expect(page.locator("#hl-lesson-title")).to_have_text("A handle never removed")


def test_i_follows_the_pages_image_and_class(page, visit):
    visit(page, tab="lessons", lesson="i")
    expect(page.locator("#hl-lesson-code code")).to_contain_text("target=8")
    page.locator("[data-class='3']").click()
    expect(say(page)).to_contain_text("cat")
    expect(page.locator("#hl-lesson-code code")).to_contain_text("target=3")


def test_j_shows_how_far_it_is_and_then_every_layer(page, visit):
    visit(page, tab="lessons", lesson="j", numbers="images:100")
    expect(page.locator(".hl-bars > span.hl-number")).to_have_count(9)
    expect(page.locator("progress")).to_have_js_property("value", 1)
    expect(say(page)).to_contain_text("66 examples")


def test_the_code_can_be_saved_as_a_file(page, visit):
    visit(page, tab="lessons", lesson="e")
    with page.expect_download() as download:
        page.locator("[data-save]").click()
    assert download.value.suggested_filename == "lesson_e.py"
    assert download.value.path().read_text("utf-8") == page.locator("#hl-lesson-code code").inner_text()
