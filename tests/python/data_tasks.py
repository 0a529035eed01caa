"""Task files for the tests, written to a folder for --include_path."""

from __future__ import annotations

from pathlib import Path

PYTHON = """
import datasets

def texts(**_):
    pages = ["some text number %d, " % i + "lorem ipsum dolor " * (7 * i) for i in range(9)]
    return {"test": datasets.Dataset.from_list([{"page": page} for page in pages])}

def questions(**_):
    rows = [{"question": "Question %d: is it so?\\nAnswer:" % i, "choices": ["yes", "no, never"], "answer": i % 2}
            for i in range(20)]
    return {"test": datasets.Dataset.from_list(rows)}

def page(doc):
    return doc["page"]
"""

HEAD = "test_split: test\nmetadata:\n  version: 1.0\n"
YAML = {
    "toy_rolling": HEAD
    + """custom_dataset: !function toy_tasks.texts
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: !function toy_tasks.page
""",
    "toy_choices": HEAD
    + """custom_dataset: !function toy_tasks.questions
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: answer
""",
    "toy_generate": HEAD
    + """custom_dataset: !function toy_tasks.questions
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: answer
metric_list:
  - metric: exact_match
""",
}


def write(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "toy_tasks.py").write_text(PYTHON)
    for name, text in YAML.items():
        (folder / f"{name}.yaml").write_text(f"task: {name}\n{text}")
    return folder
