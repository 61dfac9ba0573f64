"""About: the cards, curves and papers on the page are those of the repository."""

import csv
import json

from hooklab import cam, models, unlike
from hooklab.lab import Lab
from hooklab.ui import about


def test_every_card_and_curve_is_the_file_beside_the_weights(labs):
    answer = about.view(labs, {})
    json.dumps(answer)
    assert answer["index"] == 1218 and set(answer["about"]["networks"]) == set(models.REGISTRY)
    for name, found in answer["about"]["networks"].items():
        assert found["card"] == models.card(name)
        with open(models.SHIPPED / f"{name}.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        assert [row["epoch"] for row in rows] == [str(k + 1) for k in range(len(rows))]
        for column in ("epoch", "train_loss", "train_accuracy", "check_loss", "check_accuracy"):
            assert found["curve"][column] == [float(row[column]) for row in rows]
        measured = unlike.load(name)
        assert found["unlike"] == (measured and measured[0])


def test_every_method_has_its_paper(labs):
    shown = about.view(labs, {})["about"]["methods"]
    assert [entry["title"] for entry in shown] == [method.title for method in cam.METHODS.values()]
    assert all(entry["paper"] for entry in shown)


def test_weights_of_ones_own_have_no_card(labs, tmp_path):
    own = {"simple_cnn": Lab("simple_cnn", device="cpu", checkpoint=models.SHIPPED / "simple_cnn.pth")}
    assert about.view(own, {})["about"]["networks"] == {"simple_cnn": None}
