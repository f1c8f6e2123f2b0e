"""A hook of MkDocs: pages of the repository outside of docs/ join the site, and links lead where they do there.

The Markdown is written for the repository, where `../film/weights/film-small/README.md` is a file. On the site that
page is `cards/film-small.md`, and a link to a file that is no page leads to the repository.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
CARDS = {"film": ["film-small", "film-small-style"], "reveal": ["countries"]}
CARDS["plugins"] = ["diffusion-small", "canny-small", "mask-small", "scribble-small", "depth-small"]
PAGES = {  # in the repository: on the site
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "benchmarks/README.md": "benchmarks.md",
    "recipes/README.md": "recipes.md",
    **{f"{room}/weights/{name}/README.md": f"cards/{name}.md" for room, names in CARDS.items() for name in names},
}
LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files, config):
    """Adds the pages outside of docs/."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown, page, config, files):
    """Rewrites the relative links of a page."""
    here = page.file.src_uri
    if here == "index.md":
        page.meta["hide"] = ["navigation"]  # of one page
    source = {page: source for source, page in PAGES.items()}.get(here, f"docs/{here}")

    def on_site(match):
        before, link, anchor = match[1], match[2], match[3] or ""
        if re.match(r"[a-z]+:", link):
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
        target = PAGES.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
        if target and files.get_file_from_path(target):
            return f"{before}{posixpath.relpath(target, posixpath.dirname(here) or '.')}{anchor})"
        if not (ROOT / path).exists():
            raise FileNotFoundError(f"{source} links to {link}, and there is no {path}")
        kind = "tree" if (ROOT / path).is_dir() else "blob"
        return f"{before}{config.extra['repository']}/{kind}/main/{path}{anchor})"

    return LINK.sub(on_site, markdown)
