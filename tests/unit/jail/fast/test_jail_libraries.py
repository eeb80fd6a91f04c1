"""How a fork-server's libraries are mapped, each case in an interpreter of its own."""

from __future__ import annotations

import os

from conftest import Require
from kit.jail.own_interpreter import printed

_SHARED = """
    import _bz2, _decimal, _json, ctypes, hashlib, os, sys
    from cellwall.jail.fast import huge_pages, libraries

    def of_files(*permissions):
        return [each for each in huge_pages.mappings()
                if each.path.startswith("/") and each.permissions in permissions]

    def content(mapping):
        return ctypes.string_at(mapping.start, mapping.end - mapping.start)

    def shared():
        return [each for each in huge_pages.mappings() if "memfd:relocated" in each.path]

    def data_of(module):
        "What can be written of an extension module's file, before it is replaced."
        return next(each for each in of_files("rw-p") if each.path == module.__file__)

    def works():
        return str(_decimal.Decimal("1.10") + 1), _json.encode_basestring("a"), _bz2.BZ2Compressor()

"""


def _run(code: str) -> str:
    return printed(_SHARED, code)


def test_a_library_is_read_and_run_in_one_mapping() -> None:
    """Of an extension module three are left, of five; before, its constants were two of them."""
    out = _run("""
        def kinds():
            return [each.permissions for each in huge_pages.mappings()
                    if each.path == _decimal.__file__]
        before = kinds()
        spared = libraries.join_constants()
        print(before, kinds(), spared >= 2 * 3)
        works()
    """)
    assert out == "['r--p', 'r-xp', 'r--p', 'r--p', 'rw-p'] ['r-xp', 'r--p', 'rw-p'] True\n"


def test_nothing_that_can_be_run_can_be_written() -> None:
    """Constants become executable, and no byte of them or of code changes."""
    out = _run("""
        code = {each.start: content(each) for each in of_files("r-xp")}
        libraries.share_relocated()
        libraries.join_constants()
        joined = of_files("r-xp")
        print([each for each in huge_pages.mappings() if {"w", "x"} <= set(each.permissions)])
        for start, text in code.items():
            home = next(each for each in joined if each.start <= start < each.end)
            assert content(home)[start - home.start:][:len(text)] == text
    """)
    assert out == "[]\n"


def test_what_the_loader_made_read_only_stays_the_same_and_is_nobodys_own() -> None:
    """To the byte; and no page of it is this process's alone, of which there were some before."""
    out = _run("""
        def own():
            with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
                return [each for each in of_files("r--p")
                        if libraries._has_own_pages(pagemap.fileno(), each)]
        before = own()
        texts = [content(each) for each in before]
        found = libraries.share_relocated()
        texts_now = [ctypes.string_at(each.start, each.end - each.start) for each in before]
        print(len(before) > 5, found >= len(before), own(), texts == texts_now)
        works()
    """)
    assert out == "True True [] True\n"


def test_data_of_extensions_is_written_to_by_each_for_itself() -> None:
    """A fork's write is its own: neither its parent nor who is forked afterwards sees it."""
    out = _run("""
        data = data_of(_decimal)
        kept = content(data)
        libraries.share_relocated()
        place = next(each for each in shared() if each.start == data.start)
        print(place.permissions, content(place) == kept)
        if not os.fork():
            ctypes.memset(data.start, 0x5a, 64)
            os._exit(ctypes.string_at(data.start, 64) == b"Z" * 64)
        print(os.waitstatus_to_exitcode(os.wait()[1]), content(place) == kept)
        if not os.fork():
            os._exit(content(place) == kept)
        print(os.waitstatus_to_exitcode(os.wait()[1]))
        works()
    """)
    assert out == "rw-p True\n1 True\n1\n"


def test_what_changes_meanwhile_is_left_where_it_is() -> None:
    """The interpreter's data, libc's and that of what calls them are their files' still."""
    out = _run("""
        import _ctypes
        ours = [each for each in of_files("rw-p")
                if os.path.realpath(each.path) == os.path.realpath(sys.executable)
                or "libc.so" in each.path or each.path == _ctypes.__file__]
        found = libraries.share_relocated()
        print(len(ours) >= 3, found > 0, all(each in huge_pages.mappings() for each in ours))
    """)
    assert out == "True True True\n"


def test_nobody_can_write_to_the_file(require: Require) -> None:
    """Not even root, who finds it through the mappings of a process; nor is it left open."""
    require("root", os.geteuid() == 0, "run the tests as root")
    out = _run("""
        libraries.share_relocated()
        print([name for name in os.listdir("/proc/self/fd") if int(name) > 3])
        place = shared()[0]
        fd = os.open(f"/proc/self/map_files/{place.start:x}-{place.end:x}", os.O_RDWR)
        for write in (lambda: os.pwrite(fd, b"x", 0), lambda: os.ftruncate(fd, 0)):
            try:
                write()
            except PermissionError:
                print("refused")
    """)
    assert out == "[]\nrefused\nrefused\n"


def test_the_second_time_there_is_nothing_left_to_do() -> None:
    """What was replaced is not replaced again; forks of forks would never be done."""
    out = _run("""
        libraries.share_relocated(), libraries.join_constants()
        print(libraries.share_relocated(), libraries.join_constants())
        import _lzma
        print(libraries.share_relocated() > 0, libraries.join_constants() > 0)
    """)
    assert out == "0 0\nTrue True\n"


def test_a_mapping_that_is_lost_is_told() -> None:
    """Going on would be a crash at some later time."""
    out = _run("""
        real = libraries.LIBC.mmap
        class Refusing:
            pwrite = libraries.LIBC.pwrite
            def mmap(self, *arguments):
                ctypes.set_errno(12)
                return -1
        libraries.LIBC = Refusing()
        try:
            libraries.share_relocated()
        except OSError as error:
            print(error.errno, "mmap over /" in error.step)
    """)
    assert out == "12 True\n"


def test_memory_of_a_library_that_no_file_holds_goes_with_its_data() -> None:
    """As far as the loader says that the library reaches: what lies above may be the heap."""
    out = _run("""
        import numpy
        from matplotlib import _path  # not all of it is in its file
        class Segment(ctypes.Structure):
            _fields_ = [("kind", ctypes.c_uint32), ("flags", ctypes.c_uint32)] + [
                (name, ctypes.c_uint64)
                for name in ("offset", "address", "physical", "in_file", "size", "align")]
        class Library(ctypes.Structure):
            _fields_ = [("bias", ctypes.c_uint64), ("name", ctypes.c_char_p),
                        ("segments", ctypes.POINTER(Segment)), ("count", ctypes.c_uint16)]
        ends = {}
        @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Library), ctypes.c_size_t, ctypes.c_void_p)
        def note(library, size, nothing):
            found = library.contents
            last = max((each.address + each.size for each in found.segments[:found.count]
                        if each.kind == 1 and each.flags & 2), default=0)
            ends[os.path.realpath(found.name.decode())] = -(-(found.bias + last) // 4096) * 4096
            return 0
        libraries.LIBC.dl_iterate_phdr(note, None)
        paths = [each.path for each in of_files("rw-p")]
        meant = {each.path for each in libraries._written() if each.permissions == "rw-p"}
        data = {each.path: each for each in of_files("rw-p")
                if each.path in meant and paths.count(each.path) == 1}
        longer = [path for path, each in data.items() if ends[path] > each.end]
        texts = {path: ctypes.string_at(each.start, ends[path] - each.start)
                 for path, each in data.items()}
        followed = [path for path, each in data.items() if any(
            other.start == each.end and other.permissions == "rw-p" and path not in longer
            for other in huge_pages.mappings())]
        libraries.share_relocated()
        now = {each.start: each for each in shared()}
        print(len(longer) > 0, len(followed) > 0)
        print(all(now[each.start].end == ends[path] for path, each in data.items()))
        print(all(content(now[each.start]) == texts[path] for path, each in data.items()))
        print(numpy.linalg.inv(numpy.eye(3)).sum())
        works()
    """)
    assert out == "True True\nTrue\nTrue\n3.0\n"


def test_without_pagemap_all_stays_as_it_is() -> None:
    """Some kernels have none: that costs speed, and no start."""
    out = _run("""
        before = of_files("r--p", "rw-p")
        libraries._PAGEMAP = "/proc/self/no-pagemap"
        print(libraries.share_relocated(), of_files("r--p", "rw-p") == before)
    """)
    assert out == "0 True\n"
