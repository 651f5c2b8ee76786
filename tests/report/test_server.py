"""oneloop watch: live while a log grows, for this machine only, and for nothing but its own few addresses."""

import http.client
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from urllib.parse import parse_qs, urlsplit

import pytest

from oneloop.cli.main import main
from oneloop.errors import CheckpointError
from oneloop.report import follow
from oneloop.report.server import known_of, serve
from tests.report.tiny_runs import BEGIN, RUN, START, event, lines, write_lines, write_run


@contextmanager
def served(folder, *given):
    """The address of a server for the directory."""
    server = serve(folder, 0, *given)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server.url
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def ask(address, path, host=None, cookie=None):
    """(status, text) of a path that is sent as it is, without being tidied up first; by a browser that has opened the
    address before."""
    where = urlsplit(address)
    connection = http.client.HTTPConnection(where.netloc, timeout=20)
    connection.putrequest("GET", path, skip_host=True)
    connection.putheader("Host", host or where.netloc)
    if cookie is None:
        cookie = f"oneloop-{where.port}={parse_qs(where.query)['token'][0]}"
    connection.putheader("Cookie", cookie)
    connection.endheaders()
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def news(address, known, path="/data"):
    status, text = ask(address, f"{path}?known={known}")
    assert status == 200
    return json.loads(text)


def test_a_page_that_is_open_shows_the_finer_curve(see, tmp_path):
    """From curve.jsonl, before and after the first log, without the mean that was logged beside it."""
    points = [{"run": RUN, "step": step, "loss": 1 / step} for step in range(1, 31)]
    count = "window.oneloopPage.runs[0].points.loss.x.length"
    with served(tmp_path) as address:
        sight = see(address)
        write_lines(tmp_path / "run.jsonl", [event("started", 0, 0, **START)])
        write_lines(tmp_path / "curve.jsonl", points[:20])
        sight.until(f"window.oneloopPage.charts.length === 1 && {count} === 20")
        write_lines(tmp_path / "curve.jsonl", points[20:])
        logged = {"run": RUN, "step": 25, "time": BEGIN, "loss": 9.0, "learning_rate": 0.1}
        write_lines(tmp_path / "log.jsonl", [logged])
        sight.until(f"window.oneloopPage.charts.length === 2 && {count} === 30")
        assert sight.page.evaluate("Math.max(...window.oneloopPage.runs[0].points.loss.y)") == 1


def test_a_page_that_is_open_grows_with_the_log(see, tmp_path):
    """From nothing at all, over the first line, to a resume that takes lines back and another run beside it."""
    entries, folder = list(lines(600)), tmp_path / "runs" / "first"
    with served(folder) as address:
        sight = see(address)
        assert "Nothing has been logged yet" in sight.page.locator("#charts").inner_text()
        write_lines(folder / "run.jsonl", [event("started", 0, 0, **START)])
        write_lines(folder / "log.jsonl", entries[:10])
        sight.until("window.oneloopPage.charts.length > 4")
        sight.drawn()
        count = "window.oneloopPage.runs[0].points.loss.x.length"
        assert sight.page.evaluate(count) == 10
        with open(folder / "log.jsonl", "a") as f:
            f.write(json.dumps(entries[10])[:40])  # a line that is being written
        write_lines(folder / "run.jsonl", [event("nonfinite", 80, 5, action="skip", samples="[1]")])
        sight.until("document.querySelector('#events').innerText.includes('not finite')")
        assert sight.page.evaluate(count) == 10
        with open(folder / "log.jsonl", "a") as f:
            f.write(json.dumps(entries[10])[40:] + "\n")
        write_lines(folder / "log.jsonl", entries[11:])
        sight.until(f"{count} === 60")
        sight.until("window.oneloopPage.charts[0].plot.scales.x.max === 600")  # drawn after the data have come
        assert sight.page.locator("#live").inner_text() == "● live"
        partial = folder / "partial"
        write_lines(partial, entries[:20])
        os.replace(partial, folder / "log.jsonl")
        sight.until(f"{count} === 20")
        page = address.partition("?")[0]
        asked = [url for url in sight.outside() if not url.startswith(f"{page}data?known=")]
        assert set(asked) <= {page}  # the page itself, once the token is in a cookie


def test_only_what_is_new_is_sent(tmp_path):
    folder = write_run(tmp_path / "run", steps=3000)
    with served(folder) as address:
        whole = news(address, "")["runs"][0]
        assert whole["whole"] and set(whole["points"]) >= {"loss", "eval_loss", "memory_bytes"}
        known = f"0:{whole['generation']}:{whole['entries']}"
        nothing = news(address, known)["runs"][0]
        assert nothing["added"] == {} and "points" not in nothing
        more = [entry | {"step": entry["step"] + 3000} for entry in lines(20, nan_at={10})]
        write_lines(folder / "log.jsonl", more)
        fresh = news(address, known)["runs"][0]
        assert fresh["added"]["loss"] == [[3010, 3020], [None, more[1]["loss"]]]
        assert [step for step, _ in fresh["clock"]] == [3010, 3020] and fresh["entries"] == whole["entries"] + 2
        for wrong in (f"0:{whole['generation'] + 1}:{whole['entries']}", "0:0:999999", "9:0:0", "x", "0:0:-1,"):
            assert news(address, wrong)["runs"][0]["whole"]


def test_several_runs_are_compared_and_each_has_a_page(see, tmp_path):
    write_run(tmp_path / "one", steps=500)
    with served(tmp_path) as address:
        sight = see(address)
        assert sight.page.evaluate("window.oneloopPage.runs.map(r => r.name)") == ["one"]
        write_run(tmp_path / "deep" / "two", steps=300, run="2" * 16)
        sight.until("window.oneloopPage.runs.length === 2")
        sight.drawn()
        assert sight.pixels_of("learning rate", "--c1") > 50
        sight.page.get_by_role("link", name="two").click()
        sight.until("window.oneloopPage?.data.kind === 'run'")
        assert sight.page.locator("h1").inner_text() == "two"
        sight.until("document.querySelector('#live').innerText === '● live'")


def test_runs_that_were_recorded_have_a_page_that_says_where_they_part(see, tmp_path):
    for name in ("one", "other", "third"):
        write_run(tmp_path / name, steps=100, run=name * 3)

    def is_recorded(run):
        return run.name != "third"

    def differ(a, b):
        if b.name == "third":
            raise CheckpointError(f"{b.name} has no recording <b>")
        return f"<p>{a.name} and {b.name}"

    with served(tmp_path, is_recorded, differ) as address:
        assert news(address, "")["facts"]["differences"] == [["one and other", "diff/0/1"]]
        assert ask(address, "/diff/0/1") == (200, "<p>one and other")
        assert ask(address, "/diff/0/2") == (200, "third has no recording <b>"), "as text"
        for path in ("/diff/0/3", "/diff/0", "/diff/0/1/2", "/diff/-1/0", "/diff/../1"):
            assert ask(address, path)[0] == 404, path
        assert ask(address, "/diff/0/1", cookie="")[0] == 403
        sight = see(address)
        sight.page.get_by_role("link", name="one and other").click()
        sight.page.wait_for_url("**/diff/0/1")
    with served(tmp_path) as address:
        assert news(address, "")["facts"]["differences"] == [] and ask(address, "/diff/0/1")[0] == 404


def until(answer, seconds=60):
    """The first answer that is worth something."""
    end = time.monotonic() + seconds
    while not (found := answer()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return found


def test_long_logs_are_read_by_others_while_the_page_is_there_already(see, tmp_path, monkeypatch):
    monkeypatch.setattr(follow, "AT_ONCE", 0)
    monkeypatch.setattr(follow, "LEAST", 1 << 15)
    monkeypatch.setattr(follow, "PARSED", 0)
    for i in range(3):
        write_run(tmp_path / f"run-{i}", steps=3000 if i else 60_000, run=f"{i:016x}")
    with served(tmp_path) as address:
        first = news(address, "")
        assert first["facts"]["reading"] == 3 and first["runs"] == []
        sight = see(address)
        sight.until("window.oneloopPage.runs.length === 3 && window.oneloopPage.data.reading === 0", seconds=60)
        sight.drawn()
        assert sight.pixels_of("learning rate", "--c2") > 50
        words = sight.page.locator("#notes").inner_text()
        assert words.startswith("The logs of 3 runs were read in part") and "still" not in words
        assert sight.page.evaluate("window.oneloopPage.runs.map(r => Math.max(...r.points.loss.x))") in (
            [60_000, 3000, 3000],
            [3000, 60_000, 3000],
            [3000, 3000, 60_000],
        )
        sight.page.get_by_role("link", name="run-0").click()
        sight.until("window.oneloopPage?.data.kind === 'run' && window.oneloopPage.charts.length > 4")
        assert sight.page.locator("#notes").inner_text().startswith("The log was read in part")
    assert multiprocessing.active_children() == []


def test_runs_that_do_nothing_are_not_sent_again(tmp_path):
    for i in range(3):
        write_run(tmp_path / f"run-{i}", steps=300, run=f"{i:016x}")
    with served(tmp_path) as address:
        first = news(address, "")
        assert [run["id"] for run in first["runs"]] == [0, 1, 2] and all(run["whole"] for run in first["runs"])
        known = ",".join(f"{run['id']}:{run['generation']}:{run['entries']}" for run in first["runs"])
        after = news(address, f"{known}&since={first['version']}")
        assert after["runs"] == [] and after["version"] > first["version"]
        write_lines(tmp_path / "run-1" / "log.jsonl", [{"run": f"{1:016x}", "step": 310, "time": BEGIN, "loss": 9.0}])
        write_lines(tmp_path / "run-2" / "run.jsonl", [event("failed", 300, 95, run=f"{2:016x}", error="E")])
        grown, failed = news(address, f"{known}&since={after['version']}")["runs"]
        assert grown["id"] == 1 and grown["added"]["loss"] == [[310], [9.0]] and grown["metrics"]["loss"][0] == "9"
        assert (failed["id"], failed["status"], failed["added"]) == (2, "failed", {})
        # A server before this one gave smaller numbers: to a page that it left behind, all is new.
        assert len(news(address, f"{known}&since={first['version'] - 10**6}")["runs"]) == 3
        assert len(news(address, "&since=x")["runs"]) == 3


def test_closing_ends_the_processes_that_read(tmp_path, monkeypatch):
    monkeypatch.setattr(follow, "AT_ONCE", 0)
    for i in range(10):
        write_run(tmp_path / f"run-{i}", steps=10_000, run=f"{i:016x}")
    with served(tmp_path) as address:
        assert ask(address, "/")[0] == 200
        until(lambda: multiprocessing.active_children())
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(
    "path",
    [
        *("/..", "/../secret", "/run/../../secret", "/%2e%2e/secret", "/run/0/../../secret", "/run/0/log.jsonl"),
        *("/log.jsonl", "//etc/passwd", "/run/-1", "/run/1", "/run/99999999999", "/data/../secret", "/run/0\\..\\x"),
    ],
)
def test_no_address_leads_to_a_file(tmp_path, path):
    (tmp_path / "secret").write_text("the secret")
    with served(write_run(tmp_path / "run", steps=100)) as address:
        status, text = ask(address, path)
        assert status == 404 and "secret" not in text.replace("/secret", "") and "memory_bytes" not in text
        assert ask(address, "/run/0")[0] == 200


def test_a_page_of_another_site_gets_no_answer(tmp_path):
    """A name that its owner points at 127.0.0.1 (DNS rebinding) is not this machine's."""
    with served(write_run(tmp_path / "run", steps=100)) as address:
        port = urlsplit(address).port
        for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example:80", ""):
            assert ask(address, "/data", host or " ")[0] == 403
        for host in (f"localhost:{port}", f"127.0.0.1:{port}", "localhost", f"[::1]:{port}"):
            assert ask(address, "/data", host)[0] == 200


def test_another_user_of_this_machine_gets_nothing_without_the_token(tmp_path):
    with served(write_run(tmp_path / "run", steps=100)) as address, served(tmp_path / "run") as other:
        port, token = urlsplit(address).port, parse_qs(urlsplit(address).query)["token"][0]
        foreign = parse_qs(urlsplit(other).query)["token"][0]
        wrong = ("", "a=b", f"oneloop-{port}=", f"oneloop-{port}={foreign}", f"oneloop-1={token}", "=;=,")
        for cookie in wrong:
            for path in ("/", "/data", "/run/0", "/run/0/data", "/?token=", "/?token=x", f"/?token={foreign}"):
                status, text = ask(address, path, cookie=cookie)
                assert status == 403 and "token" in text and token not in text
        assert ask(address, "/data")[0] == 200
        status, text = ask(address, f"/?token={token}", cookie="")
        assert (status, text) == (303, "")  # to the same page, without the token in its address
        assert len(token) >= 32 and token != foreign


def test_it_listens_on_this_machine_only_and_reports_an_unavailable_port(tmp_path, capsys):
    server = serve(tmp_path, port=0)
    try:
        host, port = server.server_address[:2]
        assert host == "127.0.0.1"
        assert main(["watch", str(tmp_path), "--port", str(port)]) == 1
        assert f"port {port} is not available" in capsys.readouterr().err
    finally:
        server.server_close()
    assert main(["watch", str(tmp_path), "--port", "70000"]) == 1
    assert "expected 0 to 65535" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert main(["watch", str(tmp_path / "file")]) == 1
    assert "is a file" in capsys.readouterr().err


def test_what_a_page_knows_is_read_with_care():
    assert known_of("0:1:20,7:0:3") == {0: (1, 20), 7: (0, 3)}
    assert known_of("") == known_of("a:b:c") == known_of("0:1") == known_of("-1:0:0") == {}


def test_the_command_imports_no_framework_and_ends_cleanly_on_ctrl_c(tmp_path):
    write_run(tmp_path, steps=100)
    code = (
        "import sys; from oneloop.cli.main import main; status = main(['watch', sys.argv[1], '--port', '0']); "
        "print(sorted({'torch', 'paddle', 'mindspore'} & sys.modules.keys())); sys.exit(status)"
    )
    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a job in the background passes on that it has none
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
    finally:
        signal.signal(signal.SIGINT, before)
    try:
        first = process.stdout.readline()
        address = first.split()[-4]
        assert ask(address, "/")[0] == 200
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert (process.returncode, err) == (0, "")
    assert "Stopped watching." in out and out.endswith("[]\n")
    with socket.socket() as probe:  # the port is free again
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", urlsplit(address).port))
