"""Small archives of npm, Debian, Python and Qt (`recipes.downloads`)."""

import io
import struct
import tarfile
import zipfile
import zlib


def tar_bytes(files, mode, links=()) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        for name, target in links:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            tar.addfile(info)
    return buffer.getvalue()


def deb_bytes(data: bytes, data_name="data.tar.xz") -> bytes:
    """An `ar` file as deb(5) has it; control's odd length needs a byte of padding."""
    parts = [("debian-binary", b"2.0\n"), ("control.tar.xz", b"odd"), (data_name, data)]
    out = b"!<arch>\n"
    for name, content in parts:
        out += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode()
        out += content + b"\n" * (len(content) % 2)
    return out


def write_deb(folder, package, files, **kinds):
    path = folder / package.pattern.replace("*", "1.0_all")
    path.write_bytes(deb_bytes(tar_bytes({f"./{name}": content for name, content in files.items()}, "w:xz", **kinds)))
    return path


def write_npm(folder, package, files):
    path = folder / package.pattern
    path.write_bytes(tar_bytes(files, "w:gz"))
    return path


def write_wheel(folder, package, files):
    """The name spells the package's dashes as underscores."""
    path = folder / f"{package.name.replace('-', '_')}-{package.version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, content in files.items():
            bundle.writestr(name, content)
    return path


def rcc_bytes(files, version=3, packed=(), flags=0, first_child=None) -> bytes:
    """A Qt resource file. `packed`: files to compress with zlib; `flags`: of the others; `first_child`: of the root."""
    folders = {"": []}
    for path in files:
        parts = path.split("/")
        for depth in range(len(parts)):
            folder, child = "/".join(parts[:depth]), "/".join(parts[: depth + 1])
            if child not in folders.setdefault(folder, []):
                folders[folder].append(child)
    order = [""]
    for path in order:  # grows, level by level: children are adjacent
        order += folders.get(path, [])
    tree, content, names = b"", b"", b""
    for path in order:
        letters = path.rsplit("/", 1)[-1].encode("utf-16-be")
        if path in folders:
            place = order.index(folders[path][0])
            rest = struct.pack(">HII", 2, len(folders[path]), place if path or first_child is None else first_child)
        else:
            rest = struct.pack(">HHHI", 1 if path in packed else flags, 0, 1, len(content))
            stored = files[path]
            if path in packed:
                stored = struct.pack(">I", len(stored)) + zlib.compress(stored)
            content += struct.pack(">I", len(stored)) + stored
        tree += struct.pack(">I", len(names)) + rest + bytes(0 if version == 1 else 8)
        names += struct.pack(">HI", len(letters) // 2, 0) + letters
    begin = 24
    places = (begin + len(content) + len(names), begin, begin + len(content))
    return struct.pack(">4s4II", b"qres", version, *places, 0) + content + names + tree
