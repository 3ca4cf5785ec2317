# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""The direction of imports: each room knows itself and those below it, and nothing else of ours."""

import ast
from importlib.util import resolve_name
from pathlib import Path

import pytest

import numpyro_dais

PACKAGE = Path(numpyro_dais.__file__).parent
LARGEST_NUMBER_OF_DOORS = 8  # modules beside the rooms; more than an eyeful, and one searches

# The rooms that a room may import, beside itself.
BELOW = {
    "_util": set(),
    "sampler": {"_util"},
    "model": {"_util", "sampler"},
    "tuning": {"_util", "sampler", "model"},
    "results": {"_util", "sampler", "model"},
    "estimators": {"_util", "sampler", "model", "tuning", "results"},
    "vi": {"_util", "sampler", "model", "tuning", "results", "estimators"},
    "closed_form": set(),
}
DOORS = {"linear_regression": {"closed_form"}}
ANY_OTHER_DOOR = set(BELOW) - {"closed_form"}


def imports(module, source):
    """Returns the full names of all that a module imports, inside functions, too."""
    package = module.rpartition(".")[0]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = resolve_name("." * node.level + (node.module or ""), package)
            yield from (f"{origin}.{alias.name}" for alias in node.names)


def wrong_imports(module, source):
    """Returns the imports of a module that its room, or it as a door, may not have."""
    room = module.split(".")[1]
    allowed = BELOW[room] | {room} if room in BELOW else DOORS.get(room, ANY_OTHER_DOOR)

    def is_wrong(name):
        library, _, inside = name.partition(".")
        if library == "numpyro":
            return room == "sampler"
        return library == "numpyro_dais" and inside.split(".")[0] not in allowed

    return [name for name in imports(module, source) if is_wrong(name)]


def test_rooms_import_only_what_is_below_them():
    paths = {path.relative_to(PACKAGE.parent): path for path in PACKAGE.rglob("*.py")}
    modules = {".".join(key.with_suffix("").parts): path for key, path in paths.items()}
    assert {name.split(".")[1] for name in modules if name.count(".") > 1} == set(BELOW)
    wrong = {name: wrong_imports(name, path.read_text()) for name, path in modules.items()}
    assert {name: names for name, names in wrong.items() if names} == {}


def test_few_modules_are_no_room():
    assert len(list(PACKAGE.glob("*.py"))) <= LARGEST_NUMBER_OF_DOORS


PLANTED = {
    "upwards": ("model.start", "from numpyro_dais.estimators.base import Estimator"),
    "sideways": ("tuning.goal", "from numpyro_dais.results.evidence import Evidence"),
    "sideways, the other way": ("results.gap", "import numpyro_dais.tuning.goal"),
    "inside a function": ("sampler.path", "def f():\n    from numpyro_dais.model import start"),
    "relative": ("sampler.path", "from ..model.start import Start"),
    "a whole room": ("_util.keys", "from numpyro_dais import sampler"),
    "NumPyro in the sampler": ("sampler.reversible.passes", "import numpyro.handlers"),
    "a door": ("tuning.goal", "from numpyro_dais.schedule import linear"),
    "the package": ("vi.davi", "from numpyro_dais import DAIS"),
    "the package as a whole": ("vi.davi", "import numpyro_dais"),
    "the oracle": ("estimators.base", "import numpyro_dais.closed_form.moments"),
    "the oracle, by a door": ("plots", "from numpyro_dais.closed_form import moments"),
    "anything, by the oracle": ("closed_form.moments", "from numpyro_dais._util import keys"),
}


@pytest.mark.parametrize(("module", "source"), PLANTED.values(), ids=PLANTED)
def test_a_wrong_import_is_noticed(module, source):
    assert len(wrong_imports(f"numpyro_dais.{module}", source)) == 1


RIGHT = {
    "downwards": ("vi.davi", "from numpyro_dais._util import keys, weights"),
    "the same room": ("results.evidence", "def f():\n    from .plots import plot_evidence"),
    "NumPyro in another room": ("model.start", "import numpyro\nfrom numpyro import handlers"),
    "a door to the oracle": ("linear_regression", "import numpyro_dais.closed_form.moments"),
    "the front door": ("__init__", "from numpyro_dais.vi.davi import DAVI"),
}


@pytest.mark.parametrize(("module", "source"), RIGHT.values(), ids=RIGHT)
def test_a_right_import_is_not(module, source):
    assert wrong_imports(f"numpyro_dais.{module}", source) == []
