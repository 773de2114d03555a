"""Files of an archive that lie behind a URI, such as `s3://bucket/ledger`: sent, read back and fetched by pyarrow.

A folder of this machine stands for such an archive. It has the manifest of each export, and other files only while somebody
needs them: `at_hand` fetches one that is missing. The file `REMOTE` in it says the URI. Source: ADR 073.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import re
import secrets
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from typing import IO, Any, Final

from jobledger.audit.errors import ArchiveAbsentError
from jobledger.audit.export.manifest import MANIFEST
from jobledger.ledger.files import make_folder, open_file, open_to_write, rename_over, sync_file
from jobledger.ledger.model.errors import ConfigurationError

#: In the folder that stands for an archive: the archive's URI, and a word that no other such folder has.
REMOTE: Final = ".jobledger-remote"
#: In the same folder: files that are being fetched.
DRAFTS: Final = ".fetched"
_CHUNK_BYTES: Final = 8 << 20  #: each is a request of its own
#: A file system that makes no folder by itself when a file is written into it.
_MAKES_FOLDERS: Final = "hdfs"
_S3: Final = "s3"
#: How long S3 may say nothing before pyarrow asks again, which it does twice: by default a silent bucket takes 99 s.
_SILENCE_S: Final = 5.0
#: What an export is called there. Whatever has another name is not ours, and nothing of it is read.
_NAME: Final = re.compile(r"\d{20}-\d{20}(\.[0-9a-f]+)?", flags=re.ASCII)


class Remote:
    """The place behind a URI. Each call waits for the network: call it in a thread.

    Raises: ArchiveAbsentError where the place refuses or does not answer, for each call.
    """

    def __init__(self, uri: str) -> None:
        """Open the place; nothing is asked yet. Raises: ConfigurationError without pyarrow, ArchiveAbsentError."""
        self.uri = uri.rstrip("/")
        self.name = self.uri.partition("?")[0]  #: for people: the rest says how it is reached
        try:
            import pyarrow as pa  # noqa: PLC0415 - an extra, slow to load
            from pyarrow import fs  # noqa: PLC0415
        except ImportError as error:
            raise ConfigurationError(
                f"{uri} is read and written by pyarrow, which is not installed: pip install 'jobledger[parquet]'"
            ) from error
        self._arrow: Any = fs
        base: Any = pa
        self._errors: tuple[type[Exception], ...] = (base.ArrowException, OSError, ValueError)
        with self._asked():
            found: tuple[Any, str] = self._arrow.FileSystem.from_uri(self.uri)
            self._files = _patient(found[0], self.uri)
        self._root = found[1].rstrip("/")
        if (
            self._files.type_name == "abfs"
        ):  # of an address without a container in front pyarrow leaves a slash
            self._root = self._root.lstrip("/")

    @contextlib.contextmanager
    def _asked(self) -> Generator[None, None, None]:
        """Tell what pyarrow raises as one error; FileNotFoundError is left alone."""
        try:
            yield
        except FileNotFoundError:
            raise
        except self._errors as error:
            reason = " ".join(str(error).split())
            raise ArchiveAbsentError(
                f"{self.name} cannot be used: {reason}; look at its address, its credentials and the network"
            ) from error

    def folders(self) -> list[str]:
        """Return the names of the exports in it, and of what is left of sending some. No such place: none."""
        with self._asked():
            selector = self._arrow.FileSelector(self._root, allow_not_found=True)
            found: list[Any] = self._files.get_file_info(selector)
        is_folder = self._arrow.FileType.Directory
        return sorted(
            each.base_name for each in found if each.type == is_folder and _NAME.fullmatch(each.base_name)
        )

    def files(self, name: str) -> list[str]:
        """Return the names of the files of an export, as they are inside it."""
        with self._asked():
            selector = self._arrow.FileSelector(f"{self._root}/{name}", recursive=True, allow_not_found=True)
            found: list[Any] = self._files.get_file_info(selector)
        is_file = self._arrow.FileType.File
        return sorted(each.path.rpartition(f"/{name}/")[2] for each in found if each.type == is_file)

    def present(self, names: Sequence[str]) -> list[str]:
        """Return which of these files are there."""
        with self._asked():
            paths = [f"{self._root}/{name}" for name in names]
            found: list[Any] = self._files.get_file_info(paths) if paths else []
        is_file = self._arrow.FileType.File
        return [name for name, each in zip(names, found, strict=True) if each.type == is_file]

    def send(self, path: Path, name: str, sha256: str) -> None:
        """Keep a file under a name: when this returns, its bytes were read back from there.

        Raises: ArchiveAbsentError also where other bytes came back; OSError for the file itself.
        """
        if self.sha256(name) == sha256:
            return
        with open_file(path) as file, self._asked(), self._written(name) as out:
            while chunk := file.read(_CHUNK_BYTES):
                out.write(chunk)
        if self.sha256(name) != sha256:
            raise ArchiveAbsentError(f"{self.name}/{name} came back with other bytes: nothing is moved")

    @contextlib.contextmanager
    def _written(self, name: str) -> Generator[Any, None, None]:
        path = f"{self._root}/{name}"
        if self._files.type_name == _MAKES_FOLDERS:
            self._files.create_dir(path.rpartition("/")[0], recursive=True)
        out: Any = self._files.open_output_stream(path)
        with out:
            yield out

    def sha256(self, name: str) -> str:
        """Return the sha256 of a file's bytes, "" where there is none."""
        total = hashlib.sha256()
        try:
            for chunk in self.read(name):
                total.update(chunk)
        except FileNotFoundError:
            return ""
        return total.hexdigest()

    def read(self, name: str) -> Generator[bytes, None, None]:
        """Yield the bytes of a file. Raises: FileNotFoundError."""
        with self._asked():
            file: Any = self._files.open_input_stream(f"{self._root}/{name}")
            with file:
                while chunk := bytes(file.read(_CHUNK_BYTES)):
                    yield chunk

    def fetch(self, name: str, path: Path, drafts: Path) -> None:
        """Write a file to `path`, as a whole or not at all; `drafts` is a folder of the same disk.

        Raises: FileNotFoundError, OSError.
        """
        make_folder(drafts)
        make_folder(path.parent)
        draft = drafts / secrets.token_hex(8)
        try:
            with open_to_write(draft, "xb") as file:
                _write(file, self.read(name))
            rename_over(draft, path)
        finally:  # after Ctrl-C, too
            draft.unlink(missing_ok=True)

    def remove(self, names: Iterable[str]) -> None:
        """Remove files; one that is not there is passed over."""
        for name in names:
            with contextlib.suppress(FileNotFoundError), self._asked():
                self._files.delete_file(f"{self._root}/{name}")


def _patient(files: Any, uri: str) -> Any:
    """Return a file system with limits to how long it waits for S3, which no URI can name; any other one as it is."""
    if files.type_name != _S3:
        return files
    make, (settings,) = files.__reduce__()  # as for another process: with all that the URI says
    given = {each.partition("=")[0] for each in uri.partition("?")[2].split("&") if each}
    if not given <= settings.keys():  # such as `tls_verify_certificates`: pyarrow cannot hand that on
        return files
    return make({**settings, "connect_timeout": _SILENCE_S, "request_timeout": _SILENCE_S})


def _write(file: IO[bytes], chunks: Iterable[bytes]) -> None:
    for chunk in chunks:
        file.write(chunk)
    sync_file(file)


@functools.lru_cache(maxsize=8)
def opened(uri: str) -> Remote:
    """Return the place behind a URI, the same one each time. Raises: as `Remote`."""
    return Remote(uri)


def remote_of(folder: Path) -> Remote | None:
    """Return the place that a folder stands for; None where it is an archive itself. Raises: as `Remote`; OSError."""
    try:
        with open_file(folder / REMOTE) as file:
            return opened(file.readline().decode().strip())
    except (FileNotFoundError, NotADirectoryError):
        return None


def at_hand(path: Path) -> None:
    """Fetch a file of an export that lies elsewhere; does nothing for one that is here, or is missing there as well.

    Raises: ArchiveAbsentError, also where this machine has no room for it; OSError.
    """
    if path.exists():
        return
    for folder in path.parents[1:3]:  # a file of an export lies in it, or in its folder of large values
        remote = remote_of(folder)
        if remote is not None:
            export, *inside = path.relative_to(folder).parts
            if inside != [MANIFEST]:
                name = "/".join((export, *inside))
                _fetch(remote, name, path, folder)
            return


def _fetch(remote: Remote, name: str, path: Path, folder: Path) -> None:
    """Fetch a file that may be missing there. Raises: ArchiveAbsentError: what keeps it away says nothing of the file."""
    try:
        remote.fetch(name, path, folder / DRAFTS)
    except FileNotFoundError:
        return
    except OSError as error:
        raise ArchiveAbsentError(
            f"{remote.name}/{name} cannot be fetched into {folder}: {error.strerror or error}"
        ) from error
