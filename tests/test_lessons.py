"""The lessons: every number from a closed form, every script run in a clean interpreter, every control checked."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from hooklab import data, hooks, lessons
from hooklab.ui import lessons as page
from hooklab.ui.lessons import LESSONS
from hooklab.ui.question import Refusal
from hooklab.ui.static import WEB

ROOT = WEB.parents[2]  # where the scripts run: the checkpoints and the test images lie there
TEXTS = json.loads((WEB / "texts.json").read_text("utf-8"))
ONES = [[1] * 4] * 4
CASES = {  # values away from the defaults, so that a script that ignores them fails
    "a": {"x": -1.5, "calls": 2, "lambda_returns": "a value"},
    "b": {"w": 3.0, "x": -2.0, "at": "b", "change": "both"},
    "c": {"x": -1.5, "factor": -1.0},
    "d": {"image": "0123456789012345", "first": "spots", "second": "left to right", "hook_returns": "nothing"},
    "e": {"x": 2.0, "factor": -0.5, "registered": "backwards"},
    "f": {"batch": 5, "inputs": 7, "outputs": 1, "input_requires_grad": "yes", "x": -3.0},
    "g": {"x": 0.5, "factor": -2.0, "value": 4.0},
    "h": {"runs": 3, "factor": -1.0, "remove": "never"},
}


# ---- the programs


def test_a_hooks_run_when_the_layer_is_called_and_in_the_order_of_registration():
    names = ["registered", "call", "function", "lambda", "decorator", "closure", "returned"]
    assert lessons.callbacks(x=3.0)["log"] == list(zip(names, [4, 3.0, 7.0, 7.0, 7.0, 7.0, 7.0], strict=True))
    assert [who for who, _ in lessons.callbacks(calls=3)["log"]] == names[:1] + 3 * names[1:]


def test_a_what_a_lambda_returns_replaces_the_output_for_those_after_it():
    log = lessons.callbacks(x=3.0, lambda_returns="a value")["log"]
    assert log[2:] == [("function", 7.0), ("decorator", 14.0), ("closure", 14.0), ("returned", 14.0)]


@pytest.mark.parametrize("w, x", [(1.0, 2.0), (-3.0, 0.5)])
@pytest.mark.parametrize("at", ["w", "x", "a", "b"])
@pytest.mark.parametrize("change, factor", [("watch", 1), ("double in place", 2), ("return triple", 3), ("both", 6)])
def test_b_the_hook_reads_its_gradient_and_multiplies_what_lies_before_it(w, x, at, change, factor):
    found = lessons.tensor_hook(w, x, at, change)
    plain = {"w": (w + 1) + (w + x), "x": w + 1, "a": w + 1, "b": w + x, "y": 1.0}
    assert found["values"] == {"w": w, "x": x, "a": w + x, "b": w + 1, "y": (w + x) * (w + 1)}
    assert found["caught"] == plain[at]
    at_a, at_b = (plain[name] * (factor if at == name else 1) for name in ("a", "b"))
    expected = {"a": at_a, "b": at_b, "y": 1.0, "x": at_a, "w": at_a + at_b}
    expected |= {at: expected[at] * factor} if at in "wx" else {}
    assert found["gradients"] == pytest.approx(expected)
    assert found["kept in .grad"] == pytest.approx({name: expected[name] for name in "wx"})


def test_b_the_tutorials_in_place_doubling_and_returned_tripling_give_six_times_the_gradient():
    assert lessons.tensor_hook(1.0, 2.0, "w", "both")["kept in .grad"]["w"] == 6 * 5


def test_b_a_gradient_changed_in_place_spills_into_another_tensor():
    assert lessons.spilled_gradient("in place") == {"w": 2.0, "x": 2.0}
    assert lessons.spilled_gradient("returned") == {"w": 2.0, "x": 1.0}


def test_c_halving_at_y_gives_48_at_y_and_96_instead_of_192_at_x():
    found = lessons.chain(x=2.0, factor=0.5)
    assert (found["arrives at y"], found["leaves y"], found["x.grad"]) == (48.0, 24.0, 96.0)
    assert lessons.chain(x=2.0, factor=1.0)["x.grad"] == 192.0
    x, factor = -1.3, 0.7
    assert lessons.chain(x, factor)["x.grad"] == pytest.approx(factor * 6 * x**5, rel=1e-5)


def test_d_the_tutorials_maps_of_a_picture_of_ones():
    caught = lessons.convolution(ONES, page.KERNELS["ones"], page.KERNELS["twos"])["caught"]
    assert caught[0] == [[4, 6, 6, 4], [6, 9, 9, 6], [6, 9, 9, 6], [4, 6, 6, 4]]  # how many neighbours there are
    assert np.array_equal(caught[1], 2 * np.array(caught[0]))


@pytest.mark.parametrize("kernel", list(page.KERNELS))
def test_d_each_kernel_is_a_correlation_with_zeros_around(kernel):
    image = np.arange(16).reshape(4, 4) % 7
    padded, weights = np.pad(image, 1), np.array(page.KERNELS[kernel])
    expected = [[(padded[i : i + 3, j : j + 3] * weights).sum() for j in range(4)] for i in range(4)]
    assert lessons.convolution(image.tolist(), page.KERNELS[kernel], page.KERNELS["copy"])["caught"][0] == expected


def test_d_a_forward_hook_can_change_the_output():
    arguments = (ONES, page.KERNELS["left to right"], page.KERNELS["twos"])
    kept = lessons.convolution(*arguments, "only what is positive")
    assert np.array_equal(kept["passed on"], np.maximum(kept["caught"], 0))
    assert np.min(kept["caught"]) < 0
    silenced = lessons.convolution(*arguments, "the second map silenced")
    assert silenced["passed on"][0] == silenced["caught"][0]
    assert not np.any(silenced["passed on"][1])


@pytest.mark.parametrize("registered", ["forwards", "backwards"])
def test_e_the_order_of_the_four_kinds_follows_from_the_flow_of_values(registered):
    x, factor = 1.5, -2.0
    entered, given = factor * x, 2 * factor * x + 1
    found = lessons.order(x, factor, registered)
    assert found["log"] == [
        ("forward pre-hook", x, entered),
        ("forward", entered, given),
        ("forward hook", entered, given),
        ("backward", given**2, 1.0),
        ("tensor hook", 2 * given, 2 * given),
        ("full backward hook", 2 * given, 4 * given),
    ]
    assert found["x.grad"] == 4 * given * factor


def test_f_shapes_are_those_of_output_and_input_and_None_where_no_gradient_is_wanted():
    shapes = {"grad_output": (5, 2), "grad_input": (5, 3)}
    assert shapes.items() <= lessons.backward_hook(5, 3, 2, "yes").items()
    assert lessons.backward_hook(5, 3, 2, "no")["grad_input"] is None


def test_f_the_old_backward_hook_reports_only_the_last_operation():
    found = lessons.backward_hook(x=2.0)
    assert found["register_full_backward_hook"] == found["x.grad"] == 18 * 2.0  # d (3x)^2 / dx
    assert found["register_backward_hook"] == 6 * 2.0  # d u^2 / du at u = 3x


def test_E15_g_tensor_hook_and_retain_grad_differ_after_an_in_place_operation():
    x, factor = 1.0, 3.0
    found = lessons.in_place(x, factor)
    at_the_new_value = 2 * factor * 2 * x  # y = a^2 at a = 2 x factor
    assert found["hook registered after"] == found["a.grad from retain_grad"] == at_the_new_value
    assert found["hook registered before"] == factor * at_the_new_value


@pytest.mark.parametrize("value", [-2.0, 3.0])
def test_g_an_output_kept_without_a_clone_is_overwritten_by_the_relu(value):
    found = lessons.in_place(value=value)
    assert (found["kept output"], found["kept clone"]) == (max(value, 0.0), value)


def test_h_hooks_that_are_never_removed_pile_up():
    rows = lessons.never_removed(runs=5, factor=2.0)["rows"]
    assert rows == [{"run": n, "calls": n, "output": 2.0**n, "left": n} for n in range(1, 6)]
    rows = lessons.never_removed(runs=5, factor=2.0, remove="after each run")["rows"]
    assert rows == [{"run": n, "calls": 1, "output": 2.0, "left": 0} for n in range(1, 6)]


@pytest.mark.parametrize(
    "model, layer", [("simple_cnn", layer) for layer in ("conv1", "pool:1", "pool:3.input")] + [("resnet", "layer2.0")]
)
def test_i_grad_cam_from_scratch_is_the_pages_own(labs, model, layer):
    answer = page.view(labs, {"model": model, "layer": layer, "index": 25, "target": "cat", "lesson": "i"})
    assert answer["lessons"]["result"]["layer"] == layer
    assert answer["lessons"]["result"]["difference"] < 1e-6
    assert answer["lessons"]["result"]["largest"] > 1e-4  # not two empty maps


def test_i_at_a_layer_without_a_map_the_models_default_layer_is_taken(labs):
    assert page.view(labs, {"layer": "fc1", "lesson": "i"})["lessons"]["result"]["layer"] == "pool:3.input"


def test_j_features_are_the_mean_of_each_channel_at_each_call(labs):
    lab = labs["simple_cnn"]
    images = lab.inputs.batch(data.test_images()[:3])
    found = lessons.layer_features(lab.model, page.modules(lab.model), images)
    assert list(found) == ["pixels", "conv1", "pool:1", "conv2", "pool:2", "conv3", "pool:3", "fc1", "fc2"]
    values = F.relu(F.conv2d(images, lab.model.conv1.weight, lab.model.conv1.bias, padding=1))
    assert torch.allclose(found["pool:1"], F.max_pool2d(values, 2).mean((2, 3)), atol=1e-6)
    assert torch.allclose(found["fc2"], torch.tensor(np.array(lab.predict(data.test_images()[:3]))), atol=1e-4)
    assert hooks.count(lab.model) == 0


def test_j_nearest_centroid_on_points_whose_answer_is_known():
    features = torch.tensor([[0.0, 0], [1, 0], [10, 0], [11, 0]])
    labels = torch.tensor([4, 4, 7, 7])
    new = torch.tensor([[2.0, 0], [9, 0], [5, 0], [6, 0]])
    assert lessons.nearest_centroid(features, labels, new, torch.tensor([4, 7, 4, 7])) == 1.0
    assert lessons.nearest_centroid(features, labels, new, torch.tensor([4, 7, 7, 7])) == 0.75


def test_j_accuracy_comes_in_parts_and_deep_layers_know_the_classes(labs):
    numbers = {"images": 120}
    parts = [page.accuracy(labs, {"numbers": numbers, "part": part}) for part in range(3)]
    assert [(part["done"], part["of"]) for part in parts] == [(1, 3), (2, 3), (3, 3)]
    assert "rows" not in parts[0]
    rows = {row["layer"]: row for row in parts[-1]["rows"]}
    assert (parts[-1]["fitted"], parts[-1]["tested"]) == (80, 40)
    assert rows["fc2"]["accuracy"] > rows["pixels"]["accuracy"]
    counts = np.bincount(data.test_labels()[80:120])
    assert parts[-1]["chance"] == pytest.approx(counts.max() / 40)


def test_j_early_layers_know_the_light_and_deep_ones_forget_it(labs):
    numbers = {"images": 300, "task": "bright or dark"}
    rows = {row["layer"]: row["accuracy"] for row in page.accuracy(labs, {"numbers": numbers, "part": 5})["rows"]}
    assert rows["pixels"] > 0.9 > rows["fc2"]


def test_j_a_part_that_does_not_exist_is_refused(labs):
    for part in (-1, 6, None, "0"):
        with pytest.raises(Refusal, match="part"):
            page.accuracy(labs, {"part": part})


# ---- the scripts


@pytest.fixture(scope="module")
def printed(labs):
    """What each script prints in a fresh interpreter, {"b": text}; of Grad-CAM, its array."""
    scripts = {letter: _shown(labs, letter, values)["code"] for letter, values in CASES.items()}
    scripts |= {letter: _shown(labs, letter, {"images": 100} if letter == "j" else {})["code"] for letter in "ij"}
    runner = (
        "import contextlib, io, json, sys\n"
        "scripts, found = json.load(sys.stdin), {}\n"
        "for letter, code in scripts.items():\n"
        "    with contextlib.redirect_stdout(io.StringIO()) as out:\n"
        "        exec(compile(code, letter, 'exec'), space := {'__name__': '__main__'})\n"
        "    found[letter] = space['result'].tolist() if letter == 'i' else out.getvalue()\n"
        "json.dump(found, sys.stdout)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", runner], input=json.dumps(scripts), capture_output=True, text=True, cwd=ROOT
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def _shown(labs, letter, values):
    return page.view(labs, {"lesson": letter, "numbers": values})["lessons"]


@pytest.mark.parametrize("letter", list(CASES))
def test_each_script_prints_the_numbers_that_are_shown(labs, printed, letter):
    shown = _shown(labs, letter, CASES[letter])
    assert shown["values"] == CASES[letter]
    shown["result"].pop("without", None), shown["result"].pop("spilled", None)
    assert printed[letter].splitlines() == [f"{name} {value}" for name, value in shown["result"].items()]


@pytest.mark.parametrize("letter", list(CASES))
def test_the_small_programs_need_pytorch_alone(labs, letter):
    code = _shown(labs, letter, {})["code"]
    assert [line for line in code.splitlines() if "import" in line] == ["import torch", "from torch import nn"]


@pytest.mark.parametrize("letter", "ij")
def test_the_scripts_with_a_network_need_no_hooklab(labs, letter):
    code = _shown(labs, letter, {})["code"]
    assert not re.search(r"^\s*(import|from) hooklab", code, re.MULTILINE)
    assert "class SimpleCNN" in code


def test_the_script_of_grad_cam_gives_the_pages_map(labs, printed):
    assert np.allclose(printed["i"], labs["simple_cnn"].explain(1218).raw, atol=1e-6)


def test_the_script_of_the_last_lesson_gives_the_pages_accuracies(labs, printed):
    rows = page.accuracy(labs, {"numbers": {"images": 100}, "part": 1})["rows"]
    assert [line.split() for line in printed["j"].splitlines()] == [[r["layer"], str(r["accuracy"])] for r in rows]


# ---- what the page sends


def test_every_lesson_answers_with_its_defaults_as_plain_json(labs):
    for letter, (_, parameters) in LESSONS.items():
        answer = page.view(labs, {"lesson": letter})
        assert json.loads(json.dumps(answer, allow_nan=False))["lessons"]["lesson"] == letter
        assert answer["lessons"]["values"] == {p.name: p.default for p in parameters}
        assert answer["notes"] == []
        assert page.view(labs, {"lesson": letter, "numbers": answer["lessons"]["values"]})["notes"] == []


def test_a_link_brings_numbers_as_text(labs):
    shown = _shown(labs, "b", {"w": "-1.5", "x": "4", "at": "b", "change": "return triple"})
    assert shown["values"] == {"w": -1.5, "x": 4.0, "at": "b", "change": "return triple"}
    assert _shown(labs, "h", {"runs": "7"})["values"]["runs"] == 7


@pytest.mark.parametrize(
    "letter, name, value, code",
    [
        *[("b", "w", value, "number") for value in ("1e9", "nan", "inf", "abc", "", True, [1], {}, -100.5)],
        *[("h", "runs", value, "integer") for value in ("0", "13", "2.5", 1e9, True, "x")],
        *[("b", "change", value, "choice") for value in ("triple", 1, True, ["watch"])],
        *[("d", "image", value, "pixels16") for value in ("1" * 15, "1" * 17, "x" * 16, 1111111111111111, "١" * 16)],
    ],
)
def test_P7_a_bad_number_falls_back_to_the_default_with_a_note_that_names_the_range(labs, letter, name, value, code):
    answer = page.view(labs, {"lesson": letter, "numbers": {name: value}})
    default = next(p for p in LESSONS[letter][1] if p.name == name)
    assert answer["lessons"]["values"][name] == default.default
    if value == "":
        assert answer["notes"] == []  # an empty field asks for the default
        return
    ((found, values),) = answer["notes"]
    assert found == code
    if code in ("number", "integer"):
        assert (values["low"], values["high"]) == (default.low, default.high)
    assert f"note.{code}" in TEXTS


@pytest.mark.parametrize("lesson", ["z", "A", 1, True, ["a"], "ab"])
def test_an_unknown_lesson_is_the_first_with_a_note(labs, lesson):
    answer = page.view(labs, {"lesson": lesson, "numbers": [1, 2]})
    assert answer["lessons"]["lesson"] == "a"
    assert answer["notes"][0][0] == "choice"


def test_every_lesson_parameter_and_option_has_words_in_both_languages():
    for letter, (_, parameters) in LESSONS.items():
        for part in ("title", "text", "say", "note"):
            assert all(TEXTS[f"lesson.{letter}.{part}"])
        for parameter in parameters:
            assert parameter.name in ("x", "w", "image") or f"parameter.{parameter.name}" in TEXTS
            options = [option for option in parameter.choices if len(option) > 1]
            assert all(f"option.{option.replace(' ', '-')}" in TEXTS for option in options)


def test_no_lesson_leaves_a_hook_or_a_gradient_on_the_model(labs):
    for lab in labs.values():
        before = hooks.count(lab.model)
        for letter in "ij":
            page.view({"it": lab}, {"lesson": letter})
        page.accuracy({"it": lab}, {"part": 0})
        assert hooks.count(lab.model) == before
        assert all(p.grad is None and not p.requires_grad for p in lab.model.parameters())
