"""SVG drawings as pixels, by resvg: the one renderer that is a plain package, without a browser or system libraries.

Fonts of the system are never used, so a drawing looks the same everywhere.
"""

from __future__ import annotations


def render(svg: bytes, width: int) -> bytes:
    """A drawing as a PNG of so many pixels' width. Raises ValueError without the extra `pictures`."""
    try:
        import resvg_py
    except ImportError as error:
        raise ValueError('SVG pictures need the extra `pictures`: pip install -e ".[pictures]"') from error
    return bytes(resvg_py.svg_to_bytes(svg_string=svg.decode("utf-8"), width=width, skip_system_fonts=True))
