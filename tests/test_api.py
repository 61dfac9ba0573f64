"""The named endpoints, as a script uses them: `gradio_client` and plain HTTP against the running app."""

import concurrent.futures
import json
import math
import urllib.error
import urllib.request

import numpy as np
import pytest
import torch
from gradio_client import Client, handle_file
from gradio_client.exceptions import AppError
from PIL import Image

import app
from hooklab import data
from hooklab.ui.page import build


@pytest.fixture(scope="module")
def address(labs):
    page, settings = build(labs)
    _, address, _ = page.launch(server_name="127.0.0.1", prevent_thread_lock=True, quiet=True, **settings)
    yield address
    page.close()


@pytest.fixture(scope="module")
def client(address):
    return Client(address, verbose=False, analytics_enabled=False)


def post(address, path, body):
    request = urllib.request.Request(address + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as reply:
        return json.load(reply)


def ask(address, body, component=None):
    """What the page's own browser code sends."""
    config = json.load(urllib.request.urlopen(address + "config", timeout=30))
    component = next(row["id"] for row in config["components"] if row["type"] == "html")
    return post(
        address,
        "gradio_api/component_server/",
        {"data": body, "component_id": component, "fn_name": "ask", "session_hash": "test"},
    )


def test_layers(client, labs):
    answer = client.predict(model="resnet", api_name="/layers")
    assert [row["name"] for row in answer["layers"]] == [row.name for row in labs["resnet"].layers()]
    assert answer["classes"] == list(data.CLASSES)


def test_explain_by_index_equals_the_lab(client, labs):
    answer = client.predict(image=1218, layer="conv3", target="truck", api_name="/explain")
    found = labs["simple_cnn"].explain(1218, "conv3", "truck")
    assert answer["target"] == "truck" and answer["predicted"] == data.CLASSES[found.predicted]
    np.testing.assert_array_equal(np.float32(answer["raw"]), found.raw)
    np.testing.assert_array_equal(np.float32(answer["heatmap"]), found.heatmap)
    np.testing.assert_allclose(answer["probabilities"], found.probabilities, rtol=1e-6)


def test_features_equal_the_lab(client, labs):
    answer = client.predict(image=7, layer="conv2", api_name="/features")
    np.testing.assert_array_equal(np.float32(answer["maps"]), labs["simple_cnn"].features(7, "conv2").maps)
    assert answer["shape"] == [64, 16, 16] and len(answer["weights"]) == 64


def test_a_file_and_a_data_url_of_a_test_image_give_what_its_index_gives(client, tmp_path):
    picture, _ = data.test_image(25)
    picture.save(tmp_path / "picture.png")
    by_index = client.predict(image=25, api_name="/explain")
    assert client.predict(image=handle_file(str(tmp_path / "picture.png")), api_name="/explain") == by_index


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"image": -1}, "0 to 9999"),
        ({"image": 10**9}, "0 to 9999"),
        ({"image": "abc"}, "data:image"),
        ({"image": True}, "True"),
        ({"image": [1]}, "0 to 9999"),
        ({"image": None}, None),
        ({"layer": "layer2"}, "conv3"),
        ({"layer": "pool"}, "pool:1"),
        ({"layer": "fc1"}, "fc1"),
        ({"target": 12}, "0 to 9"),
        ({"target": "zebra"}, "airplane"),
        ({"model": "vgg"}, "resnet"),
        ({"method": "magic"}, "gradcam"),
    ],
)
def test_P7_hostile_clients_get_a_clear_error_and_the_server_goes_on(client, arguments, named):
    if named is None:
        assert client.predict(**arguments, api_name="/explain") == client.predict(api_name="/explain")
        return
    with pytest.raises(AppError, match=named):
        client.predict(**arguments, api_name="/explain")
    assert client.predict(api_name="/explain")["layer"] == "pool:3.input"


def test_P8_a_path_outside_the_upload_folder_is_refused(client, tmp_path):
    Image.new("RGB", (40, 40)).save(tmp_path / "secret.png")
    for form in (
        {"path": str(tmp_path / "secret.png")},
        {"path": str(tmp_path / "secret.png"), "meta": {"_type": "x"}},
    ):
        with pytest.raises(AppError, match="uploaded file"):
            client.predict(image=form, api_name="/explain")


def test_P9_the_direct_run_route_is_closed(address):
    with pytest.raises(urllib.error.HTTPError) as caught:
        post(address, "gradio_api/run/explain", {"data": [1218, "simple_cnn", None, None, "gradcam"]})
    assert caught.value.code == 404


def test_P1_P7_many_clients_at_once_each_get_their_own_answer(address, labs):
    wanted = {index: labs["simple_cnn"].explain(index).raw for index in range(24)}

    def one(index):
        return index, ask(address, {"view": "gradcam", "index": index, "layer": "nope" if index % 5 == 0 else None})

    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        for index, answer in pool.map(one, list(wanted) * 3):
            answer = answer["ok"]
            assert answer["index"] == index and bool(answer["notes"]) == (index % 5 == 0)
            assert answer["map"]["high"] == wanted[index].max()


@pytest.mark.parametrize(
    "body",
    [None, [], "x", 5, {"view": "api.explain"}, {"view": ["x"]}, {"view": "nope"}, {"index": []}, {"index": math.nan}],
)
def test_whatever_reaches_the_pages_own_function_gets_an_answer(address, body):
    answer = ask(address, body)
    assert ("ok" in answer) != ("error" in answer)


def test_P6_a_soak_of_requests_leaves_no_files(address, tmp_path):
    from pathlib import Path

    from gradio.utils import get_upload_folder

    def count():
        return sum(1 for _ in Path(get_upload_folder()).rglob("*"))

    before = count()
    for index in range(300):
        assert "ok" in ask(address, {"view": "gradcam", "index": index})
    assert count() == before


def test_P5_P10_the_page_names_no_other_host_and_keeps_no_history(address):
    config = json.load(urllib.request.urlopen(address + "config", timeout=30))
    assert config.get("run_history") in (False, None)
    assert not config.get("analytics_enabled")


@pytest.mark.parametrize("query", ["page=2", "deep_link=x", "index=5&page=../..&deep_link="])
def test_no_word_in_a_link_is_an_order_to_gradio(address, query):
    plain, asked = (urllib.request.urlopen(address + end, timeout=30).read() for end in ("", "?" + query))
    assert asked == plain


def test_a_port_that_is_taken_and_one_that_is_none_are_told_in_one_sentence(address, monkeypatch, capsys):
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)  # the server's setting, not the tests'
    port = address.rstrip("/").rpartition(":")[2]
    with pytest.raises(SystemExit, match=f"cannot serve at 127.0.0.1:{port}: taken, .* --port"):
        app.main(["--port", port, "--device", "cpu"])
    for wrong in ("0", "65536", "-1", "x"):
        with pytest.raises(SystemExit):
            app.main([f"--port={wrong}"])
        assert f"{wrong!r}: a whole number from 1 to 65535 is accepted" in capsys.readouterr().err
