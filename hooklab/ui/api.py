"""Named endpoints for scripts: plain JSON in, plain JSON out, the same answers as the page's."""

from collections.abc import Mapping

import gradio as gr
from PIL import Image

from hooklab.lab import Lab
from hooklab.ui.describe import where
from hooklab.ui.payload import floats
from hooklab.ui.question import Question, resolve
from hooklab.ui.service import Service
from hooklab.ui.upload import image_argument


def layers(labs: Mapping[str, Lab], request: Mapping) -> dict:
    lab = resolve(labs, request, strict=True).lab
    rows = [
        {
            "name": layer.name,
            "label": layer.label,
            "type": layer.type,
            "shape": list(layer.shape),
            "parameters": layer.parameters,
            "spatial": layer.spatial,
            "default": layer.default,
        }
        for layer in lab.layers()
    ]
    return {"classes": list(lab.classes), "layers": rows}


def explain(labs: Mapping[str, Lab], request: Mapping) -> dict:
    question = _question(labs, request)
    found = question.lab.explain(question.image, question.layer, question.target, question.method)
    return {
        "layer": found.layer,
        "method": found.method,
        "predicted": question.lab.classes[found.predicted],
        "target": question.lab.classes[found.target],
        "logits": floats(found.logits),
        "probabilities": floats(found.probabilities),
        "raw": floats(found.raw),
        "heatmap": floats(found.heatmap),
        "blank": found.blank,
        **where(found.heatmap),
    }


def features(labs: Mapping[str, Lab], request: Mapping) -> dict:
    question = _question(labs, request)
    found = question.lab.features(question.image, question.layer, question.target)
    return {
        "layer": question.layer,
        "shape": list(found.maps.shape),
        "maps": floats(found.maps),
        "weights": None if found.weights is None else floats(found.weights),
    }


def _question(labs: Mapping[str, Lab], request: Mapping) -> Question:
    image = image_argument(request["image"])
    field = "picture" if isinstance(image, Image.Image) else "index"
    return resolve(labs, {**request, field: image}, strict=True)


def add(service: Service) -> None:
    """Declares the endpoints inside a `gr.Blocks`: /layers, /explain and /features."""

    async def call(view: str, **request) -> dict:
        answer = await service.ask(view, request)
        if "error" in answer:
            raise gr.Error(answer["error"]["message"], print_exception=False)
        return answer["ok"]

    async def api_layers(model: str = "simple_cnn") -> dict:
        """Lists a model's layers in execution order, one for each call of a module, and its classes."""
        return await call("api.layers", model=model)

    async def api_explain(
        image: int | dict | str = 1218,
        model: str = "simple_cnn",
        layer: str | None = None,
        target: str | int | None = None,
        method: str = "gradcam",
    ) -> dict:
        """Explains one image: logits, probabilities, the raw class activation map and the heatmap.

        Args:
            image: index of a CIFAR-10 test image (0 to 9999), an uploaded file, or a data: URL
            model: one of the models on the page
            layer: a name that /layers lists; by default the model's own
            target: a class by name or number; by default the predicted one
            method: gradcam, gradcam++, hirescam, xgradcam, layercam, eigencam, scorecam or ablationcam
        """
        return await call("api.explain", image=image, model=model, layer=layer, target=target, method=method)

    async def api_features(
        image: int | dict | str = 1218,
        model: str = "simple_cnn",
        layer: str | None = None,
        target: str | int | None = None,
    ) -> dict:
        """Returns a layer's feature maps (channels, height, width) and Grad-CAM's weight of each channel.

        Args:
            image: index of a CIFAR-10 test image (0 to 9999), an uploaded file, or a data: URL
            model: one of the models on the page
            layer: a name that /layers lists; by default the model's own
            target: a class by name or number; by default the predicted one
        """
        return await call("api.features", image=image, model=model, layer=layer, target=target)

    for function in (api_layers, api_explain, api_features):
        name = function.__name__.removeprefix("api_")
        gr.api(function, api_name=name, concurrency_limit=service.workers, concurrency_id="model")


VIEWS = {"api.layers": layers, "api.explain": explain, "api.features": features}
