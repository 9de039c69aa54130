"""The report as a file: whole, self-contained, and every point traceable to its run."""

import dataclasses
import html
import html.parser
import itertools
import json
import re
import subprocess
import sys
from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer

from analysis import cli, report, sample, svg
from analysis.result import Fit, Interval, Status
from analysis.runs import load
from analysis.study import study
from analysis.trials import commands
from analysis.wording import compute, formula, lr_words, number, span, verdict
from tinyllm import record, storage


@pytest.fixture(scope="module")
def written(tmp_path_factory, sample_runs):
    result = study(sample_runs, bootstrap=100)
    return result, report.write(result, tmp_path_factory.mktemp("report"))


class Page(html.parser.HTMLParser):
    """Ids, in-page links, loaded resources and unclosed elements of a page."""

    VOID = ("meta", "br", "path", "use", "rect", "link")

    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.loads, self.open = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag not in self.VOID:
            self.open.append(tag)
        found = dict(attrs)
        if "id" in found:
            self.ids.append(found["id"])
        if tag == "a":
            self.links.append(found["href"])
        self.loads += [found[name] for name in ("src", "data", "srcset") if name in found]
        if tag == "link":
            self.loads.append(found["href"])

    def handle_startendtag(self, tag, attrs):
        if "id" in dict(attrs):
            self.ids.append(dict(attrs)["id"])

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_page_is_self_contained_and_well_formed(written):
    page = Page(Path(written[1].html).read_text())
    assert page.open == []
    assert page.loads == []
    assert len(set(page.ids)) == len(page.ids)
    assert "@import" not in Path(written[1].html).read_text()
    assert not re.search(r"url\((?!#)", Path(written[1].html).read_text())


def test_every_point_of_the_main_figure_links_to_its_row(written):
    result, files = written
    text = Path(files.html).read_text()
    page = Page(text)
    main = text[text.index("<figure>") : text.index("</figure>")]
    for point in result.points.ids:
        assert f'href="#{svg.anchor(point)}"' in main
        assert svg.anchor(point) in page.ids
        run_id = point.split("@")[0]
        assert re.search(rf"<title>{run_id}@\d+", main)
    assert {link[1:] for link in page.links} <= set(page.ids)


def test_sections_answer_in_the_order_of_the_questions(written):
    text = Path(written[1].html).read_text()
    order = ["advice", "reach", "disagree", "left-out", "next", "cost", "figures", "runs"]
    places = [text.index(f'<h2 id="{name}"') for name in order]
    assert places == sorted(places)
    markdown = Path(written[1].markdown).read_text()
    heads = ["What to train", "How far", "What disagrees", "What was left out", "What to run next", "What it cost"]
    assert [markdown.index(f"## {head}") for head in heads] == sorted(markdown.index(f"## {head}") for head in heads)


def test_every_run_stands_with_config_commit_and_log(written):
    result, files = written
    text = Path(files.html).read_text()
    assert len(result.runs.table) == text.count("config, commit, log</summary>")
    assert text.count("&#34;aspect_ratio&#34;: 16") == len(result.runs.table)


def test_fit_json_gives_back_the_fits(written):
    result, files = written
    saved = json.loads(Path(files.fits).read_text())
    assert saved["headline"] == result.headline
    for name, fit in result.fits.items():
        assert Fit.from_json(json.dumps(saved["fits"][name])).law == fit.law


def test_an_unidentified_floor_is_never_quoted_bare(written):
    surface = written[0].fits["surface"]
    interval = surface.intervals["E"]
    known = formula(surface)
    assert f"{surface.law.E:.4g} [{span(interval, 4)}]" in known
    unknown = formula(dataclasses.replace(surface, status=Status.NOT_IDENTIFIED))
    assert unknown.startswith("L(N, D) = E + ")
    assert f"{surface.law.E:.4g}" not in unknown


def test_nothing_half_written_remains(written):
    folder = Path(written[1].html).parent
    assert sorted(path.name for path in folder.iterdir()) == ["fit.json", "report.html", "report.md"]


def test_same_records_give_the_same_page(written, tmp_path):
    again = report.write(written[0], tmp_path)
    assert Path(again.html).read_text() == Path(written[1].html).read_text()


def assert_no_advice_is_quoted(result, text):
    """Where a target is not identified the page gives no size, tokens, LR or loss for it, only what is missing."""
    identified = [advice.identified for advice in result.advice]
    assert text.count("no advice: not identified") == identified.count(False)
    big = re.search(r'class="big">(.*?)</p>', text, re.DOTALL).group(1)
    assert ("train" in big) == result.goal.identified == any(identified)
    badge = text[text.index("From the ") :].split("</p>")[0]
    assert ('CONVERGED">advice' in badge) == result.goal.identified
    assert ("Missing: " in text) == (not all(identified))


@pytest.mark.parametrize(
    "rows",
    [
        {"depths": (3,)},
        {"depths": (2, 3), "budgets": (200_000, 400_000)},
        {"depths": (2, 3, 4), "budgets": (100_000, 200_000, 400_000), "lrs": (0.02, 0.03)},
        {"depths": (3,), "budgets": (400_000,)},
        {"depths": (3,), "budgets": (200_000, 400_000), "lrs": (0.02,)},
    ],
    ids=["one size", "two by two", "demo", "LRs of one size", "one run"],
)
def test_partial_sweeps_give_a_report(rows, tmp_path):
    result = study(load(record.frame(sample.records(**rows))), bootstrap=50)
    files = report.write(result, tmp_path)
    text = Path(files.html).read_text()
    Page(text)
    assert text.count("not measured yet") == sum(t.gain is None and not t.why for t in result.next_trials)
    assert text.count("python -m sweeps.depth_grid --depths ") == len(commands(result.next_trials, result.runs)) > 0
    assert_no_advice_is_quoted(result, text)
    for sentence in verdict(result):
        assert text.index(html.escape(sentence)) < text.index('class="big"')
        assert Path(files.markdown).read_text().index(sentence) < Path(files.markdown).read_text().index("## What to")


def two_sizes_at_the_edge():
    """4 points of 2 sizes, whose best LR is the highest of two; half of them with hardly any decay."""
    found = sample.records(depths=(2, 3), budgets=(200_000, 400_000), lrs=(0.005, 0.01))
    done = [dataclasses.replace(row, decay_steps=8 if row.planned_tokens < 3e5 else 40) for row in found]
    assert {row.status for row in done} == {"done"} and len(done) == 8
    return load(record.frame(done))


def test_four_points_of_two_sizes_are_told_as_what_they_are(tmp_path):
    result = study(two_sizes_at_the_edge(), bootstrap=50)
    files = report.write(result, tmp_path)
    page, markdown = Path(files.html).read_text(), Path(files.markdown).read_text()
    for text in (page, markdown):
        assert "8 decayed losses, 4 of them over fewer than 10 steps" in text
        assert "The best LR is at least 0.01 at the sizes tried: it lies at the edge of the grid." in text
        assert (
            "Missing: 1 more size (2 measured, 3 needed); 1 more token count (2 measured, 3 needed); LRs above 0.01"
            in text
        )
        assert "fully decayed" not in text
        assert "the best LR there, 0.01, is the highest tried" in text
    assert_no_advice_is_quoted(result, page)


@pytest.mark.parametrize(
    ("lrs", "words"),
    [
        ((0.1, 0.12), "at most 0.1 at the sizes tried"),
        ((0.03,), "not known: 0.03 is the only one tried"),
        ((0.01, 0.02, 0.04, 0.08), None),
    ],
)
def test_a_best_lr_at_the_edge_is_a_bound(lrs, words):
    result = study(load(record.frame(sample.records(depths=(3, 4, 5, 6), lrs=lrs))), bootstrap=0)
    assert bool(result.goal.lr_bound) == (words is not None)
    if words:
        assert words in " ".join(verdict(result)) and words in lr_words(result.goal)
    else:
        assert lr_words(result.goal) == number(result.goal.lr.value, 2)


@pytest.mark.parametrize("runs", ["sample", "edge"])
def test_markdown_stands_as_a_linter_wants_it(runs, sample_runs, tmp_path):
    result = study(sample_runs if runs == "sample" else two_sizes_at_the_edge(), bootstrap=20)
    lines = Path(report.write(result, tmp_path).markdown).read_text().splitlines()
    for before, line, after in zip(["", *lines], lines, [*lines[1:], ""], strict=False):
        assert line or after, "two blank lines"
        if line.startswith("#"):
            assert not before and not after, line
        for mark in ("- ", "|", "```"):
            if line.startswith(mark) and mark != "```":
                assert not before or before.startswith(mark), (before, line)


def test_what_is_not_identified_is_said_before_any_number(sample_runs):
    sure = study(sample_runs, bootstrap=50)
    assert verdict(sure) == []
    one_size = study(load(record.frame(sample.records(depths=(3,)))), bootstrap=50)
    said = " ".join(verdict(one_size))
    for part in (
        "do not identify what is compute-optimal (envelope: NOT_IDENTIFIED)",
        "floor E is not quoted",
    ):
        assert part in said
    # Of losses that are not quoted there is nothing to say.
    assert "their intervals are too low" not in said


def test_a_plain_table_gives_a_report(tmp_path, sample_runs):
    bare = sample_runs.measured[["n", "d", "loss"]].rename(columns={"n": "n_params", "d": "tokens"})
    result = study(load(bare), bootstrap=50)
    files = report.write(result, tmp_path)
    assert "no_ladder" in Path(files.markdown).read_text()
    headline = re.search(r'class="big">(.*?)</p>', Path(files.html).read_text(), re.DOTALL).group(1)
    assert re.search(r"train\s+[\d.]+[kMB] parameters\s+on [\d.]+[kMB] tokens", headline), headline


def test_without_resamples_no_interval_is_quoted(sample_runs, tmp_path):
    result = study(sample_runs, bootstrap=0)
    assert [advice.lr.interval for advice in result.advice] == [None] * 3
    table = Path(report.write(result, tmp_path).markdown).read_text().split("## What to train")[1].split("\n\n")[1]
    assert "…" not in table and table.count("no interval") == 3 * len(result.advice)


def test_numbers_for_people():
    assert [number(x) for x in (None, float("nan"), float("inf"), 0.01234, 57344.0, 2.39e6, 5e9, 5e14)] == [
        "–",
        "–",
        "∞",
        "0.0123",
        "57.3k",
        "2.39M",
        "5B",
        "5e+14",
    ]
    assert [compute(x) for x in (5.072e14, 1e12, 2.5e9)] == ["5.07e14", "1e12", "2.5e9"]
    assert span(None) == "no interval"
    assert span(Interval.unbounded(0.9)) == "unbounded"
    assert span(Interval(low=1.0, high=2.5, level=0.9, se=0.1)) == "1 … 2.5"


def run_cli(*arguments):
    return subprocess.run([sys.executable, "-m", "analysis", *arguments], capture_output=True, text=True)


@pytest.fixture(scope="module")
def sweep_directory(tmp_path_factory):
    root = tmp_path_factory.mktemp("sweep")
    for _, group in itertools.groupby(sample.records(), key=lambda row: row.run_id):
        record.append(str(root), list(group))
    return root


def test_command_line_report(sweep_directory):
    done = run_cli("report", str(sweep_directory), "--bootstrap", "50")
    assert done.returncode == 0, done.stderr
    assert "law (surface, CONVERGED): L(N, D) = " in done.stdout
    assert "(10x the largest run): depth " in done.stdout
    assert f"report: {sweep_directory / 'report.html'}" in done.stdout
    assert done.stdout.startswith("law (")
    assert done.stderr == ""


def test_command_line_backtest(sweep_directory):
    done = run_cli("backtest", str(sweep_directory), "--bootstrap", "50")
    assert done.returncode == 0, done.stderr
    assert "90 % interval" in done.stdout and "N* at" in done.stdout
    assert len(re.findall(r"^d\d-\w+@7999488", done.stdout, re.MULTILINE)) == 5


def test_command_line_mistakes_end_with_a_message(tmp_path):
    done = run_cli("report", str(tmp_path / "nowhere"))
    assert done.returncode == 1
    assert done.stderr.startswith("error: ") and "does not exist" in done.stderr
    assert "Traceback" not in done.stderr


def test_command_line_says_first_that_nothing_is_identified(tmp_path):
    for _, group in itertools.groupby(sample.records(depths=(3,)), key=lambda row: row.run_id):
        record.append(str(tmp_path), list(group))
    done = run_cli("report", str(tmp_path), "--bootstrap", "50")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("No advice yet: these runs do not identify what is compute-optimal (envelope: NOT_I")
    assert lines[1].startswith("Missing: 2 more sizes (1 measured, 3 needed)")
    assert len(list(itertools.takewhile(lambda line: not line.startswith("law ("), lines))) == 3
    assert "law (envelope, NOT_IDENTIFIED): not known" in lines
    assert sum(": no advice; N* unbounded, loss not known" in line for line in lines) == 3
    assert any(line.startswith("next: python -m sweeps.depth_grid --depths 2 --lrs ") for line in lines)
    assert any(line.startswith("warning (envelope): few_budgets") for line in lines)


def test_the_terminal_names_what_a_foreign_table_needs_next(tmp_path, sample_runs):
    rows = sample_runs.measured[sample_runs.measured["depth"] < 4]
    names = {"n": "n_params", "d": "tokens"}
    table = rows[["run_id", "n", "d", "loss", "lr", "seed", "depth"]].rename(columns=names)
    table.to_csv(tmp_path / "two.csv", index=False)
    done = run_cli("report", str(tmp_path / "two.csv"), "--bootstrap", "20", "--out", str(tmp_path / "page"))
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stdout.splitlines() if line.startswith("next: ")]
    assert any("parameters on" in line and "completes the grid" in line for line in told)
    with_command = [i for i, line in enumerate(told) if "python -m sweeps" in line]
    assert not with_command or told[with_command[0] - 1].endswith("--set of these runs as well")


def test_a_report_that_another_wrote_is_not_overwritten(tmp_path):
    for _, group in itertools.groupby(sample.records(depths=(2, 3)), key=lambda row: row.run_id):
        record.append(str(tmp_path), list(group))
    own = tmp_path / "report.md"
    own.write_text("# d2-0123456789ab\n")
    for _ in range(2):
        done = run_cli("report", str(tmp_path), "--bootstrap", "0")
        assert done.returncode == 0, done.stderr
        assert f"report: {tmp_path / 'analysis' / 'report.html'}" in done.stdout
        assert sorted(path.name for path in (tmp_path / "analysis").iterdir()) == [
            "fit.json",
            "report.html",
            "report.md",
        ]
    done = run_cli("report", str(tmp_path), "--out", str(tmp_path))
    assert done.returncode == 1 and "holds report.md, not written by the analysis: give another --out" in done.stderr
    assert own.read_text() == "# d2-0123456789ab\n" and not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("report", "--targets", "0"), "--targets 0 is no compute"),
        (("report", "--targets", "1e15", "-3"), "--targets -3 is no compute"),
        (("report", "--targets", "nan"), "--targets nan is no compute"),
        (("report", "--bootstrap", "-5"), "--bootstrap -5 gives no interval"),
        (("report", "--bootstrap", "1"), "--bootstrap 1 gives no interval"),
        (("report", "--seed", "-1"), "--seed -1 is negative"),
        (("backtest", "--budgets", "0"), "--budgets 0 holds nothing out"),
        (("backtest", "--budgets", "9"), "cannot hold out 9 of 4 budgets: 2 must be left to fit, so hold out fewer"),
        (("backtest", "--bootstrap", "-5"), "--bootstrap -5 gives no interval"),
        (("backtest", "--seed", "-1"), "--seed -1 is negative"),
    ],
)
def test_mistakes_are_named_by_their_flag(arguments, message, sweep_directory, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["analysis", arguments[0], str(sweep_directory), *arguments[1:]])
    with pytest.raises(SystemExit, match=message):
        cli.main()


@pytest.mark.parametrize("command", ["report", "backtest"])
def test_help_is_of_the_command_as_it_is_typed(command, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["/somewhere/__main__.py", command, "--help"])
    with pytest.raises(SystemExit, match="0"):
        cli.main()
    text = capsys.readouterr().out
    assert text.startswith(f"usage: python -m analysis {command} [-h]") and text.splitlines()[0].endswith(" PATH")
    for noise in ("None", "(default: )", "STR"):
        assert noise not in text


def test_command_line_refuses_a_place_before_it_fits(sweep_directory, tmp_path):
    (tmp_path / "file").write_text("")
    for out, message in ((str(tmp_path / "file"), "cannot be written"), ("gopher://x", "storage path 'gopher://x'")):
        done = run_cli("report", str(sweep_directory), "--out", out)
        assert done.returncode == 1 and message in done.stderr and "Traceback" not in done.stderr
        assert done.stdout == ""
    assert (tmp_path / "file").read_text() == ""


def test_command_line_names_every_damaged_part(tmp_path):
    parts = []
    for _, group in itertools.groupby(sample.records(depths=(2,)), key=lambda row: row.run_id):
        parts.append(Path(record.append(str(tmp_path), list(group))))
    for part in parts[:2]:
        part.write_bytes(part.read_bytes()[:100])
    done = run_cli("report", str(tmp_path))
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert [part.name in done.stderr for part in parts[:3]] == [True, True, False]
    assert not (tmp_path / "report.html").exists()


@pytest.fixture
def bucket(monkeypatch):
    """URI of an empty bucket of a local S3 server."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "none")
    boto3.client("s3", endpoint_url=f"http://{host}:{port}", region_name="us-east-1").create_bucket(Bucket="sweeps")
    yield f"s3://sweeps/demo?scheme=http&endpoint_override={host}:{port}&region=us-east-1"
    server.stop()


def test_a_sweep_on_s3_is_read_there_and_its_report_written_there(bucket, sample_runs, tmp_path):
    for _, group in itertools.groupby(sample.records(depths=(2, 3, 4)), key=lambda row: row.run_id):
        record.append(bucket, list(group))
    done = run_cli("report", bucket, "--out", bucket, "--bootstrap", "20")
    assert done.returncode == 0, done.stderr
    page = storage.read_bytes(storage.join(bucket, "report.html")).decode()
    assert page.rstrip().endswith("</html>")
    json.loads(storage.read_bytes(storage.join(bucket, "fit.json")))
    table = storage.join(bucket, "table.csv")
    storage.write_bytes(table, sample_runs.records.drop(columns="curve").to_csv(index=False).encode())
    assert len(load(table).best()) == len(sample_runs.best())
    nowhere = bucket.replace("s3://sweeps", "s3://no-such-bucket")
    done = run_cli("report", bucket, "--out", nowhere)
    assert done.returncode == 1 and "cannot be written" in done.stderr and "Traceback" not in done.stderr
    done = run_cli("report", nowhere)
    assert done.returncode == 1 and "no-such-bucket" in done.stderr and "Traceback" not in done.stderr
