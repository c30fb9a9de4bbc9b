"""The report's page in a real, headless Chromium (arguments: program, source folder; --screenshots FOLDER also takes its pictures).

Skips with code 77 where no Chromium is installed."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import chromium  # noqa: E402

WIDTHS, THEMES = ((360, 780), (1280, 900), (2560, 1440)), ("light", "dark")
LARGEST_PAGE, LARGEST_PICTURE = 5_000_000, 300_000
KEYS = {"Tab": 9, "Enter": 13, "ArrowRight": 39, "ArrowDown": 40, "Home": 36, "Escape": 27}

# Boxes of all text that is shown, in the page's coordinates; what may scroll inside its own box is held to that box.
BOXES = r"""
(() => {
  const wide = document.documentElement.clientWidth, found = [], boxes = [];
  if (document.documentElement.scrollWidth > wide) found.push('the page is ' + document.documentElement.scrollWidth + ' wide, the window ' + wide);
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = walk.nextNode());) {
    const holder = node.parentElement, text = node.textContent.trim();
    if (!text || holder.closest('script, style, noscript, datalist, [hidden], #tip') || !holder.checkVisibility()) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const box of range.getClientRects()) {
      if (box.width < 1 || box.height < 1) continue;
      const scroller = holder.closest('.wide, nav'), name = text.slice(0, 40);
      if (!scroller && (box.left < -0.5 || box.right > wide + 0.5)) found.push('outside the window: ' + name);
      for (let up = holder; up && up !== document.body; up = up.parentElement) {
        if (up === scroller) break;
        const style = getComputedStyle(up), clip = up.getBoundingClientRect();
        if (style.overflowX !== 'visible' && up.tagName !== 'svg' && (box.left < clip.left - 1 || box.right > clip.right + 1)) found.push('clipped: ' + name);
      }
      if (scroller) continue;
      const inset = Math.min(box.height * 0.22, 5);  // a line's box is taller than its letters
      boxes.push({name, holder, left: box.left + 1, right: box.right - 1, top: box.top + scrollY + inset, bottom: box.bottom + scrollY - inset, fixed: !!holder.closest('#layers')});
    }
  }
  boxes.sort((a, b) => a.top - b.top);
  boxes.forEach((a, i) => {
    for (let j = i + 1; j < boxes.length && boxes[j].top < a.bottom; ++j) {
      const b = boxes[j];
      if (a.fixed !== b.fixed || a.holder === b.holder || a.left >= b.right || b.left >= a.right) continue;
      found.push('overlap: ' + a.name + ' | ' + b.name);
    }
  });
  for (const row of document.querySelectorAll('tr')) {
    const size = parseFloat(getComputedStyle(row).fontSize), tall = row.getBoundingClientRect().height;
    if (tall > 9 * size) found.push('a row of ' + tall + ' pixels: ' + row.textContent.slice(0, 40));
  }
  for (const box of document.querySelectorAll('canvas, svg, .bar, .lane, table')) {
    const own = box.getBoundingClientRect();
    if (!box.closest('.wide') && box.checkVisibility() && (own.left < -0.5 || own.right > wide + 0.5)) found.push('outside the window: a ' + box.tagName);
  }
  return [...new Set(found)].slice(0, 20);
})()
"""
SCROLL_THROUGH = r"""
(async () => {
  const frame = () => new Promise(done => requestAnimationFrame(() => setTimeout(done, 30)));
  document.documentElement.style.scrollBehavior = 'auto';
  for (let y = 0; y < document.body.scrollHeight; y += innerHeight) { scrollTo(0, y); await frame(); }
  scrollTo(0, 0);
  await frame();
  return document.querySelectorAll('.drawn:not(.done)').length;
})()
"""


class TheReport(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        home = pathlib.Path(cls.folder.name)
        cls.page, trace, made = home / "report.html", home / "en.trace", home / "run.jsonl"
        model = "models/demo"
        cls.grace("profile", model, "--text", model + "/heldout/profile/en.txt", "--out", trace)
        cls.grace("run", model, "--prompt", "The package", "--max-new-tokens", 4, "--cluster", "2x2", "--record", made)
        told = cls.grace("report", "--trace", trace, "--cluster", "2x2", "--slots", "17,18,20,grace", "--run", made, "--html", cls.page, "--json", *QUICK)
        cls.told = json.loads(told)
        cls.browser = chromium.Browser(chromium.installed())
        cls.addClassCleanup(cls.browser.close)

    @classmethod
    def grace(cls, *arguments) -> str:
        done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=600, cwd=SOURCE)
        if done.returncode != 0:
            raise AssertionError(f"grace {arguments}: {done.stderr}")
        return done.stdout

    def open(self, width: int = 1280, height: int = 900, theme: str = "light") -> None:
        self.browser.show_as(width, height, theme)
        self.browser.open(self.page.as_uri())
        self.assertEqual(self.browser.run(SCROLL_THROUGH), 0, "every picture is drawn once it has been in view")

    def tearDown(self):
        self.assertEqual(self.browser.complaints(), [])

    def box(self, selector: str) -> dict:
        self.browser.run(f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block: 'center', behavior: 'instant'}})")
        self.browser.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 30))))")  # the page has heard of it
        return self.browser.run(f"(() => {{ const b = document.querySelector({json.dumps(selector)}).getBoundingClientRect(); return {{x: b.x, y: b.y, w: b.width, h: b.height}}; }})()")

    def press(self, key: str) -> None:
        self.browser.key(key, KEYS[key])

    def tip(self) -> str:
        return self.browser.run("document.querySelector('#tip').hidden ? '' : document.querySelector('#tip').textContent")

    def test_is_small_and_soon_there(self):
        size = self.page.stat().st_size
        self.assertLess(size, LARGEST_PAGE)
        self.open()
        paint = self.browser.run("performance.getEntriesByName('first-contentful-paint').map(entry => entry.startTime)[0]")
        print(f"report: {size / 1e6:.2f} MB, first contentful paint after {paint:.0f} ms", file=sys.stderr)

    def test_clips_and_overlaps_nothing_at_any_width(self):
        for width, height in WIDTHS:
            for theme in THEMES:
                with self.subTest(width=width, theme=theme):
                    self.open(width, height, theme)
                    self.assertEqual(self.browser.run(BOXES), [])
                    ground = self.browser.run("getComputedStyle(document.body).backgroundColor")
                    self.assertEqual(sum(map(int, ground[4:-1].split(","))) > 384, theme == "light", ground)

    def test_finds_the_pages_of_other_commands_in_order_too(self):
        home, trace = self.page.parent, self.page.parent / "en.trace"
        pages = {name: home / f"{name}.html" for name in ("compare", "transfer", "bench", "plan", "reproduce")}
        self.grace("compare", "--trace", trace, "--cluster", "2x2", "--strategies", "vanilla,grace,joint-slow", *QUICK, "--html", pages["compare"])
        self.grace("compare", "--trace", trace, "--trace", trace, "--cluster", "2x2", "--strategies", "vanilla,grace", *QUICK, "--html", pages["transfer"])
        self.grace("bench", "models/demo", "--text", "models/demo/heldout/judge/en.txt", "--cluster", "2x2", "--strategies", "vanilla,grace", "--batch", 4,
                   "--prefill", 8, "--decode", 2, "--html", pages["bench"])
        self.grace("plan", "--trace", trace, "--cluster", "3x1", "--strategy", "grace", "--out", home / "plan.json")
        self.grace("report", "--trace", trace, "--plan", home / "plan.json", "--html", pages["plan"])
        self.grace("reproduce", "--trace", trace, "--cluster", "2x2", "--table", "busiest", "--splits", 1, "--html", pages["reproduce"])
        for name, page in pages.items():
            for width, height in WIDTHS[:2]:
                with self.subTest(page=name, width=width):
                    self.browser.show_as(width, height, "dark")
                    self.browser.open(page.as_uri())
                    self.assertEqual(self.browser.run(SCROLL_THROUGH), 0)
                    self.assertEqual(self.browser.run(BOXES), [])
                    self.assertEqual(self.browser.complaints(), [])

    def test_sorts_by_a_click_on_a_head(self):
        self.open()
        column = self.browser.run("[...document.querySelectorAll('table.sortable thead th')].findIndex(th => th.textContent === 'judge-slow')")
        self.assertGreater(column, 0)
        values = f"[...document.querySelector('table.sortable tbody').rows].map(row => parseFloat(row.cells[{column}].textContent))"
        head = f"table.sortable thead th:nth-child({column + 1}) button"
        for state, ordered in (("ascending", sorted), ("descending", lambda v: sorted(v, reverse=True))):
            place = self.box(head)
            self.browser.click(place["x"] + place["w"] / 2, place["y"] + place["h"] / 2)
            got = self.browser.run(values)
            self.assertEqual(got, ordered(got))
            self.assertEqual(self.browser.run(f"document.querySelectorAll('thead th')[{column}].getAttribute('aria-sort')"), state)

    def test_moves_all_layered_pictures_with_one_slider(self):
        self.open()
        pixels = "[...document.querySelectorAll('.map canvas')].map(canvas => canvas.toDataURL())"
        before = self.browser.run(pixels)
        self.browser.run("document.querySelector('#layer').focus()")
        self.press("ArrowRight")
        after = self.browser.run(pixels)
        self.assertEqual(self.browser.run("document.querySelector('#layers output').textContent"), str(self.told["plan"]["decoder_layers"][1]))
        changed = [a != b for a, b in zip(before, after)]
        layered = self.browser.run("[...document.querySelectorAll('.drawn[data-kind=heat]')].flatMap(box => [...box.querySelectorAll('canvas')].map(() =>"
                                   " { const map = JSON.parse(document.getElementById(box.dataset.from).textContent); return map.layers.length > 1 || map.rowsAreLayers; }))")
        self.assertEqual(changed, layered)
        self.assertGreater(sum(changed), 4)

    def test_says_values_under_mouse_finger_and_keys(self):
        self.open()
        place = self.box(".map")
        self.browser.mouse("mouseMoved", place["x"] + place["w"] * 0.6, place["y"] + place["h"] / 2)
        self.assertRegex(self.tip(), r": \S*\d")
        self.press("Escape")
        self.assertEqual(self.tip(), "")
        for selector in ("[data-kind=heat] .map", ".points", ".bars", ".timeline"):
            self.box(selector)
            self.browser.run(f"(() => {{ const box = document.querySelector('{selector}'); box.tabIndex; box.focus({{focusVisible: true}}); }})()")
            self.press("ArrowRight")
            first = self.tip()
            self.assertRegex(first, r"\d", selector)
            self.press("Home")
            self.assertNotEqual(self.tip(), first, selector)
            self.browser.run("document.activeElement.blur()")
        self.open(360, 780)
        place = self.box(".map")
        self.browser.tap(place["x"] + place["w"] * 0.6, place["y"] + place["h"] / 2)
        self.assertRegex(self.tip(), r": \S*\d")

    def test_keeps_what_a_key_asked_for_under_a_mouse_that_stands_still(self):
        self.open()
        place = self.box(".map")
        self.browser.mouse("mouseMoved", place["x"] + place["w"] * 0.6, place["y"] + place["h"] / 2)
        self.assertNotEqual(self.tip(), "")
        self.browser.run("document.querySelector('.timeline').focus({focusVisible: true})")
        self.browser.run("scrollBy({top: 1, behavior: 'instant'}); new Promise(done => setTimeout(done, 300))")
        self.assertNotEqual(self.tip(), "")

    def test_is_all_within_reach_of_the_keyboard(self):
        self.open()
        wanted = self.browser.run("document.querySelectorAll('a[href], button, input, summary, .map, .points, .bars, .timeline').length")
        self.browser.run("document.activeElement.blur(); scrollTo(0, 0); window.reached = new Set()")
        for _ in range(wanted + 20):
            self.press("Tab")
            self.browser.run("window.reached.add(document.activeElement)")
        missing = self.browser.run("[...document.querySelectorAll('a[href], button, input, summary, .map, .points, .bars, .timeline')]"
                                   ".filter(one => one.checkVisibility() && !window.reached.has(one)).map(one => one.outerHTML.slice(0, 80))")
        self.assertEqual(missing, [])
        self.assertEqual(self.browser.run("[...window.reached].filter(one => one !== document.body && !one.matches(':any-link, button, input, summary') && !one.getAttribute('aria-label')).length"), 0)

    def test_switches_its_theme_and_prints(self):
        self.open()
        before = self.browser.run("getComputedStyle(document.body).backgroundColor")
        self.browser.run("document.querySelector('#theme').click()")
        self.assertNotEqual(self.browser.run("getComputedStyle(document.body).backgroundColor"), before)
        self.assertEqual(self.browser.run(BOXES), [])
        self.assertGreater(len(self.browser.pdf()), 20_000)
        self.assertEqual(self.browser.run("document.documentElement.dataset.theme"), "dark", "as before printing")

    def test_shows_the_numbers_of_a_picture_as_a_table(self):
        self.open(360, 780)
        self.browser.run("document.querySelectorAll('summary').forEach(one => one.click())")
        self.browser.run("new Promise(done => setTimeout(done, 100))")
        self.assertGreater(self.browser.run("Math.min(...[...document.querySelectorAll('details')].map(one => one.querySelectorAll('td').length))"), 3)
        self.assertEqual(self.browser.run(BOXES), [])

    def test_tells_the_same_numbers_as_json(self):
        self.assertLessEqual({"strategies", "recommendation", "lower_bounds", "knee", "drift", "plan", "run", "provenance"}, set(self.told))
        plan = self.told["plan"]
        layers, experts = len(plan["decoder_layers"]), len(plan["expert_load"][0])
        self.assertEqual((len(plan["affinity"]), len(plan["affinity"][0])), (layers, experts * experts))
        self.assertEqual([len(one) for one in plan["device_load"]["plan"]], [4] * layers)
        for loads, experts_of_layer in zip(plan["device_load"]["vanilla"], plan["expert_load"]):
            self.assertEqual(sum(loads), sum(experts_of_layer))
        self.open()
        self.assertEqual(self.browser.run("document.querySelector('.verdict').textContent"), self.told["recommendation"]["text"])


def take_pictures(folder: pathlib.Path) -> None:
    """The page from its top at each width and in each theme, and the affinity picture alone."""
    TheReport.setUpClass()
    folder.mkdir(parents=True, exist_ok=True)
    browser = TheReport.browser

    def write(name: str, **clip) -> None:
        image = browser.picture(captureBeyondViewport=True, clip=clip)
        (folder / name).write_bytes(image)
        print(f"{name}: {len(image)} bytes" + (", MORE than a picture may have" if len(image) > LARGEST_PICTURE else ""))

    for width, _ in WIDTHS:
        for theme in THEMES:
            browser.show_as(width, TALL[width], theme)
            browser.open(TheReport.page.as_uri())
            browser.run(SCROLL_THROUGH)
            write(f"report-{width}-{theme}.png", x=0, y=0, width=width, height=TALL[width], scale=SCALES[width])
    browser.show_as(1280, 900, "light")
    browser.open(TheReport.page.as_uri())
    browser.run(SCROLL_THROUGH)
    browser.run("document.querySelector('#layers').hidden = true")
    for title in ("Affinity", "Load", "Traffic between devices"):
        section = browser.run("(() => { const one = [...document.querySelectorAll('section')].find(one => one.querySelector('h2').textContent === "
                              f"'{title}').getBoundingClientRect(); return {{x: one.x - 12, y: one.y + scrollY + 8, width: one.width + 24, height: one.height + 8}}; }})()")
        write(f"report-{title.split()[0].lower()}.png", scale=0.8, **section)
    TheReport.doClassCleanups()


TALL = {360: 2000, 1280: 1800, 2560: 2300}
SCALES = {360: 1, 1280: 1, 2560: 0.6}
QUICK = ("--splits", 2, "--effort", 0.05)
PROGRAM, SOURCE = str(pathlib.Path(sys.argv[1]).resolve()), pathlib.Path(sys.argv[2]).resolve()

if __name__ == "__main__":
    if chromium.installed() is None:
        print("no chromium here")
        sys.exit(77)
    if not (SOURCE / "models/demo/model.safetensors").exists():
        print("the demo model is not here")
        sys.exit(77)
    if "--screenshots" in sys.argv:
        QUICK = ()
        take_pictures(pathlib.Path(sys.argv[sys.argv.index("--screenshots") + 1]))
    else:
        unittest.main(argv=sys.argv[:1])
