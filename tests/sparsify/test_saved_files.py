"""Files of tensors, such as those of transformers, hold the formats of sparse weights, and no loader drops a sparse weight."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from loading_cases import perceptron, sparse
from test_load_patterns import FORMATS, sparsifier
from torch.distributed import checkpoint

import numscorch as ns
from numscorch.sparsify import SparsityPlan, load_patterns, magnitude, sparsify_model

pytestmark = pytest.mark.usefixtures("interpreted")


def named_as_dense(model: Any, state: dict[str, Any]) -> list[str]:
    """Load a state by names, as ``from_pretrained`` of transformers does; return the names that do not fit their parameters.

    Unknown names are left out, and missing parameters keep their initial values, without an error.
    """
    known = model.state_dict()
    misfits = [name for name, array in state.items() if name in known and array.shape != known[name].shape]
    with torch.no_grad():
        for name in state.keys() & known.keys() - set(misfits):
            known[name].copy_(state[name])
    return misfits


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("given", ["dense", "sparse"])
def test_a_file_has_the_formats(format: str, given: str, tmp_path: Path) -> None:
    files = pytest.importorskip("safetensors.torch", reason="its files are tested where it is installed")
    source = sparse(perceptron(1), sparsifier(format), format)
    files.save_file(source.state_dict(), tmp_path / "model.safetensors", metadata={"format": "pt"})
    state = files.load_file(tmp_path / "model.safetensors")
    target = perceptron(2) if given == "dense" else sparse(perceptron(2), magnitude(0.7))
    target = load_patterns(target, state)
    assert target.load_state_dict(state) == ([], [])
    for at in (0, 2):
        assert target[at].weight.format == source[at].weight.format
        assert torch.equal(target[at].weight.to_dense(), source[at].weight.to_dense())


def test_dense_weights_refuse_a_sparse_state_by_name() -> None:
    state, target = dict(sparse(perceptron(1)).state_dict()), perceptron(2)
    assert named_as_dense(target, state) == ["0.weight", "2.weight"]
    for assign in (False, True):
        with pytest.raises(RuntimeError, match=r"size mismatch for 0\.weight"):
            target.load_state_dict(state, strict=False, assign=assign)


@pytest.mark.parametrize("strict", [True, False])
def test_sparse_weights_refuse_a_dense_state_anywhere_in_a_model(strict: bool) -> None:
    class Product(torch.nn.Module):
        def __init__(self, weight: Any):
            super().__init__()
            self.weight = ns.nn.Parameter(weight)

    target = torch.nn.Sequential(Product(ns.from_torch(torch.eye(4), ns.CSR)))
    with pytest.raises(RuntimeError, match=r"0\.weight\.values \(is dense in the state, but SparseTensor\(CSR"):
        target.load_state_dict(torch.nn.Sequential(Product(torch.eye(4))).state_dict(), strict=strict)
    assert target.load_state_dict(dict(target.state_dict())) == ([], [])


def test_a_state_without_entries_of_formats_is_loaded() -> None:
    source, target = sparse(perceptron(1)), sparse(perceptron(1))
    state = source.state_dict()
    for name in ("0.weight", "2.weight"):
        del state[name], state[f"{name}._extra_state"]
    torch.nn.init.zeros_(target[0].weight.values)
    assert load_patterns(target, state).load_state_dict(state) == ([], [])
    assert torch.equal(target[0].weight.values, source[0].weight.values)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_distributed_checkpoints_have_the_formats(tmp_path: Path) -> None:
    source, target = sparse(perceptron(1)), sparse(perceptron(1))
    checkpoint.save({"model": source}, checkpoint_id=tmp_path)
    torch.nn.init.zeros_(target[0].weight.values)
    checkpoint.load({"model": target}, checkpoint_id=tmp_path)
    assert torch.equal(target[0].weight.values, source[0].weight.values)


def test_a_root_parameter_has_no_entry_without_a_name() -> None:
    weight = ns.nn.Parameter(ns.from_torch(torch.eye(3), ns.CSR))
    assert "" not in weight.state_dict()
    assert weight.load_state_dict(weight.state_dict()) == ([], [])


class TestTransformers:
    def model(self) -> Any:
        transformers = pytest.importorskip("transformers", reason="its models are tested where it is installed")
        sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48, "vocab_size": 50}
        return transformers.BertModel(transformers.BertConfig(**sizes, max_position_embeddings=16)).eval()

    def test_a_saved_model_is_never_loaded_with_initial_values(self, tmp_path: Path) -> None:
        model = sparsify_model(self.model(), SparsityPlan().weight("encoder.*.weight", magnitude(0.8)), report=None)
        model.save_pretrained(tmp_path)
        with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
            type(model).from_pretrained(tmp_path)
        state = pytest.importorskip("safetensors.torch").load_file(tmp_path / "model.safetensors")
        loaded = load_patterns(self.model(), state)
        assert loaded.load_state_dict(state) == ([], [])
        ids = torch.arange(8)[None]
        assert torch.equal(loaded(ids).last_hidden_state, model(ids).last_hidden_state)

    def test_a_trainer_resumes_only_into_the_same_pattern(self, tmp_path: Path) -> None:
        transformers = pytest.importorskip("transformers", reason="its trainer is tested where it is installed")
        pytest.importorskip("accelerate", reason="the trainer of transformers needs it")
        data = [{"input_ids": torch.arange(8), "labels": torch.tensor(0)}] * 4
        config = self.model().config

        def classifier(seed: int, is_sparse: bool) -> Any:
            torch.manual_seed(seed)
            model, plan = transformers.BertForSequenceClassification(config), SparsityPlan().weight("bert.encoder.*.weight", magnitude(0.8))
            return sparsify_model(model, plan, report=None) if is_sparse else model

        def train(model: Any, steps: int, **options: Any) -> None:
            arguments = transformers.TrainingArguments(str(tmp_path), max_steps=steps, save_steps=1, report_to=[], use_cpu=True)
            transformers.Trainer(model, arguments, train_dataset=data).train(**options)

        model = classifier(0, True)
        train(model, 1)
        for other, message in ((classifier(1, False), "size mismatch for bert"), (classifier(1, True), "load_patterns")):
            with pytest.raises(RuntimeError, match=message):
                train(other, 2, resume_from_checkpoint=True)
        train(model, 2, resume_from_checkpoint=True)
