"""What a reader reads, and what it leaves out."""

from reveal.sources import Items, Questions, Skips


def read(source: Items | Questions) -> tuple[list, dict[str, int]]:
    skips = Skips(source.strict)
    return list(source.read(skips)), dict(skips.counts)


def items(reader: str, path, leave_out=(), strict: bool = False, **options) -> tuple[list, dict[str, int]]:
    return read(Items(reader, str(path), given(options), list(map(str, leave_out)), strict))


def questions(reader: str, path, leave_out=(), strict: bool = False, **options) -> tuple[list, dict[str, int]]:
    return read(Questions(reader, str(path), given(options), list(map(str, leave_out)), strict))


def given(options: dict) -> dict:
    """Paths as texts, as configs have them."""
    return {name: value if isinstance(value, bool | int | list) else str(value) for name, value in options.items()}
