"""The whole main job in a real browser: an image, a layer, a class; heatmap, overlay, feature maps; downloads."""

import base64
import io
import json
from itertools import product

import numpy as np
import pytest
from PIL import Image

from hooklab import data, images
from tests.test_ui import unpack

STATE = "() => window.hooklab.state"
ANSWER = "() => window.hooklab.answer"
PAINTED = """name => { const canvas = document.querySelector(name), {width, height} = canvas;
    const bytes = canvas.getContext("2d").getImageData(0, 0, width, height).data;
    let text = "";
    for (let k = 0; k < bytes.length; k += 0x8000) text += String.fromCharCode(...bytes.subarray(k, k + 0x8000));
    return [height, width, btoa(text)]; }"""


def painted(page, selector):
    """The pixels of a canvas, uint8 (H, W, 3)."""
    height, width, text = page.evaluate(PAINTED, selector)
    return np.frombuffer(base64.b64decode(text), np.uint8).reshape(height, width, 4)[..., :3]


def test_the_first_page_shows_test_image_1218_with_a_true_sentence(page, visit, shot):
    visit(page)
    answer = page.evaluate(ANSWER)
    assert (answer["index"], answer["label"], answer["layer"]) == (1218, 8, "pool:3.input")
    predicted = data.CLASSES[answer["predicted"]]
    sentence = page.inner_text("#hl-say")
    assert sentence.startswith(f"SimpleCNN says {predicted}, {100 * max(answer['probabilities']):.1f} %.")
    assert f"evidence for {predicted}" in sentence and "conv3 after relu" in sentence
    assert page.inner_text("#hl-truth").startswith("Truly a ship")
    assert (painted(page, "#hl-input") == np.asarray(data.test_image(1218)[0])).all()
    assert page.evaluate("document.documentElement.scrollHeight") <= 900  # one glance
    shot(page)


def test_indices_by_typing_stepping_keys_and_chance(page, visit, settle):
    visit(page, index=0)
    page.fill("#hl-index", "77")
    page.press("#hl-index", "Enter")
    settle(page)
    assert page.evaluate(ANSWER)["index"] == 77
    page.click("[data-step='1']")
    settle(page)
    page.click("[data-step='-1']")
    settle(page)
    page.click("h1")
    page.keyboard.press("ArrowLeft")
    settle(page)
    assert page.evaluate(ANSWER)["index"] == 76 and "index=76" in page.url
    page.click("#hl-random")
    settle(page)
    assert 0 <= page.evaluate(ANSWER)["index"] <= 9999
    page.click("[data-example='25']")
    settle(page)
    assert page.evaluate(ANSWER)["index"] == 25


def test_a_wrong_index_gets_a_sentence_and_nothing_is_lost(page, visit):
    for typed in ("-1", "10000", "abc", "1.5", ""):
        visit(page, index=5)
        page.fill("#hl-index", typed)
        page.press("#hl-index", "Enter")
        page.wait_for_selector("#hl-note:not([hidden])")
        assert "0 to 9999" in page.inner_text("#hl-note"), typed
        assert page.input_value("#hl-index") == "5" and page.evaluate(ANSWER)["index"] == 5, typed


def test_a_class_and_a_layer_change_the_map(page, visit, settle):
    visit(page)
    first = painted(page, "[data-panel=heatmap] canvas")
    page.click("[data-class='1']")
    settle(page)
    assert page.evaluate(ANSWER)["target"] == 1 and "target=automobile" in page.url
    assert "You ask about automobile" in page.inner_text("#hl-say")
    assert (painted(page, "[data-panel=heatmap] canvas") != first).any()
    page.click("[data-layer='conv2']")
    settle(page)
    assert page.evaluate(ANSWER)["map"]["raw"]["shape"] == [16, 16]
    page.select_option("#hl-layer", "fc1")
    settle(page)
    assert "has no map" in page.inner_text("#hl-say")
    page.go_back()  # the browser's own button
    page.wait_for_function("() => hooklab.answer.layer === 'conv2'")


def test_P2_models_and_layers_back_and_forth(page, visit, settle):
    visit(page)
    for _ in range(6):
        for model in ("resnet", "simple_cnn"):
            page.select_option("#hl-model", model)
            settle(page)
            answer = page.evaluate(ANSWER)
            assert answer["model"] == model and not answer["notes"]
            assert page.input_value("#hl-layer") == answer["layer"]
    visit(page, model="resnet", layer="pool:3.input")
    assert "default layer" in page.inner_text("#hl-note")


def test_the_browser_paints_what_python_paints(page, visit):
    enlarged = np.kron(np.asarray(data.test_image(90)[0]), np.ones((12, 12, 1), np.uint8))
    for smooth, normalization, colors in product([True, False], ["max", "min-max"], ["inferno", "jet"]):
        display = {"smooth": smooth, "normalization": normalization, "colors": colors}
        visit(page, index=90, target="dog", opacity=0.4, **display)
        raw = unpack(page.evaluate(ANSWER)["map"]["raw"])
        size = painted(page, "[data-panel=heatmap] canvas").shape[:2]
        heat = images.heatmap(raw, size, normalization, smooth)
        wanted = {"heatmap": images.colorize(heat, colors), "overlay": images.overlay(enlarged, heat, colors, 0.4)}
        for panel, picture in wanted.items():
            difference = np.abs(painted(page, f"[data-panel={panel}] canvas").astype(int) - picture)
            # One entry of the colour table may be a step off where 255 * heat + 0.5 lands on a whole number.
            assert np.median(difference) == 0 and (difference <= 1).mean() > 0.995, (panel, display, difference.max())
            assert difference.max() <= np.abs(np.diff(images.colormap(colors).astype(int), axis=0)).max()


def test_display_controls_cost_no_request(page, visit):
    visit(page)
    page.wait_for_selector("#hl-true.ready")  # asked for after a moment of looking, not by a display control
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    before = painted(page, "[data-panel=overlay] canvas")
    page.select_option("[data-key=colors]", "viridis")
    page.locator("[data-key=opacity]").fill("0.9")
    page.uncheck("[data-key=smooth]")
    page.select_option("[data-key=normalization]", "min-max")
    assert (painted(page, "[data-panel=overlay] canvas") != before).any()
    assert not [url for url in asked if not url.startswith(("data:", "blob:"))]
    for part in ("colors=viridis", "opacity=0.9", "smooth=false", "normalization=min-max"):
        assert part in page.url


def test_the_value_under_the_pointer_is_the_maps_own(page, visit):
    visit(page, smooth=False)
    raw = unpack(page.evaluate(ANSWER)["map"]["raw"])
    box = page.locator("[data-panel=heatmap]").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.70, box["y"] + box["height"] * 0.30)
    text = page.inner_text("#hl-probe").replace("−", "-")
    value = float(text.split("evidence ")[1].split(",")[0])
    assert value == pytest.approx(raw[int(0.30 * 8), int(0.70 * 8)], rel=0.01, abs=1e-4)
    assert "row 9, column 22" in text
    assert page.locator(".hl-cross:visible").count() == 3


def test_feature_maps_in_three_orders_and_one_enlarged(page, visit, settle, shot):
    visit(page, tab="features", layer="conv3")
    answer = page.evaluate(ANSWER)
    maps, weights = unpack(answer["features"]["maps"]), np.array(answer["features"]["weights"])
    shown = "() => [...document.querySelectorAll('.hl-sheet button')].map(tile => Number(tile.dataset.channel))"
    means = maps.mean((1, 2))
    order = page.evaluate(shown)
    assert sorted(order) == list(range(128))
    contribution = (weights * means)[order]
    assert (np.diff(contribution) <= 1e-6).all()
    page.select_option("[data-key=order]", "mean")
    assert (np.diff(means[page.evaluate(shown)]) <= 1e-6).all()
    page.select_option("[data-key=order]", "index")
    assert page.evaluate(shown) == list(range(128))
    page.click("[data-channel='17']")
    facts = page.inner_text("#hl-facts")
    assert page.inner_text("#hl-channel figcaption >> nth=0").startswith("Channel 17")
    assert f"{100 * (maps[17] <= 0).mean():.1f} %" in facts and "channel=17" in page.url
    page.keyboard.press("ArrowRight")
    assert "channel=18" in page.url
    shot(page)


def test_a_layer_without_places_still_shows_its_channels(page, visit):
    visit(page, tab="features", layer="fc1")
    assert page.locator(".hl-sheet button").count() == 512


def test_ones_own_picture_is_cropped_as_shown_and_explained(page, visit, settle, tmp_path, shot):
    visit(page)
    picture = Image.effect_noise((90, 60), 90).convert("RGB")
    picture.save(tmp_path / "own.png")
    page.click(".hl-switch [data-source=own]")
    page.set_input_files("#hl-file", tmp_path / "own.png")
    page.wait_for_function("() => hooklab.answer.index === null")
    settle(page)
    assert (painted(page, "[data-panel=input] canvas") == data.fit(picture, (32, 32)).pixels).all()
    assert "90 × 60" in page.inner_text("#hl-crop") and "60 × 60" in page.inner_text("#hl-crop")
    assert "stored" in page.inner_text("#hl-crop")
    page.click("[data-class='4']")
    settle(page)
    assert page.evaluate(ANSWER)["target"] == 4 and page.evaluate(ANSWER)["index"] is None
    page.select_option("#hl-model", "resnet")  # which fits the picture anew
    page.wait_for_function("() => hooklab.answer.model === 'resnet'")
    assert page.evaluate(ANSWER)["index"] is None
    shot(page)
    page.click(".hl-switch [data-source=test]")
    page.click("[data-step='1']")
    settle(page)
    assert page.evaluate(ANSWER)["index"] == 1219


def test_a_picture_from_the_clipboard(page, visit, settle):
    visit(page)
    page.evaluate(
        """async () => {
        const canvas = Object.assign(document.createElement("canvas"), {width: 64, height: 64});
        canvas.getContext("2d").fillRect(0, 0, 40, 40);
        const blob = await new Promise(done => canvas.toBlob(done, "image/png"));
        const clipboardData = new DataTransfer();
        clipboardData.items.add(new File([blob], "pasted.png", {type: "image/png"}));
        document.dispatchEvent(new ClipboardEvent("paste", {clipboardData, bubbles: true}));
    }"""
    )
    page.wait_for_function("() => hooklab.answer.index === null")


def test_F6_a_broken_file_gets_a_sentence_and_nothing_is_lost(page, visit, tmp_path):
    for content in (b"", b"just text", b"\x89PNG\r\n\x1a\nbroken"):
        visit(page, index=9)
        (tmp_path / "broken.png").write_bytes(content)
        page.click(".hl-switch [data-source=own]")
        page.set_input_files("#hl-file", tmp_path / "broken.png")
        page.wait_for_selector("#hl-note.error:not([hidden])")
        assert "number" not in page.inner_text("#hl-note"), content  # a sentence of its own, not "something went wrong"
        assert page.evaluate(ANSWER)["index"] == 9, content


def test_downloads(page, visit):
    visit(page, target="truck")
    answer = page.evaluate(ANSWER)
    with page.expect_download() as png:
        page.click("#hl-png")
    picture = Image.open(png.value.path())
    assert png.value.suggested_filename == "hooklab_1218_simple_cnn_pool-3.input_truck_gradcam.png"
    assert round(picture.info["dpi"][0]) == 150
    with page.expect_download() as npz:
        page.click("#hl-npz")
    arrays = np.load(io.BytesIO(npz.value.path().read_bytes()))
    assert arrays["raw"].max() == pytest.approx(answer["map"]["high"])
    assert json.loads(str(arrays["about"]))["target"] == "truck"


def test_a_link_opens_the_same_view_and_wrong_values_fall_back_with_a_note(page, visit):
    visit(page, index=33, model="resnet", target="cat", colors="cividis", opacity=0.25, tab="features")
    state = page.evaluate(STATE)
    assert (state["index"], state["model"], state["tab"], state["opacity"]) == (33, "resnet", "features", 0.25)
    visit(page, index=99999, target="zebra", colors="pink", tab="nowhere", layer="conv9")
    note = page.inner_text("#hl-note")
    for wrong in ("99999", "zebra", "pink", "nowhere", "conv9"):
        assert wrong in note
    answer = page.evaluate(ANSWER)
    assert answer["index"] == 1218 and answer["target"] == answer["predicted"] and "zebra" not in page.url


def test_P3_a_fast_hand_sends_only_the_latest_change(page, visit, settle):
    visit(page)
    asked = []
    page.on("request", lambda request: asked.append(request.url) if "component_server" in request.url else None)
    page.evaluate("() => { for (let k = 0; k < 40; k++) hooklab.rail.step(1) }")
    settle(page)
    assert page.evaluate(ANSWER)["index"] == 1258 and len(asked) <= 3


def test_the_page_is_whole_in_chinese(new_page, visit, shot):
    page = visit(new_page(locale="zh-CN"))
    assert page.evaluate("document.documentElement.lang") == "zh-CN"
    assert page.inner_text("#hl-say").startswith("SimpleCNN 认为是")
    assert "船" in page.inner_text("[data-class='8']")
    shot(page)
