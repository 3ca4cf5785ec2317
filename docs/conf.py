# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Sphinx: ``pip install ".[docs]" && sphinx-build -W docs docs/_build`` builds the site."""

from pathlib import Path

import jax
from matplotlib import pyplot as plt
from matplotlib.artist import Artist
from sphinx_gallery.scrapers import figure_rst
from sphinx_gallery.sorting import FileNameSortKey

import numpyro_dais


def reset_precision(gallery_conf: dict, page: str) -> None:
    """Back to float32 and an empty cache of programs, whatever the page before has set."""
    jax.config.update("jax_enable_x64", False)
    jax.clear_caches()


class OwnFigures:
    """Shows pictures of a page that are not pyplot's, such as those of ``evidence.plot()``, once."""

    def __repr__(self) -> str:
        return "own figures"

    def __call__(self, block: tuple, block_vars: dict, gallery_conf: dict) -> str:
        for number in plt.get_fignums():  # those are shown by sphinx-gallery itself
            plt.figure(number).set_label(SHOWN)
        values = block_vars["example_globals"].values()
        figures = {value.get_figure() for value in values if isinstance(value, Artist)}
        paths = []
        for figure in figures - {None}:
            if figure.get_label() != SHOWN:
                paths.append(next(block_vars["image_path_iterator"]))
                figure.savefig(paths[-1], dpi=120)
                figure.set_label(SHOWN)
        return figure_rst(paths, gallery_conf["src_dir"])


SHOWN = "shown on the page"

project = "numpyro_dais"
author = "the numpyro_dais contributors"
copyright = author
version = release = numpyro_dais.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx.ext.mathjax",
    "sphinx-mathjax-offline",  # equations are drawn without a script from another host
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "sphinxcontrib.bibtex",
]
exclude_patterns = ["_build", "Thumbs.db", ".DS_Store", "gallery/*.ipynb", "gallery/*.py"]
nitpicky = True
nitpick_ignore_regex = [
    # Types of annotations, and what has no page of its own: rooms of the package, and other libraries.
    ("py:.*", r"(numpyro|jax|numpy|np|jnp|scipy|optax|flax|matplotlib|tqdm|typing)(\..*)?"),
    ("py:(class|obj|data|attr)", r".*"),
    (
        "py:(mod|func|meth|exc)",
        r"(numpyro_dais\.(_util|sampler|model|tuning|results|estimators|vi)\.).*",
    ),
]
suppress_warnings = ["config.cache"]  # functions in the configuration of the gallery

myst_enable_extensions = [
    "amsmath",
    "attrs_inline",
    "colon_fence",
    "attrs_block",
    "deflist",
    "dollarmath",
]
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_default_options = {"members": True, "inherited-members": "tuple"}

bibtex_bibfiles = ["references.bib"]
intersphinx_mapping = {}

EXAMPLES = Path(__file__).parents[1] / "examples"
sphinx_gallery_conf = {
    "examples_dirs": str(EXAMPLES / "gallery"),
    "gallery_dirs": "gallery",
    "filename_pattern": r"plot_",
    "ignore_pattern": r"train_",
    "within_subsection_order": FileNameSortKey,
    "abort_on_example_error": True,
    "remove_config_comments": True,
    "min_reported_time": 1,
    "download_all_examples": False,
    "image_scrapers": (OwnFigures(), "matplotlib"),
    "matplotlib_animations": False,
    "reset_modules": ("matplotlib", reset_precision),
    "show_memory": False,
    "show_signature": False,
    "capture_repr": (),
}

html_theme = "furo"
html_title = "numpyro_dais"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b62a4", "color-brand-content": "#0b62a4"},
    "dark_css_variables": {"color-brand-primary": "#6cb6ee", "color-brand-content": "#6cb6ee"},
    "top_of_page_buttons": [],
}
linkcheck_ignore = [r"https?://(localhost|127\.).*"]
linkcheck_timeout = 30
