"""Write the README's pictures from the running page: docs/page.webp, page.zh-CN.webp and tour.webp (20 seconds).

python app.py --port 7860 &
python tools/record.py http://127.0.0.1:7860
"""

import io
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

DOCS = Path(__file__).resolve().parents[1] / "docs"
CHROMIUM = shutil.which("chromium")  # None: the one that `playwright install chromium` fetched
WIDTH, HEIGHT, SHOWN = 1440, 900, (960, 600)
MOST_BYTES = 3_000_000


class Film:
    """Frames of a page, each with the milliseconds that it stays."""

    def __init__(self, page: Page):
        self.page, self.frames, self.durations = page, [], []

    def shoot(self, milliseconds: int = 700) -> None:
        self.page.wait_for_function("() => window.hooklab?.answer && !document.querySelector('#hooklab[aria-busy]')")
        picture = Image.open(io.BytesIO(self.page.screenshot())).convert("RGB")
        self.frames.append(picture.resize(SHOWN, Image.Resampling.LANCZOS))
        self.durations.append(milliseconds)

    def save(self, path: Path) -> None:
        for quality in (70, 55, 40, 30):
            options = {"quality": quality, "method": 4, "loop": 0, "duration": self.durations}
            self.frames[0].save(path, save_all=True, append_images=self.frames[1:], **options)
            if path.stat().st_size < MOST_BYTES:
                break
        print(
            f"{path.name}: {len(self.frames)} frames, {sum(self.durations) / 1000:.0f} s, {path.stat().st_size} bytes"
        )


def tour(page: Page, address: str) -> Film:
    """An image, another class, the map built up, another layer, its channels, every class, the test of truth."""
    film = Film(page)
    page.goto(f"{address}/?index=1218&lang=en")
    page.wait_for_selector("#hl-true.ready")
    film.shoot(2000)
    page.click("#hl-show-build")
    for share in (0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1):
        page.locator("#hl-count").evaluate(
            "(slider, share) => { slider.value = Math.round(share * slider.max); slider.oninput({target: slider}); }",
            share,
        )
        film.shoot(280)
    film.shoot(800)
    for name in ("automobile", "airplane", "ship"):
        page.click(f"[data-class='{('airplane', 'automobile', 0, 0, 0, 0, 0, 0, 'ship').index(name)}']")
        film.shoot(900)
    for layer in ("conv1", "conv2", "pool:3.input"):
        page.click(f"[data-layer='{layer}']")
        film.shoot(700)
    page.click("#hl-tab-features")
    film.shoot(1500)
    page.click("#hl-tab-classes")
    film.shoot(1500)
    page.click("[data-show=methods]")
    film.shoot(1500)
    page.click("#hl-tab-evidence")
    page.wait_for_selector("#hl-paired div")
    for percent in (0, 10, 20, 35, 50):
        page.locator("#hl-percent").fill(str(percent))
        page.wait_for_timeout(900)
        film.shoot(450)
    page.click("#hl-tab-browse")
    page.wait_for_timeout(800)
    film.shoot(1800)
    page.goto(f"{address}/?index=1218&lang=zh")
    page.wait_for_selector("#hl-true.ready")
    film.shoot(1500)
    return film


def main(address: str) -> None:
    DOCS.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, locale="en-US")
        for name, language in (("page", "en"), ("page.zh-CN", "zh")):
            page.goto(f"{address}/?index=1218&lang={language}")
            page.wait_for_selector("#hl-true.ready")
            Image.open(io.BytesIO(page.screenshot())).convert("RGB").save(DOCS / f"{name}.webp", quality=82, method=6)
        tour(page, address).save(DOCS / "tour.webp")
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1].rstrip("/") if len(sys.argv) > 1 else "http://127.0.0.1:7860")
