"""Settings of the documentation site, which `make docs` builds with Sphinx into `.cache/site/`.

The site is made of the Markdown files as a code host shows them: `docs/_site/pages.py` adds what only the site has.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_site"))

import fencelock

project = "fencelock"
author = "The fencelock authors"
version = release = fencelock.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "pages"]
# The root of the repository is the source folder, so that every link leads where it leads on a code host.
root_doc = "README"
include_patterns = ["*.md", "docs/**"]
exclude_patterns = [".*", "docs/_site", "lab", "requirements", "scripts", "src", "tests"]
source_suffix = {".md": "markdown"}

myst_heading_anchors = 4
myst_enable_extensions = ["tasklist"]
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
default_role = "code"
nitpicky = True
# Shells and consoles with `…`, or with another language in them, are shown as they are.
suppress_warnings = ["misc.highlighting_failure"]
# A type of the standard library or of a private module has no page here; every public name must have one.
nitpick_ignore_regex = [("py:.*", r"(?!fencelock\.(aio\.)?[A-Z]).*")]

html_theme = "furo"
html_title = "fencelock"
html_static_path = ["_site/static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
