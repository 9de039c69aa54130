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

from analysis import report, sample, svg
from analysis.result import Fit, Interval, Status
from analysis.runs import load
from analysis.study import study
from analysis.wording import compute, formula, number, span, verdict
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


@pytest.mark.parametrize(
    "rows",
    [
        {"depths": (3,)},
        {"depths": (2, 3), "budgets": (200_000, 400_000)},
        {"depths": (2, 3, 4), "budgets": (100_000, 200_000, 400_000), "lrs": (0.02, 0.03)},
    ],
    ids=["one size", "two by two", "demo"],
)
def test_partial_sweeps_give_a_report(rows, tmp_path):
    result = study(load(record.frame(sample.records(**rows))), bootstrap=50)
    files = report.write(result, tmp_path)
    text = Path(files.html).read_text()
    Page(text)
    assert text.count('<td class="num">not known</td>') == (len(result.next_trials) if result.next_refusal else 0)
    for sentence in verdict(result):
        assert text.index(html.escape(sentence)) < text.index('class="big"')
        assert Path(files.markdown).read_text().index(sentence) < Path(files.markdown).read_text().index("## What to")


def test_what_is_not_identified_is_said_before_any_number(sample_runs):
    sure = study(sample_runs, bootstrap=50)
    assert verdict(sure) == []
    one_size = study(load(record.frame(sample.records(depths=(3,)))), bootstrap=50)
    said = " ".join(verdict(one_size))
    for part in (
        "do not identify what is compute-optimal (envelope: NOT_IDENTIFIED)",
        "floor E is not quoted",
        "no floor",
    ):
        assert part in said


def test_a_plain_table_gives_a_report(tmp_path, sample_runs):
    bare = sample_runs.measured[["n", "d", "loss"]].rename(columns={"n": "n_params", "d": "tokens"})
    result = study(load(bare), bootstrap=50)
    text = Path(report.write(result, tmp_path).markdown).read_text()
    assert "no_ladder" in text


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
    assert lines[0].startswith("These runs do not identify what is compute-optimal (envelope: NOT_IDENTIFIED)")
    assert len(list(itertools.takewhile(lambda line: not line.startswith("law ("), lines))) == 3
    assert any(line.startswith("warning (envelope): few_budgets") for line in lines)


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
