"""A class opens the page at once, then clicks: python -m bench.classroom [--students 30]

Starts `app.py` on this machine, and from as many threads as there are students fetches what a browser with an empty
cache fetches (the page, every file it names, and the first answer), then asks for random images. Prints the seconds
until all have the page, the answers' times, and the server's memory.
"""

import argparse
import json
import random
import re
import socket
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def fetch(address: str, path: str, body: dict | None = None) -> bytes:
    headers = {"Accept-Encoding": "br", "Content-Type": "application/json"}
    request = urllib.request.Request(address + path, json.dumps(body).encode() if body else None, headers)
    with urllib.request.urlopen(request, timeout=120) as reply:
        return reply.read()


def ask(address: str, component: int, student: int, index: int) -> float:
    """One click: seconds until the answer is there."""
    body = {
        "data": {"view": "gradcam", "index": index},
        "component_id": component,
        "fn_name": "ask",
        "session_hash": f"student{student}",
    }
    began = time.perf_counter()
    answer = json.loads(fetch(address, "gradio_api/component_server/", body))
    assert answer["ok"]["index"] == index
    return time.perf_counter() - began


def memory_megabytes(process: subprocess.Popen) -> float:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--students", type=int, default=30)
    parser.add_argument("--clicks", type=int, default=10, help="of each student, one every --every seconds on average")
    parser.add_argument("--every", type=float, default=5.0)
    options = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    began = time.perf_counter()
    server = subprocess.Popen(
        [sys.executable, "app.py", "--port", str(port), "--host", "127.0.0.1"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        while "hooklab: open" not in server.stdout.readline():
            if server.poll() is not None:
                sys.exit("app.py did not start")
        print(f"from the command to a page that answers: {time.perf_counter() - began:.1f} s")
        threading.Thread(target=server.stdout.read, daemon=True).start()
        address = f"http://127.0.0.1:{port}/"
        page = fetch(address, "").decode()
        component = next(
            row["id"] for row in json.loads(fetch(address, "config"))["components"] if row["type"] == "html"
        )
        files = sorted(set(re.findall(r'(?:href|src)="\.?/?((?:assets|static|hooklab|theme)[^"]+)"', page)))
        own = re.search("hooklab/[0-9a-f]{12}/", page)[0]
        names = (
            "app",
            "stage",
            "words",
            "state",
            "rail",
            "strip",
            "tools",
            "gradcam",
            "script",
            "code",
            "edits",
            "save",
            "qr",
        )
        files += [own + name for name in ("style.css", "start.json", "texts.json", *(f"{name}.js" for name in names))]
        before = memory_megabytes(server)

        def open_page(student: int) -> None:
            fetch(address, "")
            for name in files:
                fetch(address, name)
            ask(address, component, student, 1218)

        began = time.perf_counter()
        with ThreadPoolExecutor(options.students) as pool:
            list(pool.map(open_page, range(options.students)))
        print(
            f"{options.students} students open the page ({len(files) + 2} requests each): "
            f"{time.perf_counter() - began:.1f} s, server {before:.0f} -> {memory_megabytes(server):.0f} MB"
        )

        def click(student: int) -> list[float]:
            chance = random.Random(student)
            times = []
            for _ in range(options.clicks):
                time.sleep(chance.expovariate(1 / options.every))
                times.append(ask(address, component, student, chance.randrange(10_000)))
            return times

        with ThreadPoolExecutor(options.students) as pool:
            times = sorted(t for answers in pool.map(click, range(options.students)) for t in answers)
        late = times[int(0.95 * len(times))]
        print(
            f"{len(times)} clicks, {options.students / options.every:.0f} a second: "
            f"median {1000 * statistics.median(times):.0f} ms, 95th percentile {1000 * late:.0f} ms, "
            f"server {memory_megabytes(server):.0f} MB"
        )
    finally:
        server.terminate()
        server.wait(20)


if __name__ == "__main__":
    main()
