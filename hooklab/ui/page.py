"""The Gradio page: one HTML component that the browser paints, one server function behind it, a few API endpoints."""

import os
from collections.abc import Mapping

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # nothing leaves this machine
# Otherwise every event rebuilds a table of the last 10,000, for a dashboard that nobody opens here.
os.environ.setdefault("GRADIO_ANALYTICS_CACHE_FREQUENCY", "1000000000")

import gradio as gr
import torch
from starlette.middleware import Middleware

import hooklab
from hooklab import cam, data, images, models
from hooklab.engine import REPLICAS
from hooklab.lab import Lab
from hooklab.ui import about, api, browse, classes, code, evidence, features, gradcam, hooks, lessons, networks, upload
from hooklab.ui.limits import BodyLimit
from hooklab.ui.payload import encode
from hooklab.ui.question import DEFAULT_INDEX
from hooklab.ui.service import Service
from hooklab.ui.static import StaticCache, WebFiles

VIEWS = {
    "gradcam": gradcam.view,
    "features": features.view,
    "classes": classes.view,
    **evidence.VIEWS,
    "code": code.view,
    "upload": upload.view,
    "download": gradcam.download,
    "about": about.view,
    **browse.VIEWS,
    **networks.VIEWS,
    **hooks.VIEWS,
    **lessons.VIEWS,
    **api.VIEWS,
}
# Hundreds of questions to the model each; `/explain` may be asked for a slow method too, but a script can wait.
HEAVY = frozenset({"classes", "evidence", "evidence.sanity", "evidence.stability"})
EXAMPLES = (1218, 3, 25, 44, 90, 153, 288, 777)  # test images to begin with: one click each
_BODY_BYTES = 14_500_000  # a 10 MB picture in base64, and its envelope

# Gradio hands the browser this once; all the rest is in web/app.js.
_MOUNT = """
const files = new URL(props.files, document.baseURI).href;
const root = element.querySelector("#hooklab");
import(files + "app.js").then(page => page.mount(root, files, request => server.ask(request)));
"""


def build(labs: Mapping[str, Lab], language: str | None = None) -> tuple[gr.Blocks, dict]:
    """The page over `labs` (by name; the first is the default) and the keyword arguments for its `launch`."""
    web = WebFiles({"start.json": start(labs, language)})
    service = Service(labs, VIEWS, HEAVY)

    async def ask(request):
        view = request.get("view") if isinstance(request, dict) else None
        if not isinstance(view, str) or view not in VIEWS or view.startswith("api."):
            view = "gradcam"
        return await service.ask(view, request)

    with gr.Blocks(title="hooklab", analytics_enabled=False, fill_width=True, delete_cache=(600, 1800)) as page:
        gr.HTML(
            html_template='<div id="hooklab"></div>',
            js_on_load=_MOUNT,
            server_functions=[ask],
            apply_default_css=False,
            files=web.prefix,
        )
        api.add(service)
    page.queue(api_open=False, max_size=200)
    page._queue.sleep_when_free = 0.02  # seconds; Gradio looks every millisecond, which an idle laptop pays for
    return page, {
        "head": f'<link rel="stylesheet" href="{web.prefix}style.css">'
        f'<link rel="modulepreload" href="{web.prefix}app.js"><link rel="modulepreload" href="{web.prefix}stage.js">'
        '<link rel="icon" href="data:,">',
        "theme": gr.themes.Default(
            font=["system-ui", "PingFang SC", "Microsoft YaHei", "Noto Sans CJK SC", "sans-serif"],
            font_mono=["ui-monospace", "monospace"],
        ),
        "footer_links": [],
        "run_history": False,
        "enable_monitoring": False,
        "ssr_mode": False,
        "max_file_size": data.MAX_MEGABYTES * 1_000_000,
        "state_session_capacity": 300,
        "app_kwargs": {"middleware": [Middleware(StaticCache, web=web), Middleware(BodyLimit, limit=_BODY_BYTES)]},
    }


def load(first: str, device: str, checkpoint: str | None, folder: str | None) -> dict[str, Lab]:
    """One `Lab` for each shipped model, `first` in front, with `checkpoint` instead of its own weights.

    `folder` may hold CIFAR-10: the shipped test images are then checked against it. Raises ValueError.
    """
    if first not in models.REGISTRY:
        raise ValueError(f"model {first!r}: choose one of {', '.join(models.REGISTRY)}")
    if folder is not None:
        pixels, labels = data.load_cifar10(folder, "test")
        same = (pixels.transpose(0, 2, 3, 1) == data.test_images()).all() and (labels == data.test_labels()).all()
        if not same:
            raise ValueError(f"the test images in {folder} are not those of CIFAR-10 that hooklab ships")
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // REPLICAS))  # requests side by side, each on its share
    names = [first, *(name for name in models.REGISTRY if name != first)]
    return {name: Lab(name, device=device, checkpoint=checkpoint if name == first else None) for name in names}


def start(labs: Mapping[str, Lab], language: str | None) -> dict:
    """What the browser needs before the first question: models, layers, classes, colours, examples."""
    return {
        "version": hooklab.__version__,
        "language": language,
        "index": DEFAULT_INDEX,
        "models": {name: _model(name, lab) for name, lab in labs.items()},
        "methods": {name: method.title for name, method in cam.METHODS.items()},
        "colors": {name: encode(images.colormap(name)) for name in images.COLORMAPS},
        "examples": {index: encode(data.test_images()[index]) for index in EXAMPLES},
        "max_file_bytes": data.MAX_MEGABYTES * 1_000_000,
    }


def _model(name: str, lab: Lab) -> dict:
    entry = models.REGISTRY.get(name)
    return {
        "title": entry.title if entry else name,
        "card": models.card(name) if lab.shipped else {},  # a card speaks of the weights that ship
        "device": str(lab.device),
        "classes": list(lab.classes),
        "size": list(lab.inputs.size),
        **api.layers({name: lab}, {"model": name}),
    }
