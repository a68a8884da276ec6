"""Files that are replaced whole, or are as they were: what cannot be written is the user's to mend, in one line."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from pearl_pp.errors import UserError


def encoded(text: str) -> bytes:
    """UTF-8. A half of a surrogate pair, as names of files hold for a byte that is none, becomes its escape in JSON."""
    return text.encode("utf-8", "backslashreplace")


def write_whole(option: str, path: str | Path, text: str, *, durable: bool = False) -> None:
    """Replace the file at `path`; see `replacing`."""
    with replacing(option, path, durable=durable) as file:
        file.write(encoded(text))


@contextlib.contextmanager
def replacing(option: str, path: str | Path, *, durable: bool = False) -> Iterator[IO[bytes]]:
    """A new file that takes the place of the one at `path` when all is written, or leaves no trace.

    A reader finds the old content or the new, never half of it.

    Args:
        option: that names the file, for errors.
        durable: it survives a crash of the machine; slower.

    Raises:
        UserError: it cannot be written.
    """
    require_file(option, path)
    with writing(option, path):
        target = Path(os.path.realpath(path))
        handle, scratch = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:_KEPT_OF_NAME]}.", suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                yield file
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            os.chmod(scratch, _mode(target))
            os.replace(scratch, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(scratch)
            raise


def require_file(option: str, path: str | Path) -> None:
    """Raise UserError for what is there and is no file: it would be replaced, device or not."""
    if os.path.isdir(path):
        raise UserError(option, path, "is a folder")
    if os.path.exists(path) and not os.path.isfile(path):
        raise UserError(option, path, "is not a regular file")


@contextlib.contextmanager
def writing(option: str, path: object) -> Iterator[None]:
    """What happens inside is about writing `path`, which `option` names."""
    try:
        yield
    except OSError as error:
        raise UserError(option, path, f"cannot be written: {error.strerror or error}") from None


_KEPT_OF_NAME = 60  # characters, of four bytes each at most: the name of a scratch file, too, may have 255


def _mode(target: Path) -> int:
    """The permission bits a plain open() would give; mkstemp's are for its owner alone."""
    if target.exists():
        return target.stat().st_mode & 0o777
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask
