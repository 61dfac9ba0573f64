"""The page's Python side: questions, answers, uploads, static files - without a browser and without a socket."""

import asyncio
import base64
import io
import json
import math
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hooklab import data
from hooklab.ui import api, gradcam, page, upload
from hooklab.ui.describe import where
from hooklab.ui.payload import encode, pack
from hooklab.ui.question import Refusal, integer, number, resolve
from hooklab.ui.service import Service
from hooklab.ui.static import WEB, StaticCache, WebFiles

TEXTS = json.loads((WEB / "texts.json").read_text("utf-8"))


def unpack(packed):
    values = np.frombuffer(base64.b64decode(packed["data"]), "<f2").astype(np.float32) * packed["scale"]
    return values.reshape(packed["shape"])


# ---- questions


def test_a_question_without_fields_is_the_default_one(labs):
    question = resolve(labs, {})
    assert (question.model, question.image, question.layer) == ("simple_cnn", 1218, "pool:3.input")
    assert (question.target, question.method, question.notes) == (None, "gradcam", ())


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        *[("index", value, "integer") for value in (-1, 10_000, 1e9, 1.5, math.nan, True, "abc", [1218], {})],
        *[("model", value, "choice") for value in ("vgg", 1, True, ["resnet"])],
        *[("layer", value, "layer") for value in ("pool", "layer1.0.conv1", 3, True, ["conv3"])],
        *[("target", value, "target") for value in (10, -1, 1e9, "zebra", "8", True, math.nan, [8])],
        *[("method", value, "choice") for value in ("guided-backprop", 0, ["gradcam"])],
    ],
)
def test_P7_P11_hostile_values_are_refused_by_name_for_scripts_and_fall_back_on_the_page(labs, field, value, code):
    with pytest.raises(Refusal) as caught:
        resolve(labs, {field: value}, strict=True)
    assert caught.value.code == code
    assert repr(value)[:20] in str(caught.value)  # what was sent stands in the message
    question = resolve(labs, {field: value})
    assert [note for note, _ in question.notes] == [code]
    assert vars(question) | {"notes": ()} == vars(resolve(labs, {}))


@pytest.mark.parametrize("value", [None, 5, "x", [1], True])
def test_a_request_that_is_no_object_is_refused(labs, value):
    with pytest.raises(Refusal, match="object"):
        resolve(labs, value)


def test_P2_switching_models_back_and_forth_keeps_valid_layers_and_notes_stale_ones(labs):
    layer = "pool:3.input"
    for turn in range(50):
        question = resolve(labs, {"model": ("resnet", "simple_cnn")[turn % 2], "layer": layer})
        assert question.layer in {row.name for row in question.lab.layers()}
        assert bool(question.notes) == (turn % 2 == 0)


def test_targets_by_name_and_number_agree(labs):
    assert resolve(labs, {"target": "ship"}).target == resolve(labs, {"target": 8}).target == 8


def test_pixels_come_back_as_they_were_sent_and_other_sizes_are_refused(labs):
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
    assert (resolve(labs, {"pixels": encode(pixels)}).image == pixels).all()
    for wrong in (encode(pixels[:31]), "!!!", "", 7, [1], encode(pixels) + "A"):
        with pytest.raises(Refusal, match="32 x 32 x 3"):
            resolve(labs, {"pixels": wrong})


@pytest.mark.parametrize("value", [True, math.nan, math.inf, "1", None, [1], -0.01, 1.01])
def test_numbers_are_finite_and_in_range(value):
    with pytest.raises(Refusal, match="from 0 to 1"):
        number(value, "opacity", 0, 1)
    with pytest.raises(Refusal):
        integer(value, "index", 0, 9)


# ---- answers


def test_the_gradcam_view_carries_the_labs_own_numbers(labs):
    answer = gradcam.view(labs, {"index": 1218, "target": "truck"})
    found = labs["simple_cnn"].explain(1218, target="truck")
    assert answer["target"] == 9 and answer["predicted"] == found.predicted and answer["label"] == 8
    np.testing.assert_allclose(answer["probabilities"], found.probabilities, atol=1e-6)
    np.testing.assert_allclose(unpack(answer["map"]["raw"]), found.raw, atol=np.abs(found.raw).max() * 2**-11)
    assert (answer["map"]["low"], answer["map"]["high"]) == (found.raw.min(), found.raw.max())
    assert base64.b64decode(answer["pixels"]) == np.asarray(data.test_image(1218)[0]).tobytes()
    json.dumps(answer, allow_nan=False)


def test_a_layer_without_places_has_no_map_but_keeps_its_prediction(labs):
    answer = gradcam.view(labs, {"layer": "fc1"})
    assert answer["map"] is None and len(answer["probabilities"]) == 10


def test_the_feature_view_carries_every_channel_and_its_weight(labs):
    answer = page.VIEWS["features"](labs, {"layer": "conv2", "index": 5, "target": 3})
    found = labs["simple_cnn"].features(5, "conv2", 3)
    maps = unpack(answer["features"]["maps"])
    assert maps.shape == (64, 16, 16)
    np.testing.assert_allclose(maps, found.maps, atol=np.abs(found.maps).max() * 2**-11)
    np.testing.assert_allclose(answer["features"]["weights"], found.weights, rtol=1e-6)


@pytest.mark.parametrize("kind", ["png", "npz"])
def test_downloads_hold_what_the_page_shows(labs, kind):
    answer = gradcam.download(labs, {"kind": kind, "index": 3, "layer": "conv3", "target": "ship"})
    raw = base64.b64decode(answer["data"])
    assert answer["name"] == f"hooklab_3_simple_cnn_conv3_ship_gradcam.{kind}"
    if kind == "png":
        picture = Image.open(io.BytesIO(raw))
        assert round(picture.info["dpi"][0]) == 150 and picture.width > 3 * picture.height * 0.99
    else:
        found, arrays = labs["simple_cnn"].explain(3, "conv3", "ship"), np.load(io.BytesIO(raw))
        assert (arrays["raw"] == found.raw).all() and (arrays["heatmap"] == found.heatmap).all()
        assert json.loads(str(arrays["about"]))["target"] == "ship"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"kind": "exe"}, "exe"),
        ({"opacity": 2}, "2"),
        ({"colors": "pink"}, "pink"),
        ({"smooth": "yes"}, "yes"),
        ({"normalization": None}, "None"),
    ],
)
def test_downloads_refuse_what_they_cannot_paint(labs, changes, named):
    with pytest.raises(Refusal, match=named):
        gradcam.download(labs, {"kind": "png", **changes})


def test_packing_keeps_small_gradients_apart_from_zero():
    array = np.array([[1e-9, -3e-9], [2e-12, 0]], np.float32)
    np.testing.assert_allclose(unpack(pack(array)), array, rtol=2**-10)
    assert (unpack(pack(np.zeros((2, 3)))) == 0).all()


# ---- words


@pytest.mark.parametrize(
    ("heat", "places"),
    [
        ([[0, 0, 0], [0, 0, 0], [0, 0, 9]], ["bottom-right"]),
        ([[0, 0, 0], [0, 0, 0], [3, 3, 3]], ["bottom"]),
        ([[2, 0, 0], [2, 0, 0], [2, 0, 0]], ["left"]),
        ([[4, 0, 1], [0, 0, 1], [1, 1, 4]], ["top-left", "bottom-right"]),
        ([[1, 1, 1], [1, 1, 1], [1, 1, 1]], []),
        ([[0, 0, 0], [0, 0, 0], [0, 0, 0]], []),
    ],
)
def test_places_on_hand_made_maps(heat, places):
    found = where(np.array(heat, np.float32) / 9)
    assert found["places"] == places
    for name in places:
        assert f"place.{name}" in TEXTS


@pytest.mark.parametrize("shape", [(1, 1), (2, 5), (32, 32), (7, 31)])
def test_places_of_any_size_share_out_all_heat(shape):
    heat = np.random.default_rng(1).random(shape).astype(np.float32)
    from hooklab.ui.describe import _cell_sums

    np.testing.assert_allclose(_cell_sums(heat).sum(), heat.sum(), rtol=1e-5)


def test_every_text_has_both_languages_and_the_same_values():
    for key, row in TEXTS.items():
        assert len(row) == 2 and all(isinstance(text, str) and text.strip() for text in row), key
        english, chinese = (sorted(set(re.findall(r"\{(\w+)\}", text))) for text in row)
        assert english == chinese, key


def test_every_key_in_the_code_is_a_text_and_no_text_is_orphaned():
    code = "\n".join(path.read_text("utf-8") for path in WEB.rglob("*.js"))
    code = re.sub(r"^\s*//.*$", "", code, flags=re.MULTILINE)
    used = set(re.findall(r"""\bt(?:\.plain)?\(\s*"([\w.-]+)\"""", code)) | set(
        re.findall(r"""\? "([\w-]+\.[\w.-]+)" : "([\w-]+\.[\w.-]+)\"""", code)[0]
    )
    assert used <= set(TEXTS), sorted(used - set(TEXTS))
    stems = {match.split("${")[0] for match in re.findall(r"`([\w.-]+\.\$\{[^`]+)`", code)} | {"error.", "note."}
    orphans = [key for key in TEXTS if f'"{key}"' not in code and not any(key.startswith(stem) for stem in stems)]
    assert not orphans


# ---- uploads


def picture_bytes(size=(80, 60), kind="PNG", mode="RGB"):
    buffer = io.BytesIO()
    Image.effect_noise(size, 80).convert(mode).save(buffer, kind)
    return buffer.getvalue()


def test_F7_the_crop_that_is_shown_is_the_crop_that_the_model_saw(labs):
    content = picture_bytes()
    answer = upload.view(labs, {"model": "simple_cnn", "file": base64.b64encode(content).decode()})
    assert answer["original"] == [80, 60] and answer["box"] == [10, 0, 70, 60]
    cut = Image.open(io.BytesIO(content)).crop(answer["box"])
    assert (
        np.frombuffer(base64.b64decode(answer["pixels"]), np.uint8).reshape(32, 32, 3) == data.fit(cut, (32, 32)).pixels
    ).all()
    assert (resolve(labs, {"pixels": answer["pixels"]}).image.shape) == (32, 32, 3)


@pytest.mark.parametrize("content", [b"", b"text", picture_bytes()[:200], b"<svg xmlns='http://www.w3.org/2000/svg'/>"])
def test_broken_uploads_are_refused_with_a_text_in_both_languages(labs, content):
    with pytest.raises(Refusal) as caught:
        upload.view(labs, {"model": "simple_cnn", "file": base64.b64encode(content).decode()})
    row = TEXTS[f"error.{caught.value.code}"]
    for text in row:
        assert set(re.findall(r"\{(\w+)\}", text)) <= set(caught.value.values)


def test_P8_no_file_outside_the_upload_folder_is_opened(tmp_path, monkeypatch):
    inside, outside = tmp_path / "gradio", tmp_path / "secret.png"
    inside.mkdir()
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(inside))
    outside.write_bytes(picture_bytes())
    (inside / "mine.png").write_bytes(picture_bytes((50, 40)))
    (inside / "link.png").symlink_to(outside)
    meta = {"_type": "gradio.FileData"}
    assert upload.image_argument({"path": str(inside / "mine.png"), "meta": meta}).size == (50, 40)
    for form in (
        {"path": str(outside)},
        {"path": str(outside), "meta": {"_type": "something.else"}},
        {"path": str(outside), "meta": meta},
        {"path": str(inside / ".." / "secret.png"), "meta": meta},
        {"path": str(inside / "link.png"), "meta": meta},
        {"path": "", "url": f"file://{outside}"},
        {"path": None, "url": "http://127.0.0.1/x.png"},
        {"path": "\0"},
        {"path": str(inside)},
        str(outside),
        "data:text/html;base64,aGk=",
    ):
        with pytest.raises(Refusal, match="an uploaded file or a data"):
            upload.image_argument(form)


@pytest.mark.parametrize("kind", ["PNG", "GIF"])
def test_F4_a_data_url_passes_through_our_own_decode(kind):
    transparent = io.BytesIO()
    Image.new("RGBA", (40, 40), (255, 0, 0, 0)).save(transparent, kind)
    url = f"data:image/{kind.lower()};base64," + base64.b64encode(transparent.getvalue()).decode()
    assert upload.image_argument(url).getpixel((5, 5)) == (255, 255, 255)  # composited on white


def test_P4_no_text_is_drawn_into_a_picture():
    scripts = {path.name: path.read_text("utf-8") for path in WEB.glob("*.js")}
    assert "getContext" in scripts["stage.js"]  # where pictures are painted
    assert not [name for name, text in scripts.items() if re.search(r"\b(fill|stroke)Text\b", text)]


# ---- the door


def complete(coroutine):
    """Its result, from a thread of its own: where browser tests ran before, this one has an event loop already."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


def run(service, *requests):
    async def all_of_them():
        return await asyncio.gather(*(service.ask(view, request) for view, request in requests))

    return complete(all_of_them())


def test_P12_every_failure_is_an_answer_and_the_trace_stays_in_the_log(caplog):
    def refuse(labs, request):
        raise Refusal("choice", "colour 'x': choose one of a, b", field="colour", value="'x'", choices="a, b")

    def invalid(labs, request):
        raise ValueError("target 12: this model has 10 classes (0 to 9)")

    def broken(labs, request):
        raise RuntimeError("/secret/path exploded")

    service = Service({}, {"refuse": refuse, "invalid": invalid, "broken": broken})
    refused, rejected, first, second = run(service, ("refuse", {}), ("invalid", {}), ("broken", {}), ("broken", {}))
    assert refused["error"]["code"] == "choice" and refused["error"]["values"]["choices"] == "a, b"
    assert rejected["error"] == {
        "code": "value",
        "values": {"message": "target 12: this model has 10 classes (0 to 9)"},
        "message": "target 12: this model has 10 classes (0 to 9)",
    }
    assert {first["error"]["values"]["number"], second["error"]["values"]["number"]} == {1, 2}
    assert "secret" not in json.dumps([first, second]) and "/secret/path exploded" in caplog.text
    for answer in (refused, rejected, first):
        assert f"error.{answer['error']['code']}" in TEXTS


def test_P9_the_number_of_requests_inside_is_bounded_and_the_rest_is_told_so():
    import threading

    inside, most, gate = 0, 0, threading.Lock()

    def slow(labs, request):
        nonlocal inside, most
        with gate:
            inside += 1
            most = max(most, inside)
        threading.Event().wait(0.02)
        with gate:
            inside -= 1
        return {}

    service = Service({}, {"slow": slow}, workers=2, waiting=10)
    answers = run(service, *[("slow", {})] * 30)
    assert most == 2
    assert sum("ok" in answer for answer in answers) == 10
    assert all(answer["error"]["code"] == "busy" for answer in answers if "error" in answer)
    assert all("ok" in answer for answer in run(service, *[("slow", {})] * 5))  # and it recovers


def test_every_refusal_in_the_code_has_its_texts():
    code = "\n".join(path.read_text() for path in Path(page.__file__).parent.glob("*.py"))
    codes = set(re.findall(r"""Refusal\(\s*"([\w.]+)\"""", code)) | set(re.findall(r"""_error\(\s*"([\w.]+)\"""", code))
    codes |= {f"image.{name}" for name in data.IMAGE_ERRORS}
    assert {f"error.{name}" for name in codes} <= set(TEXTS), sorted({f"error.{name}" for name in codes} - set(TEXTS))


# ---- static files


def get(app, path, encoding=b"br", method="GET"):
    sent = []

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "headers": [(b"accept-encoding", encoding)]}
    complete(app(scope, None, send))
    return sent[0]["status"], dict(sent[0]["headers"]), b"".join(message.get("body", b"") for message in sent[1:])


def test_P13_static_files_are_asked_for_and_compressed_once():
    import brotli

    asked = []

    async def app(scope, receive, send):
        asked.append(dict(scope["headers"]))
        body = b"0123456789" * 500
        headers = [(b"content-type", b"application/javascript"), (b"content-length", b"5000"), (b"etag", b"x")]
        await send(
            {"type": "http.response.start", "status": 404 if "missing" in scope["path"] else 200, "headers": headers}
        )
        await send({"type": "http.response.body", "body": body[:2000], "more_body": True})
        await send({"type": "http.response.body", "body": body[2000:]})

    cache = StaticCache(app, WebFiles({"start.json": {"a": 1}}))
    for _ in range(3):
        status, headers, body = get(cache, "/assets/index-abc.js")
        assert status == 200 and brotli.decompress(body) == b"0123456789" * 500
        assert headers[b"content-encoding"] == b"br" and int(headers[b"content-length"]) == len(body) < 500
        assert b"immutable" in headers[b"cache-control"] and headers[b"vary"] == b"Accept-Encoding"
    assert len(asked) == 1 and b"accept-encoding" not in asked[0]
    assert get(cache, "/assets/index-abc.js", b"gzip")[2] == b"0123456789" * 500  # a client without brotli
    assert get(cache, "/assets/index-abc.js", method="HEAD")[2] == b""
    assert get(cache, "/assets/missing.js")[0] == 404 and get(cache, "/assets/missing.js")[0] == 404 and len(asked) == 4


def test_our_own_files_are_served_under_a_name_that_changes_with_their_content():
    first, second = WebFiles({"start.json": {"a": 1}}), WebFiles({"start.json": {"a": 2}})
    assert first.prefix != second.prefix
    cache = StaticCache(None, first)
    assert json.loads(get(cache, f"/{first.prefix}start.json", b"")[2]) == {"a": 1}
    assert get(cache, f"/{first.prefix}app.js", b"")[1][b"content-type"] == b"text/javascript; charset=utf-8"


@pytest.mark.parametrize(
    "path", ["/gradio_api/file=https://example.org/x.png", "/pwa_icon/9000", "/monitoring/summary"]
)
def test_routes_that_only_strangers_use_are_closed(path):
    async def app(scope, receive, send):
        raise AssertionError("reached the app")

    assert get(StaticCache(app, WebFiles({})), path)[0] == 404


def test_api_layers_lists_what_the_lab_lists(labs):
    rows = api.layers(labs, {"model": "resnet"})["layers"]
    assert [row["name"] for row in rows] == [layer.name for layer in labs["resnet"].layers()]
    assert sum(row["default"] for row in rows) == 1
