"""The notebook runs from top to bottom on the built-in sample, and is kept without outputs."""

from pathlib import Path

import nbclient
import nbformat

import analysis

NOTEBOOK = Path(analysis.__file__).parent / "notebooks" / "scaling_law.ipynb"


def test_notebook_runs():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert all(not cell.outputs and cell.execution_count is None for cell in notebook.cells if cell.cell_type == "code")
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    text = "".join(
        output.get("text", "") for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs
    )
    assert "CONVERGED" in text and "depth " in text
    figures = [
        o for c in notebook.cells if c.cell_type == "code" for o in c.outputs if "image/png" in o.get("data", {})
    ]
    assert len(figures) == 3
