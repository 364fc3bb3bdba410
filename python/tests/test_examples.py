import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("example", sorted((ROOT / "python" / "examples").glob("*.py")), ids=lambda path: path.name)
def test_an_example_runs(example):
    runpy.run_path(str(example), run_name="__main__")


def test_the_code_in_the_readme_runs():
    section = (ROOT / "README.md").read_text().split("\n## From Python\n")[1].split("\n## ")[0]
    code = section.split("```python\n")[1].split("```")[0]
    exec(compile(code, "README.md", "exec"), {})
