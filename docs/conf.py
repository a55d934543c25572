"""The site that ``make docs`` builds from these pages. Offline: the theme's files are its package's own."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE / "_ext")]

from django.conf import settings  # noqa: E402

from gnsq_like import __version__  # noqa: E402

# The reference imports modules that need settings.
settings.configure()

project = "gnsq_like"
author = "gnsq_like contributors"
project_copyright = author
version = release = __version__

extensions = ["sphinx.ext.autodoc", "sphinx.ext.viewcode", "sphinx_copybutton", "sphinx_click"]
extensions += ["descriptions", "from_code", "links"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"gnsq_like {release}"
html_static_path = ["_static"]
html_favicon = "../gnsq_like/admin/web/static/icon.svg"
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
pygments_style = "tango"
pygments_dark_style = "monokai"
highlight_language = "none"
default_role = None
smartquotes = False
# Of a block with commands and what they print, only the commands are copied.
copybutton_prompt_text = "$ "
copybutton_line_continuation_character = "\\"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
maximum_signature_line_length = 80
toc_object_entries_show_parents = "hide"
# Sections of two pages may have the same title; links name their page.
suppress_warnings = ["autosectionlabel.*"]
