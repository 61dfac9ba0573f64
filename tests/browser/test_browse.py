"""Browse, the two networks, and About, in a real browser."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np

from hooklab import data, models
from hooklab.ui import browse

CARD = models.card("simple_cnn")
CAT, DOG = data.CLASSES.index("cat"), data.CLASSES.index("dog")
CELL = ".hl-matrix td[data-truth='{}'][data-predicted='{}']"
TILES = ".hl-found button:not(.none)"
FOUND = "() => [...document.querySelectorAll('.hl-found button:not(.none)')].map(tile => Number(tile.dataset.index))"


def indices(truth, predicted, name="simple_cnn"):
    """The images of one cell, the surest first."""
    answers, probabilities = models.predictions(name)
    found = np.flatnonzero((data.test_labels() == truth) & (answers == predicted))
    return found[np.argsort(-probabilities[found], kind="stable")].tolist()


def wait_for(page, settle):
    settle(page)
    page.wait_for_function("() => !document.querySelector('#hl-panel[aria-busy], #hl-panel [aria-busy]')")


# ---- browse


def test_the_matrix_is_the_cards_and_every_cell_says_what_it_counts(page, visit, shot):
    visit(page, tab="browse")
    cells = page.locator(".hl-matrix td[data-truth]")
    text = np.array([int(cell.replace("·", "0")) for cell in cells.all_inner_texts()]).reshape(10, 10)
    assert text.tolist() == CARD["confusion_matrix"]
    cell = page.locator(CELL.format(CAT, DOG))
    assert cell.get_attribute("aria-label") == f"cat taken for dog: {CARD['confusion_matrix'][CAT][DOG]} images"
    right = page.locator(CELL.format(CAT, CAT)).get_attribute("aria-label")
    assert right == f"cat recognised: {CARD['confusion_matrix'][CAT][CAT]} images"
    accuracy = f"{100 * CARD['accuracy']:.1f} %"
    assert accuracy in page.inner_text("#hl-say")
    assert page.locator(TILES).count() == browse.PER_SHEET
    assert page.evaluate("document.documentElement.scrollHeight") <= 900
    shot(page)


def test_a_cell_shows_its_images_and_a_click_on_one_opens_it(page, visit, settle, shot):
    visit(page, tab="browse")
    page.click(CELL.format(CAT, DOG))
    wait_for(page, settle)
    want = indices(CAT, DOG)
    assert "truth=cat" in page.url and "predicted=dog" in page.url
    assert page.evaluate(FOUND) == want[:60]
    assert page.inner_text("#hl-say") == f"cat taken for dog: {len(want)} images."
    assert page.locator(CELL.format(CAT, DOG)).get_attribute("aria-selected") == "true"
    tile = page.locator(TILES).nth(3)
    assert tile.get_attribute("aria-label").startswith(f"Test image {want[3]}: cat, taken for dog, ")
    pixels = tile.locator("canvas").evaluate("c => [...c.getContext('2d').getImageData(0, 0, 32, 32).data]")
    assert (np.reshape(pixels, (32, 32, 4))[..., :3] == np.asarray(data.test_image(want[3])[0])).all()
    shot(page)
    tile.click()
    settle(page)
    assert page.evaluate("hooklab.state.tab") == "gradcam" and f"index={want[3]}" in page.url
    assert page.inner_text("#hl-say").startswith("SimpleCNN says dog")
    page.go_back()
    settle(page)
    assert page.evaluate(FOUND) == want[:60]  # with its filters


def test_the_same_cell_again_takes_the_choice_back(page, visit, settle):
    visit(page, tab="browse", truth="cat", predicted="dog")
    page.click(CELL.format(CAT, DOG))
    wait_for(page, settle)
    assert "truth=" not in page.url and "predicted=" not in page.url
    assert "10,000" in page.inner_text(".hl-pager")


def test_the_whole_tab_works_by_keyboard(page, visit, settle):
    visit(page, tab="browse")
    first = page.locator(".hl-matrix [tabindex='0']")
    assert first.count() == 1  # one stop for the Tab key
    first.focus()
    steps = ["ArrowDown"] * (CAT + 1) + ["ArrowRight"] * DOG
    for key in steps:
        page.keyboard.press(key)
    here = page.evaluate("({...document.activeElement.dataset})")
    assert here == {"truth": str(CAT), "predicted": str(DOG)}
    assert page.inner_text("#hl-cell") == f"cat taken for dog: {CARD['confusion_matrix'][CAT][DOG]} images"
    index = page.evaluate("hooklab.state.index")
    page.keyboard.press("Enter")
    wait_for(page, settle)
    assert page.evaluate(FOUND) == indices(CAT, DOG)[:60]
    assert page.evaluate("hooklab.state.index") == index  # the arrows moved in the table, not from image to image
    page.locator(".hl-found [tabindex='0']").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    settle(page)
    assert page.evaluate("[hooklab.state.tab, hooklab.state.index]") == ["gradcam", indices(CAT, DOG)[1]]


def test_every_filter_is_in_the_link_and_the_link_gives_the_same_images(page, visit, settle):
    visit(page, tab="browse")
    page.select_option("[data-filter=outcome]", "wrong")
    page.select_option("[data-filter=versus]", "only_other")
    page.select_option("[data-filter=sort]", "unsure")
    page.locator("[data-filter=low]").fill("0.4")
    page.locator("[data-filter=low]").dispatch_event("change")
    wait_for(page, settle)
    (mine, p), (other, _) = models.predictions("simple_cnn"), models.predictions("resnet")
    labels = data.test_labels()
    found = np.flatnonzero((mine != labels) & (other == labels) & (p >= 0.4))
    want = found[np.argsort(p[found], kind="stable")].tolist()
    assert page.evaluate(FOUND) == want[:60]
    if len(want) > 60:
        page.click("[data-turn='1']")
        wait_for(page, settle)
        assert page.evaluate(FOUND) == want[60:120]
    link, shown = page.url, page.evaluate(FOUND)
    page.goto(link)
    settle(page)
    assert page.evaluate(FOUND) == shown
    page.click("#hl-reset")
    wait_for(page, settle)
    assert page.url.endswith("tab=browse") or "outcome" not in page.url


def test_changes_faster_than_answers_end_with_the_last(page, visit, settle):
    visit(page, tab="browse")
    for name in data.CLASSES:
        page.select_option("[data-filter=truth]", name)
    wait_for(page, settle)
    page.wait_for_function("() => document.querySelector('#hl-say').textContent.includes('images of truck')")
    labels = data.test_labels()
    assert all(labels[index] == 9 for index in page.evaluate(FOUND))


def test_a_wrong_value_in_a_link_falls_back_with_a_note(page, visit):
    for wrong in (
        {"truth": "zebra"},
        {"outcome": "maybe"},
        {"low": "2"},
        {"low": "0.8", "high": "0.2"},
        {"sheet": "-1"},
    ):
        visit(page, tab="browse", **wrong)
        assert list(wrong)[-1] in page.inner_text("#hl-note"), wrong
        assert page.locator(TILES).count() == 60, wrong


def test_what_nothing_passes_says_so(page, visit):
    visit(page, tab="browse", outcome="right", versus="neither")
    assert page.inner_text(".hl-pager").strip("◀▶ \n") == "No image passes all filters."
    assert page.locator(TILES).count() == 0


def test_the_other_network_has_its_own_matrix(page, visit, settle):
    visit(page, tab="browse", model="resnet", truth="cat", predicted="dog")
    assert page.evaluate(FOUND) == indices(CAT, DOG, "resnet")[:60]


def test_chinese(page, visit, shot):
    visit(page, tab="browse", lang="zh")
    count = CARD["confusion_matrix"][CAT][DOG]
    assert page.locator(CELL.format(CAT, DOG)).get_attribute("aria-label") == f"把“猫”误认为“狗”：{count} 张"
    shot(page)


# ---- two networks


def test_two_networks_say_what_they_see_and_how_much_they_share(page, visit, shot):
    visit(page, tab="networks", index=1218, lang="en")
    answer = page.evaluate("hooklab.answer")
    verdicts = page.locator(".hl-verdict").all_inner_texts()
    assert [verdict.split(" says ")[0] for verdict in verdicts] == ["SimpleCNN", "ResNet"]
    assert f"overlap by {100 * answer['overlap']:.1f} %" in page.inner_text("#hl-say")
    labels = page.locator(".hl-networks canvas").evaluate_all("all => all.map(c => c.getAttribute('aria-label'))")
    assert len(labels) == 4 and all(re.match(r"(SimpleCNN|ResNet): ", label) for label in labels)
    shot(page)


def test_the_next_disagreement_is_one_and_opens_in_the_first_tab(page, visit, settle):
    visit(page, tab="networks", index=100, lang="en")
    page.click("#hl-next")
    settle(page)
    page.wait_for_function("() => hooklab.answer.index !== 100")
    index = page.evaluate("hooklab.answer.index")
    answers = [int(models.predictions(name)[0][index]) for name in ("simple_cnn", "resnet")]
    assert answers[0] != answers[1] and page.inner_text("#hl-say").startswith("They disagree: SimpleCNN says ")
    page.select_option("[data-model=resnet] select", "layer1")
    settle(page)
    assert "other_layer=layer1" in page.url
    page.click("[data-model=resnet] .hl-look")
    settle(page)
    state = page.evaluate("hooklab.state")
    assert (state["tab"], state["model"], state["layer"], state["index"]) == ("gradcam", "resnet", "layer1", index)
    assert page.inner_text("#hl-say").startswith("ResNet says ")


def test_all_disagreements_are_one_click_away(page, visit, settle):
    visit(page, tab="networks", lang="en")
    page.click("#hl-all")
    settle(page)
    mine, theirs = models.predictions("simple_cnn")[0], models.predictions("resnet")[0]
    assert page.evaluate("hooklab.answer.browse.count") == int((mine != theirs).sum())


# ---- pictures of one's own: a measured warning


def upload(page, settle, pixels):
    from hooklab import images

    before = page.evaluate("hooklab.answer.pixels")
    page.set_input_files("#hl-file", {"name": "a.png", "mimeType": "image/png", "buffer": images.png(pixels)})
    page.wait_for_function("before => hooklab.answer.pixels !== before", arg=before)
    settle(page)


def test_noise_is_called_unlike_the_training_data_and_a_photo_is_not(page, visit, settle, shot):
    visit(page, lang="en", index=1218)
    assert page.is_hidden("#hl-doubt")
    page.click("[data-source=own]")
    upload(page, settle, np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8))
    assert "Unlike the training data" in page.inner_text("#hl-doubt")
    shot(page)
    upload(page, settle, np.asarray(data.test_image(1218)[0]))
    assert page.is_hidden("#hl-doubt")


def test_an_unsure_answer_is_called_so_for_a_test_image(page, visit):
    from hooklab import unlike

    below = unlike.load("simple_cnn")[0]["unsure"]["below"]
    probability = models.predictions("simple_cnn")[1]
    index = int(np.argmin(probability))
    visit(page, lang="en", index=index)
    assert "SimpleCNN is unsure" in page.inner_text("#hl-doubt") and probability[index] < below


# ---- about


def test_about_shows_the_cards_the_papers_and_curves_with_words(page, visit, shot):
    visit(page, tab="about", lang="en")
    text = page.inner_text("#hl-panel")
    for name in models.REGISTRY:
        card = models.card(name)
        assert f"{100 * card['accuracy']:.1f} %" in text and card["command"] in text
        assert f"{card['parameters']:,}" in text
    assert "Selvaraju" in text and "Krizhevsky" in text and "MIT licence" in text
    labels = page.locator(".hl-about svg").evaluate_all("all => all.map(svg => svg.getAttribute('aria-label'))")
    assert len(labels) == 4 and all("epochs: from" in label for label in labels)
    shot(page)


def test_the_card_is_saved_as_it_is(page, visit):
    visit(page, tab="about", lang="en")
    with page.expect_download() as download:
        page.click("[data-save=resnet]")
    assert download.value.suggested_filename == "resnet.json"
    assert json.loads(Path(download.value.path()).read_text("utf-8")) == models.card("resnet")


def test_the_scripts_on_the_page_run_as_they_stand(page, visit):
    visit(page, tab="about", lang="en")
    for script, want in (("client", "layer2"), ("curl", "complete"), ("python", "ship layer2 (32, 32)")):
        text = page.locator(f"[data-script={script}]").text_content()
        command = ["bash", "-c", text] if script == "curl" else [sys.executable, "-c", text]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0 and want in done.stdout, done.stdout + done.stderr
