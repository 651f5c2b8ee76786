"""The page of a run in a real browser: what is drawn, what a reader can do with it, and that nothing is fetched."""

import json

import pytest

from oneloop.report import write_comparison, write_page
from tests.report.tiny_runs import ARGUMENTS, RUN, START, event, lines, write_eventful_run, write_lines, write_run

CHARTS = ["loss", "evaluation", "learning rate", "gradient norm", "samples per second", "tokens per second", "memory"]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return write_page(write_eventful_run(tmp_path_factory.mktemp("page") / "sentiment-base"))


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    for i, rate in enumerate((3e-4, 1e-4, 1e-3)):
        given = ARGUMENTS | {"learning_rate": rate}
        write_run(folder / f"trial-{i}", run=f"{i:016x}", seed=i, rate=rate, arguments=given)
    return write_comparison([folder], folder / "compare.html", title="learning rates")


def over(sight, title):
    """The plotted area of a chart, scrolled into sight."""
    area = sight.page.locator(f'[data-chart="{title}"] .u-over')
    area.scroll_into_view_if_needed()
    return area.bounding_box()


def test_every_curve_is_drawn_and_nothing_is_fetched(see, report):
    sight = see(report)
    drawn = sight.drawn()
    assert list(drawn) == CHARTS and min(drawn.values()) > 1000
    assert sight.pixels_of("loss", "--c0") > 200 and sight.pixels_of("loss", "--c1") > 50
    assert sight.outside() == []
    sight.picture("report-light.png")


def test_facts_stand_in_tables(see, report):
    page = see(report).page
    text = {
        name: page.locator(f"#{name}").inner_text() for name in ("events", "checkpoints", "arguments", "environment")
    }
    for word in ("preempted", "SIGTERM", "resumed", "not finite", "[11, 78, 34]", "No space left", "0.41 s"):
        assert word in text["events"]
    assert "ended unexpectedly" in text["events"] and "skipped checkpoint-2250: torn" in text["events"]
    assert "damaged" in text["checkpoints"] and "has 7 bytes instead of 2000" in text["checkpoints"]
    assert "best" in text["checkpoints"] and "latest" in text["checkpoints"]
    assert "learning_rate\t0.0003\t5e-05" in text["arguments"] and "adam_beta1" not in text["arguments"]
    assert "NVIDIA L4" in text["environment"] and "transformers\t5.3.0" in text["environment"]
    assert page.locator("#state").inner_text() == "✓ finished"
    assert "15 min" in page.locator("#summary").inner_text()  # two pauses of an hour are not training


def test_the_pointer_reads_the_curves_of_its_chart(see, report):
    sight = see(report)
    sight.drawn()
    box = over(sight, "loss")
    sight.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    tip = sight.page.locator('[data-chart="loss"] .tip')
    tip.wait_for(state="visible")
    words = tip.inner_text().split()
    assert words[0] == "step" and abs(int(words[1].replace(",", "")) - 1500) < 60
    assert words[2] == "training" and 0.15 < float(words[3]) < 0.6
    assert words[4] == "evaluation" and 0.3 < float(words[5]) < 0.5


def test_a_dragged_range_zooms_every_chart_and_the_button_goes_back(see, report):
    sight = see(report)
    sight.drawn()
    box = over(sight, "loss")
    mouse = sight.page.mouse
    mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 50)
    mouse.down()
    mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 60, steps=4)
    mouse.up()
    ranges = "window.oneloopPage.charts.map(c => [c.plot.scales.x.min, c.plot.scales.x.max])"
    zoomed = sight.page.evaluate(ranges)
    assert all(600 < low < 900 and 1400 < high < 1600 for low, high in zoomed)
    sight.page.get_by_role("button", name="Reset zoom").click()
    assert all(low < 300 and high >= 3000 for low, high in sight.page.evaluate(ranges))


def test_the_same_place_is_the_same_step_in_every_chart(see, report):
    """Evaluations begin later than logs of training."""
    sight = see(report)
    sight.drawn()
    first = "window.oneloopPage.charts.map(c => Math.min(...c.shown.map(s => s.x[0])))"
    assert set(sight.page.evaluate(first)) == {10, 250}
    ranges = "window.oneloopPage.charts.map(c => [c.plot.scales.x.min, c.plot.scales.x.max])"
    assert set(map(tuple, sight.page.evaluate(ranges))) == {(10, 3000)}


def test_a_chart_of_one_metric_is_called_by_its_name(see, tmp_path):
    entries = [{"step": i, "loss": 1.0, "eval_accuracy": i / 10, "eval_loss": 1.0} for i in range(10)]
    write_lines(tmp_path / "log.jsonl", [entry | {"eval_perplexity": 9.0} for entry in entries])
    titles = see(write_page(tmp_path)).drawn()
    assert list(titles) == ["loss", "accuracy (evaluation)", "perplexity (evaluation)"]


def test_a_legend_is_made_of_switches(see, report):
    sight = see(report)
    sight.drawn()
    switch = sight.page.locator('[data-chart="loss"] .legend button').first
    assert switch.get_attribute("aria-pressed") == "true"
    switch.click()
    assert sight.page.locator('[data-chart="loss"] .legend button').first.get_attribute("aria-pressed") == "false"
    assert sight.pixels_of("loss", "--c0") == 0 and sight.pixels_of("loss", "--c1") > 50


def test_smoothing_time_and_log_scale_redraw_the_charts(see, report):
    sight = see(report)
    sight.drawn()
    before = sight.page.evaluate("window.oneloopPage.charts[3].shown.length")
    sight.page.locator("#smoothing").fill("0.9")
    sight.until(f"window.oneloopPage.charts[3].shown.length === {before + 1}")  # the true values behind
    spread = """() => { const [raw, smooth] = window.oneloopPage.charts[3].shown.map(c => c.y);
        const rough = (y) => y.slice(1).reduce((sum, v, i) => sum + Math.abs(v - y[i]), 0);
        return [rough(raw), rough(smooth)]; }"""
    raw, smooth = sight.page.evaluate(spread)
    assert smooth < raw / 3
    sight.page.get_by_role("radio", name="Time").check()
    sight.drawn()
    high = sight.page.evaluate("window.oneloopPage.charts[0].plot.scales.x.max")
    assert 900 < high < 950  # seconds
    sight.page.get_by_label("Log scale").check()
    sight.drawn()
    assert sight.page.evaluate("window.oneloopPage.charts[0].plot.scales.y.distr") == 3
    assert sight.pixels_of("loss", "--c0") > 200


def test_the_keyboard_reaches_charts_and_moves_in_them(see, report):
    sight = see(report)
    sight.drawn()
    frame = sight.page.locator('[data-chart="loss"] .plot')
    frame.focus()
    sight.page.keyboard.press("End")
    assert "step 2,9" in sight.page.locator('[data-chart="loss"] .tip').inner_text()
    sight.page.keyboard.press("Home")
    sight.page.keyboard.press("+")
    assert sight.page.evaluate("window.oneloopPage.zoom[1]") < 1700
    sight.page.keyboard.press("Escape")
    assert sight.page.evaluate("window.oneloopPage.zoom") is None
    unnamed = (
        "[...document.querySelectorAll('button, input')].filter(e => !e.innerText && !e.labels?.length && !e.ariaLabel)"
    )
    assert sight.page.evaluate(f"{unnamed}.length") == 0


CONTRAST = """() => {
    const parse = (text) => text.match(/[\\d.]+/g).slice(0, 3).map(Number);
    const light = ([r, g, b]) => [r, g, b].map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    const behind = (e) => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
        if (c.startsWith("rgb(")) return parse(c); } return [255, 255, 255]; };
    return [...document.querySelectorAll("h1, h2, td, th, dt, dd, button:enabled, .badge, .note, label, footer")]
        .filter((e) => e.offsetParent && e.innerText).map((e) => {
            const [a, b] = [light(parse(getComputedStyle(e).color)), light(behind(e))].sort((x, y) => y - x);
            return [Math.round(100 * (a + 0.05) / (b + 0.05)) / 100, e.innerText.slice(0, 30)];
        }).sort((x, y) => x[0] - y[0])[0];
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast(see, report, scheme):
    ratio, where = see(report, scheme=scheme).page.evaluate(CONTRAST)
    assert ratio >= 4.5, where


def test_dark_follows_the_system_and_the_switch(see, report):
    ground = "getComputedStyle(document.body).backgroundColor"
    sight = see(report, scheme="dark")
    assert sight.page.evaluate(ground) == "rgb(15, 19, 24)"
    sight.drawn()
    assert sight.pixels_of("loss", "--c0") > 200  # in the colours of the dark page
    sight.picture("report-dark.png")
    switch = sight.page.get_by_role("button", name="Theme")
    switch.click()
    assert switch.inner_text() == "Theme: light" and sight.page.evaluate(ground) == "rgb(245, 246, 248)"
    sight.page.reload()
    assert sight.page.evaluate(ground) == "rgb(245, 246, 248)"  # it is remembered


def test_a_phone_shows_all_without_scrolling_sideways(see, report, comparison):
    sight = see(report, width=390, height=844, density=2)
    assert min(sight.drawn().values()) > 1000
    assert sight.overflow() <= 0
    cut = "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth).length"
    assert sight.page.evaluate(cut) == 0  # nor do its tables
    torn = "[...document.querySelectorAll('.number')].filter(e => e.innerText && e.offsetHeight > 40).length"
    assert sight.page.evaluate(torn) == 0
    sight.picture("report-phone.png")
    narrow = see(comparison, width=320, height=640)
    narrow.drawn()
    assert narrow.overflow() <= 0


def test_runs_are_compared_and_can_be_distinguished(see, comparison):
    sight = see(comparison)
    drawn = sight.drawn()
    assert list(drawn)[:3] == ["loss", "loss (evaluation)", "accuracy (evaluation)"] and min(drawn.values()) > 1000
    assert [sight.pixels_of("learning rate", f"--c{i}") > 100 for i in range(4)] == [True, True, True, False]
    table = sight.page.locator("#runtable").inner_text()
    assert "learning_rate" in table and "warmup_steps" not in table  # only what differs
    assert [sight.page.locator("#runtable a").count(), sight.outside()] == [0, []]
    sight.picture("compare.png")
    sight.page.get_by_role("button", name="learning_rate").click()
    names = "[...document.querySelectorAll('#runtable tbody tr')].map(r => r.cells[1].innerText)"
    assert sight.page.evaluate(names) == ["trial-1", "trial-0", "trial-2"]
    sight.page.get_by_label("Show trial-1").uncheck()
    sight.drawn()
    assert sight.pixels_of("learning rate", "--c1") == 0
    sight.page.locator("#filter").fill("trial-2")
    assert sight.page.evaluate(names) == ["trial-2"]
    box = over(sight, "learning rate")
    sight.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 40)
    tip = sight.page.locator('[data-chart="learning rate"] .tip')
    tip.wait_for(state="visible")
    assert "learning_rate 0.001" in tip.inner_text()


EVIL = '</script><img src=x onerror="window.caught=1"><script>window.caught=2</script>\u2028"\'&'


def test_no_text_of_a_run_is_executed(see, tmp_path):
    folder = tmp_path / "<img src=x onerror=window.caught=3>"
    entries = [entry | {f"eval_{EVIL}": 0.5, EVIL: 1.0} for entry in lines(300)]
    write_lines(folder / "log.jsonl", entries)
    facts = START | {"arguments": {EVIL: EVIL, "learning_rate": EVIL}, "packages": {EVIL: EVIL}, "model": EVIL}
    told = [event("started", 0, 0, **facts), event(EVIL, 3, 1, **{EVIL: EVIL}), event("failed", 5, 2, message=EVIL)]
    write_lines(folder / "run.jsonl", told)
    write_run(tmp_path / "other", steps=300)
    pages = [write_page(folder, title=EVIL), write_comparison([tmp_path], tmp_path / "all.html", title=EVIL)]
    for page in pages:
        sight = see(page)
        sight.drawn()
        assert sight.page.evaluate("[window.caught, document.images.length]") == [None, 0]
        assert sight.page.locator("h1").inner_text().startswith("</script><img")
        assert sight.page.title().startswith("</script><img") and sight.outside() == []


def test_a_script_that_got_in_all_the_same_would_not_run(see, report, tmp_path):
    text = report.read_text(encoding="utf-8").replace("<main>", "<main><script>window.caught = 1</script>")
    assert "window.caught" in text
    (tmp_path / "page.html").write_text(text, encoding="utf-8")
    sight = see(tmp_path / "page.html")
    assert sight.page.evaluate("window.caught") is None
    (blocked,) = sight.errors
    assert "Content Security Policy" in blocked
    sight.errors.clear()


def test_a_run_without_logs_shows_a_note(see, tmp_path):
    write_lines(tmp_path / "run.jsonl", [event("started", 0, 0, **START)])
    sight = see(write_page(tmp_path))
    assert sight.page.locator("#charts").inner_text() == "Nothing was logged."


def test_many_long_runs_go_through_a_grid_that_keeps_their_peaks(see, tmp_path):
    """More points than can be lined up: spikes of single steps are still where they were."""
    for i in range(40):
        entries = (
            {"run": f"{i:x}", "step": 40 * step + i, "loss": 50.0 if (i, step) == (7, 700) else 1.0 + i / 100}
            for step in range(1, 1200)
        )
        write_lines(tmp_path / f"run-{i:02}" / "log.jsonl", entries)
    sight = see(write_comparison([tmp_path], tmp_path / "all.html"))
    sight.drawn()
    exact, top = sight.page.evaluate(
        "(c => [c.exact, Math.max(...c.plot.data.slice(1).flat().filter(Number.isFinite))])(oneloopPage.charts[0])"
    )
    assert exact is False and top == 50.0
    sight.page.evaluate("window.oneloopPage.setZoom([27000, 29000])")
    data = sight.page.evaluate(
        "(p => [p.scales.x.min, p.data[8].filter(Number.isFinite)])(window.oneloopPage.charts[0].plot)"
    )
    assert data[0] == 27000 and 50.0 in data[1] and len(data[1]) > 40


def several(folder, **losses):
    """A page of runs with these losses, one a step."""
    for name, values in losses.items():
        entries = [
            {"run": name, "step": i + 1, "loss": value, "learning_rate": value} for i, value in enumerate(values)
        ]
        write_lines(folder / name / "log.jsonl", entries)
    return write_comparison([folder], folder / "all.html")


def axis(sight, title="loss"):
    scale = "oneloopPage.charts.find(c => c.spec.title === t).plot.scales.y"
    return sight.page.evaluate(f"t => {{ const {{ min, max }} = {scale}; return [min, max] }}", title)


NEAR = {"one": [3.0, 2.0, 1.0], "two": [2.9, 1.8, 1.1]}


def test_a_diverged_run_does_not_flatten_the_others(see, tmp_path):
    sight = see(several(tmp_path, **NEAR, lost=[3.0, 400.0, 9000.0]))
    sight.drawn()
    low, high = axis(sight)
    assert 0 < low < 1.0 and 3.0 < high < 4.0
    note = sight.page.locator('[data-chart="loss"] .beyond')
    assert note.inner_text().startswith("lost goes beyond the axis, to 9,000.")
    low, high = axis(sight, "learning rate")
    assert high > 9000, "what was chosen is no divergence"
    note.get_by_role("button", name="Show all of it").click()
    assert axis(sight)[1] > 9000
    note.get_by_role("button", name="Leave out what is far away").click()
    sight.until("oneloopPage.charts[0].plot.scales.y.max < 4")
    sight.page.get_by_label("Show lost").uncheck()
    sight.drawn()
    assert not note.is_visible(), "nothing is left out any more"


@pytest.mark.parametrize(
    ("losses", "reaches"),
    [
        (NEAR | {"other": [3.0, 5.0, 6.0]}, 6.0),  # not that far
        (NEAR | {"all": [50.0, 51.0, 52.0], "high": [60.0, 61.0, 62.0]}, 62.0),  # half of them
        ({"alone": [1.0, 2.0, 900.0]}, 900.0),
        ({"one": [0.5] * 3, "two": [0.5] * 3, "three": [0.5, 0.5, 0.52]}, 0.52),
        ({"steady": [0.92, 0.92, 0.94], "from below": [0.3, 0.9, 0.94]}, 0.94),  # as an accuracy
        ({"one": [5.0, 5.01], "two": [5.0, 5.02], "better": [5.0, 0.001]}, 5.02),
    ],
)
def test_what_is_not_far_away_sets_the_axis(see, tmp_path, losses, reaches):
    sight = see(several(tmp_path, **losses))
    sight.drawn()
    low, high = axis(sight)
    assert low <= min(map(min, losses.values())) and high >= reaches
    assert not sight.page.locator('[data-chart="loss"] .beyond').is_visible()


def test_a_reward_that_falls_without_end(see, tmp_path):
    sight = see(several(tmp_path, one=[-1.0, -0.5], two=[-1.2, -0.4], three=[-1.0, -5000.0]))
    sight.drawn()
    low, high = axis(sight)
    assert -2 < low < -1.2 and -0.4 < high < 1
    assert "to -5,000" in sight.page.locator('[data-chart="loss"] .beyond').inner_text()


@pytest.mark.parametrize("value", [0.5, -3.0, 0.0, 1e-7, 6.02e23])
@pytest.mark.parametrize("noise", [0.0, 1e-9])
def test_a_constant_has_an_axis_around_it(see, tmp_path, value, noise):
    entries = [{"run": "a", "step": i, "own": value * (1 + noise * i)} for i in range(1, 5)]
    write_lines(tmp_path / "log.jsonl", entries)
    sight = see(write_page(tmp_path))
    sight.drawn()
    low, high = axis(sight, "own")
    assert low < value < high and abs((value - low) - (high - value)) <= 1e-3 * (high - low)
    assert high - low == pytest.approx(0.2 * abs(value) or 2.0, rel=0.01)


def test_labels_of_an_axis_tell_neighbours_apart(see, report):
    sight = see(report)
    labels = "(([values, unit]) => oneloopPage.axisLabels(values, unit))"
    assert sight.page.evaluate(labels, [[0.5, 0.75, 1], ""]) == ["0.5", "0.75", "1"]
    assert sight.page.evaluate(labels, [[0.69311, 0.69312, None], ""]) == ["0.69311", "0.69312", ""]
    assert sight.page.evaluate(labels, [[1e6, 2e6], "bytes"]) == ["1 MB", "2 MB"]


def test_the_best_values_are_marked(see, tmp_path):
    """By a star in the chart of a run, and in the table of several."""
    metrics = {"a": [0.5, 0.9, 0.7], "b": [0.5, 0.6, 0.95]}
    for name, values in metrics.items():
        steps = [
            {"run": name, "step": 10 * i, "eval_f1": v, "eval_loss": 1 - v, "eval_flat": 3.0}
            for i, v in enumerate(values)
        ]
        write_lines(tmp_path / name / "log.jsonl", steps)
    sight = see(write_page(tmp_path / "a"))
    sight.drawn()
    assert sight.page.evaluate("oneloopPage.data.best") == {"eval_f1": [10, 0.9], "eval_loss": [10, pytest.approx(0.1)]}
    starred = sight.pixels_of("f1 (evaluation)", "--c0")
    sight.page.evaluate("oneloopPage.data.best = {}; oneloopPage.redraw()")
    sight.drawn()
    assert sight.pixels_of("f1 (evaluation)", "--c0") < starred
    sight = see(write_comparison([tmp_path], tmp_path / "all.html"))
    stars = "[...row.querySelectorAll('.top')].map(cell => cell.innerText)"
    marked = f"[...document.querySelectorAll('#runtable tbody tr')].map(row => {stars})"
    assert sight.page.evaluate(marked) == [[], ["★ 0.95", "★ 0.05"]]


def test_the_table_as_a_file(see, tmp_path):
    sight = see(several(tmp_path, **NEAR))
    sight.page.locator("#filter").fill("two")
    with sight.page.expect_download() as got:
        sight.page.get_by_role("button", name="Download CSV").click()
    assert got.value.suggested_filename == "runs.csv"
    text = got.value.path().read_text(encoding="utf-8")
    assert text.splitlines() == [
        'run,status,step,"loss, last","loss, lowest","loss, step of the lowest"',
        "two,unknown,3,1.1,1.1,3",
    ]


def test_data_stand_in_the_page_as_json(report):
    text = report.read_text(encoding="utf-8")
    block = text.split('<script type="application/json" id="data">')[1].split("</script>")[0]
    assert json.loads(block)["runs"][0]["name"] == "sentiment-base" and "<" not in block and RUN in block
