"""`analysis` works on a laptop: it loads neither torch nor Ray, whatever part of it is imported."""

import pkgutil
import subprocess
import sys

import analysis


def test_no_module_loads_torch_or_ray():
    modules = [
        info.name for info in pkgutil.iter_modules(analysis.__path__, "analysis.") if info.name != "analysis.__main__"
    ]
    assert len(modules) > 15
    code = (
        f"import importlib, sys\nfor name in {modules!r}:\n    importlib.import_module(name)\n"
        "print(sorted(name for name in sys.modules if name.split('.')[0] in ('torch', 'ray')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
