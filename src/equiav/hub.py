"""Checkpoints on the Hugging Face Hub, named hf:owner/name@revision: fetched wherever a checkpoint is, and pushed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from equiav.errors import CheckpointError, EquiAVError

PREFIX = "hf:"
NAME = re.compile(r"hf:(?P<repository>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?")
# Plain data and safetensors: nothing else of a repository is fetched, whatever it holds.
WANTED = ("*.safetensors", "*.json", "*.yaml")
SHOWN = ("README.md", "*.onnx", "*.onnx.data", "*.png")  # pushed beside them for people and other runtimes
UNWANTED = ("state.safetensors", "*/*")  # what only a resumed run needs; anything in folders


def on_hub(path: str | Path) -> bool:
    """Whether a checkpoint is named by its place on the Hub, not by a folder."""
    return str(path).startswith(PREFIX)


def fetch(name: str | Path) -> Path:
    """The folder of a checkpoint on the Hub, downloaded if the local cache does not have it."""
    found = NAME.fullmatch(str(name))
    if not found:
        raise CheckpointError(f"{name}: a checkpoint on the Hub is named hf:owner/name or hf:owner/name@revision")
    hub = _library()
    repository, revision = found["repository"], found["revision"]
    wanted = {"allow_patterns": list(WANTED), "ignore_patterns": list(UNWANTED), "revision": revision}
    try:
        folder = Path(hub.snapshot_download(repository, **wanted))
    except Exception as error:
        reason = _reason(error, repository, revision)
        if isinstance(error, hub.errors.HfHubHTTPError | ValueError):  # the Hub answered, or the name is impossible
            raise CheckpointError(f"{name}: {reason}") from error
        try:  # a connection may also break half-way, where the library does not look into its cache
            folder = Path(hub.snapshot_download(repository, **wanted, local_files_only=True))
        except hub.errors.LocalEntryNotFoundError:
            raise CheckpointError(f"{name}: {reason}") from error
    if not any(folder.glob("*.safetensors")):
        raise CheckpointError(f"{name}: the repository holds no weights as safetensors")
    return folder


def push(folder: Path, name: str, *, private: bool = False) -> str:
    """Uploads a folder that `equiav export` wrote, in one commit; the address of the repository.

    Makes the repository if there is none. The token is the one that `hf auth login` stored, or HF_TOKEN.
    """
    found = NAME.fullmatch(name if name.startswith(PREFIX) else PREFIX + name)
    if not found:
        raise EquiAVError(f"{name}: give owner/name, or owner/name@branch")
    hub = _library()
    repository, revision = found["repository"], found["revision"]
    try:
        api = hub.HfApi()
        url = api.create_repo(repository, private=private, exist_ok=True)
        if revision is not None:
            api.create_branch(repository, branch=revision, exist_ok=True)
        api.upload_folder(
            repo_id=repository,
            folder_path=folder,
            revision=revision,
            allow_patterns=[*WANTED, *SHOWN],
            ignore_patterns=list(UNWANTED),
            commit_message="Upload an equiav checkpoint",
        )
    except Exception as error:
        reached = isinstance(error, hub.errors.HfHubHTTPError | ValueError)
        reason = _reason(error, repository, revision) if reached else "the Hub cannot be reached"
        raise EquiAVError(f"{name}: not uploaded: {reason}") from error
    return str(url)


def _library() -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise EquiAVError("the Hub needs huggingface_hub: pip install 'equiav[hub]'") from error
    return huggingface_hub


def _reason(error: Exception, repository: str, revision: str | None) -> str:
    """One line for whatever the library, its HTTP client or the disk says."""
    from huggingface_hub import errors

    if isinstance(error, errors.RevisionNotFoundError):
        return f"{repository} has no revision {revision!r}"
    if isinstance(error, errors.GatedRepoError):
        return f"{repository} is gated: ask for access on its page, then `hf auth login`"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"no such repository on the Hub, or no right to it (`hf auth login`, or HF_TOKEN): {repository}"
    at = f" --revision {revision}" if revision else ""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    if isinstance(error, errors.HfHubHTTPError | ValueError):
        return f"the Hub's answer: {lines[0]}"
    return f"not in the local cache, and the Hub cannot be reached; once online: hf download {repository}{at}"
