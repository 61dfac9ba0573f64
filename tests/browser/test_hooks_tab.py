"""The hooks tab in a browser: attach, switch, remove, forget, and from a feature map to its effect."""

import re

import pytest
from playwright.sync_api import expect


def row(page, class_index):
    return page.locator(".hl-pairs tbody tr").nth(class_index)


def attach(page, **fields):
    for name, value in fields.items():
        control = page.locator(f"#hl-form [name={name}]")
        control.select_option(value) if name in ("layer", "hook", "action") else control.fill(value)
    page.locator("#hl-add").click()


def test_it_opens_with_the_four_kinds_on_the_layer_in_their_order(page, visit, shot):
    visit(page, tab="hooks", layer="conv3")
    calls = page.locator(".hl-call")
    expect(calls).to_have_count(4)
    words = [text.split("\n")[1] for text in calls.all_inner_texts()]
    kinds = ["forward pre-hook", "forward hook", "tensor hook", "full backward hook"]
    assert words == [f"conv3 {kind}" for kind in kinds]
    boxes = [call.bounding_box() for call in calls.all()]
    assert boxes[0]["y"] < boxes[1]["y"]  # down
    assert boxes[2]["y"] > boxes[3]["y"]  # and up
    assert boxes[2]["x"] > boxes[0]["x"] + boxes[0]["width"]
    expect(page.locator("#hl-live")).to_contain_text("before 0 → during 5 → after 0")
    shot(page)


def test_an_edit_changes_the_prediction_the_sentence_and_the_link(page, visit, settle):
    visit(page, tab="hooks")
    before = row(page, 8).inner_text()
    attach(page, layer="conv1", hook="forward", action="zero", channels="0-15")
    expect(page.locator("#hl-edits li")).to_contain_text("changed the prediction")
    assert row(page, 8).inner_text() != before and "→" in row(page, 8).inner_text()
    expect(page.locator("#hl-say")).to_contain_text("The probability of ship goes from")
    assert "edits=conv1~forward~zero~~0-15" in page.url
    page.reload()
    settle(page)
    expect(page.locator("#hl-edits li")).to_contain_text("channels 0, 1, 2, 3, 4 … (16)")


def test_edits_are_switched_off_changed_and_removed_one_by_one(page, visit, settle):
    visit(page, tab="hooks", edits="conv1~forward~zero,conv2~tensor~scale~0.5")
    expect(page.locator("#hl-edits li")).to_have_count(2)
    expect(page.locator("#hl-edits li").nth(1)).to_contain_text("changed gradients alone")
    page.locator("#hl-edits input").first.uncheck()
    expect(page.locator("#hl-edits li").first).to_contain_text("switched off")
    expect(page.locator("#hl-say")).to_contain_text("Nothing changed the forward pass")
    expect(page.locator("#hl-say")).to_contain_text("The gradient at the input is 0.5 times as large")
    page.locator("#hl-edits [data-load]").nth(1).click()
    attach(page, value="-1")
    expect(page.locator("#hl-edits li").nth(1)).to_contain_text("scale −1")
    page.locator("#hl-edits [data-remove]").first.click()
    expect(page.locator("#hl-edits li")).to_have_count(1)
    assert "edits=conv2~tensor~scale~-1" in page.url
    page.go_back()
    settle(page)
    expect(page.locator("#hl-edits li")).to_have_count(2)


BAD_EDITS = [
    ({"action": "zero", "channels": "128"}, "128 is not a whole number from 0 to 127"),
    ({"action": "zero", "channels": "x"}, "x is not a whole number from 0 to 127"),
    ({"action": "zero", "channels": "9-3"}, "9-3 is not a whole number from 0 to 127"),
    ({"action": "keep", "channels": ""}, "at least one, from 0 to 127"),
    ({"action": "scale", "value": "NaN"}, "NaN is not a number from"),
    ({"action": "scale", "value": ""}, "is not a number from"),
    ({"action": "prune", "value": "101"}, "101 is not a number from 0 to 100"),
    ({"action": "clamp", "value": "1", "high": "0"}, "the lower one first"),
    ({"action": "noise", "value": "1", "seed": "-1"}, "-1 is not a whole number from 0 to 2147483647"),
    ({"hook": "tensor", "action": "clip_norm", "value": "-1"}, "-1 is not a number from 0 to"),
]


def test_a_bad_edit_gets_a_sentence_with_the_range_and_is_not_attached(page, visit):
    for fields, message in BAD_EDITS:
        visit(page, tab="hooks", layer="conv3", watch="none")
        attach(page, **fields)
        expect(page.locator("#hl-wrong")).to_contain_text(message)
        expect(page.locator("#hl-edits li.none")).to_be_visible()
        assert "edits=" not in page.url, fields


def test_a_bad_edit_in_a_link_says_what_is_wrong_and_the_others_run(page, visit):
    visit(page, tab="hooks", edits="conv3~forward~zero~~128,conv1~forward~zero,conv9~forward,nonsense")
    rows = page.locator("#hl-edits li")
    expect(rows.nth(0)).to_contain_text("channel: 128 is not a whole number from 0 to 127")
    expect(rows.nth(1)).to_contain_text("changed the prediction")
    expect(rows.nth(2)).to_contain_text("layer: 'conv9' is not one of conv1")
    expect(rows.nth(3)).to_contain_text("is not one of")


def test_forgotten_hooks_pile_up_for_this_user_alone(page, new_page, visit, settle):
    visit(page, tab="hooks", watch="none", edits="conv2~forward~scale~0.9")
    page.locator("#hl-forget").check()
    for run in (1, 2, 3):
        expect(page.locator("#hl-live")).to_contain_text(f"before {run - 1} → during {run} → after {run}")
        expect(page.locator(".hl-call")).to_have_count(run)
        page.locator("#hl-again").click()
        settle(page)
    expect(page.locator("#hl-growth i")).to_have_count(4)
    other = visit(new_page(), tab="hooks", watch="none", edits="conv2~forward~scale~0.9")
    expect(other.locator("#hl-live")).to_contain_text("before 0 → during 1 → after 0")
    page.locator("#hl-restart").click()
    expect(page.locator("#hl-live")).to_contain_text("before 0 → during 1")


def test_a_channel_of_the_feature_maps_is_silenced_here(page, visit, settle):
    visit(page, tab="features", layer="conv3", channel=5)
    page.locator("#hl-silence").click()
    settle(page)
    assert "tab=hooks" in page.url and "edits=conv3~forward~zero~~5" in page.url
    expect(page.locator("#hl-edits li")).to_contain_text("channels 5")
    page.locator("[data-tab=features]").click()
    settle(page)
    page.locator("[data-channel='7']").click()
    page.locator("#hl-silence").click()
    settle(page)
    assert "edits=conv3~forward~zero~~5.7" in page.url


def test_the_table_ranks_channels_and_silencing_one_takes_what_it_says(page, visit, settle, shot):
    visit(page, tab="hooks", result="channels", watch="none")
    rows = page.locator("#hl-effects tbody tr")
    expect(rows).to_have_count(128)
    losses = [float(cell.replace("−", "-")) for cell in rows.locator("td:nth-child(2)").all_inner_texts()]
    assert [abs(loss) for loss in losses] == sorted((abs(loss) for loss in losses), reverse=True)
    expect(page.locator(".hl-plot circle")).to_have_count(128)
    assert re.search(r"−?\d\.\d\d with Grad-CAM's weight", page.locator("#hl-correlation").inner_text())
    shot(page)
    rows.first.locator("button").click()
    settle(page)
    before, after = row(page, 8).locator("td").nth(2).inner_text().split(" → ")
    assert float(before) - float(after) == pytest.approx(losses[0], abs=0.011)


def test_watching_every_module_of_the_larger_network_fits_and_scrolls(page, visit):
    visit(page, tab="hooks", model="resnet", watch="all")
    assert page.locator(".hl-call").count() > 100
    assert page.evaluate("(e => e.scrollHeight > e.clientHeight)(document.querySelector('#hl-calls'))")


def test_at_1440_by_900_prediction_pictures_and_calls_are_on_one_screen(page, visit):
    visit(page, tab="hooks")
    for selector in (".hl-pairs", ".hl-four", "#hl-calls", "#hl-add", "#hl-again"):
        box = page.locator(selector).bounding_box()
        assert box["y"] + box["height"] <= 900, selector
