"""Serve hooklab: `python app.py`, then open the address it prints. Also the entry point of a Hugging Face Space."""

import argparse
import socket
import sys
from importlib.util import find_spec


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="See what a convolutional network sees: Grad-CAM, feature maps and PyTorch hooks, live."
    )
    parser.add_argument(
        "--host", default=None, help="address to listen on; 0.0.0.0 lets other machines in (default: 127.0.0.1)"
    )
    parser.add_argument(
        "--port", type=_port, default=None, help="port to listen on (default: the first free one from 7860)"
    )
    parser.add_argument(
        "--device", default="auto", help="auto, cpu, cuda, cuda:N or mps (default: auto takes cuda, then mps, then cpu)"
    )
    parser.add_argument(
        "--model", default="simple_cnn", help="the model to begin with: simple_cnn or resnet (default: simple_cnn)"
    )
    parser.add_argument("--checkpoint", default=None, metavar="FILE", help="your own weights (.pth) for --model")
    parser.add_argument(
        "--data", default=None, metavar="DIR", help="a folder with CIFAR-10 to check the shipped test images against"
    )
    parser.add_argument("--share", action="store_true", help="also make a public link through Gradio's servers")
    parser.add_argument(
        "--mcp",
        action="store_true",
        help='also offer the endpoints as tools over MCP (needs pip install "gradio[mcp]")',
    )
    parser.add_argument(
        "--lang", choices=("en", "zh"), default=None, help="language of the page (default: the browser's)"
    )
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    options = arguments(argv)
    if options.mcp and find_spec("mcp") is None:
        sys.exit('hooklab: --mcp needs one more package: pip install "gradio[mcp]"')
    # These two take seconds: --help and wrong options have been answered before.
    print("hooklab: loading PyTorch and Gradio ...", flush=True)
    from hooklab.ui.page import build, load

    try:
        page, settings = build(load(options.model, options.device, options.checkpoint, options.data), options.lang)
        _, address, _ = page.launch(
            server_name=options.host,
            server_port=options.port,
            share=options.share,
            mcp_server=options.mcp,
            quiet=True,
            prevent_thread_lock=True,
            **settings,
        )
    except ValueError as error:
        sys.exit(f"hooklab: {error}")
    except OSError as error:
        if "empty port" not in str(error):
            sys.exit(f"hooklab: {error}")
        place = f"{options.host or '127.0.0.1'}:{options.port or '7860 to 7959'}"
        sys.exit(f"hooklab: cannot serve at {place}: taken, or not an address of this machine; try --port or --host")
    if page.mcp_error:  # the package is there, but not whole
        sys.exit(f"hooklab: --mcp does not work here: {page.mcp_error.strip()}")
    print(f"hooklab: open {address}")
    if options.mcp:
        print(f"hooklab: tools for a language model at {address}gradio_api/mcp/")
    if options.host == "0.0.0.0":
        print(f"hooklab: on other machines of this network, open http://{_own_address()}:{page.server_port}/")
    page.block_thread()


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r}: a whole number from 1 to 65535 is accepted")
    return int(text)


def _own_address() -> str:
    """The address that other machines reach this one at: the one used on the way to elsewhere (nothing is sent)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return probe.getsockname()[0]
        except OSError:
            return socket.gethostname()


if __name__ == "__main__":
    main()
