"""What an editor shows: pyright's language server, which VS Code and others use, is asked as they ask it."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from oneloop import TrainingArguments
from oneloop.arguments.fields import declared

ROOT = Path(__file__).parents[2]
SCRIPT = """\
from oneloop import Trainer, TrainingArguments

args = TrainingArguments("out", learning_rate=1e-4, evaluation_strategy="epoch")
args.warmup_steps = 5
trainer = Trainer(args=args)
trainer.train()
trainer.evaluate()
"""
SERVER = Path(sys.executable).parent / "pyright-langserver"


class Server:
    """A language server over its standard streams."""

    def __init__(self, folder):
        command = [str(SERVER) if SERVER.is_file() else shutil.which("pyright-langserver"), "--stdio"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder)
        self.number = 0
        self.ask("initialize", {"processId": None, "rootUri": folder.as_uri(), "capabilities": {}})
        self.tell("initialized", {})

    def tell(self, method, parameters, **more):
        body = json.dumps({"jsonrpc": "2.0", "method": method, "params": parameters, **more}).encode()
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self.process.stdin.flush()

    def ask(self, method, parameters):
        self.number += 1
        self.tell(method, parameters, id=self.number)
        while True:
            message = self._read()
            if message.get("id") == self.number and "method" not in message:
                return message.get("result")
            if "id" in message:  # a question to the editor, such as for its configuration
                answer = [None] * len(message["params"].get("items", [])) if message.get("params") else None
                body = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": answer}).encode()
                self.process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
                self.process.stdin.flush()

    def _read(self):
        length = 0
        while line := self.process.stdout.readline().strip():
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        return json.loads(self.process.stdout.read(length))

    def close(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """What hovering over a word of the script shows."""
    if not SERVER.is_file() and shutil.which("pyright-langserver") is None:
        pytest.skip("pyright's language server is not installed")
    folder = tmp_path_factory.mktemp("editor")
    (folder / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [str(ROOT)]}))
    path = folder / "script.py"
    path.write_text(SCRIPT)
    server = Server(folder)
    document = {"uri": path.as_uri(), "languageId": "python", "version": 1, "text": SCRIPT}
    server.tell("textDocument/didOpen", {"textDocument": document})

    def hover(line, word):
        position = {"line": line, "character": SCRIPT.splitlines()[line].index(word) + 1}
        result = server.ask("textDocument/hover", {"textDocument": {"uri": path.as_uri()}, "position": position})
        contents = result["contents"]
        return contents["value"] if isinstance(contents, dict) else str(contents)

    yield hover
    server.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "word", "said"),
    [
        (2, "TrainingArguments", "learning_rate: "),
        (3, "warmup_steps", declared(TrainingArguments)["warmup_steps"][1]["help"].split(";")[0]),
        (4, "Trainer", "compute_metrics: A function of an EvalPrediction"),
        (5, "train()", "resume_from_checkpoint: The directory of a checkpoint"),
        (6, "evaluate", "metric_key_prefix: What the names of the metrics begin with"),
    ],
)
def test_hovering_shows_the_description(shown, line, word, said):
    assert said in shown(line, word)
