"""The fields of other trainers' TrainingArguments, read off their wheels without importing or installing them.

pip download paddlenlp==2.8.1 paddleformers==1.2.0 mindnlp==0.4.1 --no-deps --dest wheels
python tests/arguments/fields_of.py wheels/*.whl            compares fields.json with the wheels
python tests/arguments/fields_of.py --write wheels/*.whl    brings it up to date
"""

import ast
import json
import sys
import textwrap
import zipfile
from pathlib import Path

LISTS = Path(__file__).parent / "fields.json"
# Distribution and version, as in the wheel's name -> the list's title, and the files with their classes.
KNOWN = {
    "paddlenlp-2.8.1": (
        "PaddleNLP 2.8.1",
        {
            "paddlenlp/trainer/training_args.py": "TrainingArguments",
            "paddlenlp/trainer/training_args_seq2seq.py": "Seq2SeqTrainingArguments",
        },
    ),
    "paddleformers-1.2.0": (
        "PaddleFormers 1.2.0",
        {"paddleformers/trainer/training_args.py": "TrainingArguments"},
    ),
    "mindnlp-0.4.1": (
        "mindnlp 0.4.1",
        {
            "mindnlp/engine/train_args/base.py": "TrainingArguments",
            "mindnlp/engine/train_args/seq2seq.py": "Seq2SeqTrainingArguments",
        },
    ),
}


def fields_in(source, name):
    """The annotated names in the body of a class: what a dataclass takes for its fields."""
    classes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef) and node.name == name]
    if not classes:
        raise LookupError(f"there is no class {name}")
    return [item.target.id for item in classes[0].body if isinstance(item, ast.AnnAssign)]


def fields_of(wheel):
    """(title of the list, sorted names) of a wheel that is known here."""
    title, files = KNOWN["-".join(Path(wheel).name.split("-")[:2])]
    with zipfile.ZipFile(wheel) as archive:
        names = {field for path, name in files.items() for field in fields_in(archive.read(path), name)}
    return title, sorted(names)


def written(lists):
    """The lists as fields.json has them: many names in a line."""
    parts = []
    for title, names in lists.items():
        body = textwrap.fill(", ".join(json.dumps(name) for name in names), 116)
        parts.append(f"  {json.dumps(title)}: [\n{textwrap.indent(body, '    ')}\n  ]")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main(given):
    lists = json.loads(LISTS.read_text())
    wheels = [name for name in given if name != "--write"]
    found = dict(map(fields_of, wheels))
    for title, names in found.items():
        gone, new = sorted(set(lists.get(title, [])) - set(names)), sorted(set(names) - set(lists.get(title, [])))
        print(f"{title}: {len(names)} fields", *(f"  not there: {name}" for name in gone), sep="\n")
        print(*(f"  missing in fields.json: {name}\n" for name in new), sep="", end="")
    if "--write" in given:
        LISTS.write_text(written(lists | found))
        return 0
    return int(any(lists.get(title) != names for title, names in found.items()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
