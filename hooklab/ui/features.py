"""What does the layer see? Every channel of a layer, caught by a forward hook."""

from hooklab.ui.gradcam import common, layer_info
from hooklab.ui.payload import floats, pack
from hooklab.ui.question import resolve


def view(labs, request) -> dict:
    """All maps of the layer and, where it has maps, Grad-CAM's weight of each channel for the target class."""
    question = resolve(labs, request)
    answer = common(question)
    found = question.lab.features(question.image, question.layer, answer["target"])
    return {
        **answer,
        "features": {
            "maps": pack(found.maps),
            "weights": None if found.weights is None else floats(found.weights),
            "spatial": layer_info(question).spatial,
        },
    }
