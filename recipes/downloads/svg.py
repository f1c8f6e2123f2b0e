"""SVG to PNG by resvg, which needs neither a browser nor system libraries. System fonts are not used."""


def render(svg: bytes, width: int) -> bytes:
    """A PNG of `width` pixels. Raises ValueError without the extra `pictures`."""
    try:
        import resvg_py
    except ImportError as error:
        raise ValueError('SVG pictures need the extra `pictures`: pip install -e ".[pictures]"') from error
    return bytes(resvg_py.svg_to_bytes(svg_string=svg.decode("utf-8"), width=width, skip_system_fonts=True))
