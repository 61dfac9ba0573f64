"""The QR code of the link, read back by OpenCV and compared with the code that OpenCV writes of the same text."""

import random
import string

import cv2
import numpy as np
import pytest

ENCODE = "text => import(hooklab.files + 'qr.js').then(qr => qr.qrCode(text))"
ROOM = [14, 26, 42, 62, 84, 106, 122, 152, 180, 213, 251, 287, 331, 362, 412, 450, 504, 560, 624, 666]  # level M


def modules(page, text):
    return np.array(page.evaluate(ENCODE, text), np.uint8)


def read(dark):
    """What OpenCV reads; its finder misses clean drawings at some sizes, so it may try a few."""
    quiet = np.pad(1 - dark, 4, constant_values=1) * 255
    for scale in (4, 7, 10, 5):
        text = cv2.QRCodeDetector().detectAndDecode(np.kron(quiet, np.ones((scale, scale), np.uint8)))[0]
        if text:
            return text
    return ""


def written_by_opencv(text, version):
    params = cv2.QRCodeEncoder_Params()
    params.version, params.mode = version, cv2.QRCODE_ENCODER_MODE_BYTE
    params.correction_level = cv2.QRCODE_ENCODER_CORRECT_LEVEL_M
    square = cv2.QRCodeEncoder.create(params).encode(text) < 128
    quiet = (len(square) - 17 - 4 * version) // 2
    return square[quiet : len(square) - quiet, quiet : len(square) - quiet].astype(np.uint8)


def text_of(length, seed):
    return "".join(random.Random(seed).choices(string.ascii_letters + string.digits + ":/?&=._-", k=length))


def test_every_version_is_read_back_at_its_fullest_and_a_byte_more_takes_the_next(page, visit):
    visit(page)
    for version, room in enumerate(ROOM, 1):
        full = text_of(room, version)
        dark = modules(page, full)
        assert len(dark) == 17 + 4 * version
        # OpenCV cannot read some of its own codes of versions 16 and 17; those must then be equal to ours.
        assert read(dark) == full or (dark == written_by_opencv(full, version)).all()
        if version < len(ROOM):
            assert len(modules(page, text_of(room + 1, version))) == 17 + 4 * (version + 1)


def test_what_does_not_fit_is_refused_and_what_fits_is_read_even_when_damaged(page, visit):
    visit(page)
    with pytest.raises(Exception, match="667 bytes: a QR code here holds up to 666"):
        modules(page, "x" * 667)

    for text in ("7", "中文 链接 ✓", "a b\tc"):  # any text is bytes in UTF-8
        assert read(modules(page, text)) == text
    text = text_of(150, 5)
    dark = modules(page, text)
    dark[20:26, 20:26] ^= 1  # a coffee stain in the middle: 36 of 2401 modules
    assert read(dark) == text


def test_the_dialog_shows_the_code_of_this_very_link_and_closes_by_keyboard(page, visit, shot):
    visit(page, index=25, model="resnet", tab="browse", truth="cat", predicted="dog", lang="zh")
    page.click("#hl-qr")
    dialog = page.locator("dialog[open]")
    link = page.url
    assert dialog.locator(".hl-link").inner_text() == link
    svg = dialog.locator("svg")
    assert svg.get_attribute("aria-label") == "下方链接的二维码"
    picture = cv2.imdecode(np.frombuffer(svg.screenshot(), np.uint8), cv2.IMREAD_COLOR)
    assert cv2.QRCodeDetector().detectAndDecode(picture)[0] == link
    shot(page)
    assert page.evaluate("document.activeElement.closest('dialog') !== null")
    page.keyboard.press("ArrowRight")  # steps no image behind the dialog
    assert page.url == link
    page.keyboard.press("Escape")
    assert page.locator("dialog").count() == 0
    assert page.evaluate("document.activeElement.id") == "hl-qr"


def test_on_this_computers_own_address_the_dialog_says_that_others_cannot_follow(page, visit):
    visit(page, lang="en")
    page.click("#hl-qr")
    assert "--host 0.0.0.0" in page.locator("dialog").inner_text()


def test_the_link_can_be_copied_inside_the_dialog_without_the_clipboard_interface(page, visit):
    page.add_init_script("Object.defineProperty(navigator, 'clipboard', {value: undefined})")  # as on http://192.168...
    visit(page, lang="en")
    page.evaluate("document.oncopy = () => window.copied = document.activeElement.value")
    page.click("#hl-qr")
    page.click("dialog [data-act=copy]")
    page.wait_for_function("window.copied === location.href")
    assert page.inner_text("dialog [data-act=copy]") == "Copied"
