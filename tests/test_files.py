"""A file has its name once it is whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from keepwarm.files import replacing, write_whole


def test_what_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_whole(out, "old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(out, "half \udc80")
    assert [each.name for each in tmp_path.iterdir()] == ["out"]
    assert out.read_text() == "old"
    write_whole(out, "new")
    assert out.read_text() == "new"
    with pytest.raises(FileNotFoundError):
        write_whole(tmp_path / "none" / "out", "")


def test_a_private_file_is_its_owners_and_others_as_usual(tmp_path: Path) -> None:
    usual, private, plain = tmp_path / "usual", tmp_path / "private", tmp_path / "plain"
    plain.touch()
    with replacing(usual) as part:
        part.write_text("")
    with replacing(private, private=True) as part:
        assert part.stat().st_mode & 0o077 == 0  # before anything is in it
        part.write_text("")
    assert private.stat().st_mode & 0o777 == 0o600
    assert usual.stat().st_mode == plain.stat().st_mode


def test_a_pipe_is_written_as_it_is(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_whole(pipe, "text")
    assert os.read(reader, 16) == b"text"
    os.close(reader)
    assert pipe.is_fifo()
