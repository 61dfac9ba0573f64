"""What the documents say is run: the README's Python, its client and its curl lines, its links and its pictures."""

import re
import subprocess
import sys
from pathlib import Path
from shutil import which

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text("utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.fixture(scope="module")
def address():
    from hooklab.ui.page import build, load

    page, settings = build(load("simple_cnn", "cpu", None, None))
    _, address, _ = page.launch(server_name="127.0.0.1", prevent_thread_lock=True, quiet=True, **settings)
    yield address.rstrip("/")
    page.close()


@pytest.mark.parametrize("code", [code for code in PYTHON if "gradio_client" not in code])
def test_python_lines(code):
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip()


def test_client_lines(address, capsys):
    (code,) = (code for code in PYTHON if "gradio_client" in code)
    exec(compile(code.replace("http://127.0.0.1:7860", address), "README.md", "exec"), {})
    assert "[" in capsys.readouterr().out


def test_curl_lines(address):
    (lines,) = re.findall(r"```sh\n(id=.*?)```", README, re.DOTALL)
    assert which("curl"), "curl is needed for this test"
    ran = subprocess.run(
        ["sh", "-c", lines.replace("http://127.0.0.1:7860", address)], capture_output=True, text=True, timeout=60
    )
    assert "event: complete" in ran.stdout and '"target": "ship"' in ran.stdout, ran.stdout + ran.stderr


@pytest.mark.parametrize(
    "document", sorted(path.relative_to(ROOT).as_posix() for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
)
def test_links_between_documents_lead_somewhere(document):
    text = (ROOT / document).read_text("utf-8")
    for target in re.findall(r"\]\(([^)#?]+)\)", text):
        if not target.startswith(("http:", "https:", "mailto:")):
            assert ((ROOT / document).parent / target).exists(), target


def test_the_front_matter_names_what_is_installed_and_started():
    import gradio

    front = dict(line.split(": ", 1) for line in README.split("---")[1].strip().splitlines())
    assert front["sdk"] == "gradio" and (ROOT / front["app_file"]).exists()
    assert front["sdk_version"].split(".")[0] == gradio.__version__.split(".")[0]


def test_no_file_is_too_large_for_a_space():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True).stdout.split("\0")
    for name in filter(None, listed):
        if (ROOT / name).exists():
            assert (ROOT / name).stat().st_size < 10_000_000, name


def test_help_lists_every_option_at_once():
    ran = subprocess.run([sys.executable, "app.py", "--help"], cwd=ROOT, capture_output=True, text=True, timeout=30)
    for option in ("--host", "--port", "--device", "--model", "--checkpoint", "--data", "--share", "--lang", "--mcp"):
        assert option in ran.stdout


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--model", "vgg"], "simple_cnn, resnet"),
        (["--device", "toaster"], "toaster"),
        (["--checkpoint", "nowhere.pth"], "nowhere.pth"),
        (["--data", "nowhere"], "nowhere"),
    ],
)
def test_wrong_options_get_a_sentence(options, named):
    import app

    with pytest.raises(SystemExit) as ended:
        app.main(options)
    assert str(ended.value).startswith("hooklab: ") and named in str(ended.value)
