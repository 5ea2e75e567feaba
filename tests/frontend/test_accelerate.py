"""accelerate and transformers' Trainer: losses of eager, by the name of the backend and by a model compiled in
place."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ark_torch.accelerate
from ark_torch.records import recording
from tests.conftest import has_extension

accelerate = pytest.importorskip("accelerate")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.skipif(not has_extension(), reason="the extension is not built")

STEPS, ROWS = 4, 4
BY_NAME = dict(torch_compile=True, torch_compile_backend="ark")


@pytest.fixture(autouse=True)
def registered():
    """The state of accelerate is one for the process, the name of the backend among it."""
    ark_torch.accelerate.register()
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    yield
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


def check_ran(records) -> None:
    """A forward and a backward graph, all of them native."""
    assert {r.kind for r in records} == {"forward", "backward"}
    causes = {cause for r in records for cause in (*r.fallbacks, *r.internal_errors)}
    assert not causes


def llama():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=128,
        pad_token_id=0,
    )
    return transformers.LlamaForCausalLM(config)


def trained(folder, model, **arguments):
    """The Trainer after a few steps, with its losses and its model."""
    tokens = torch.randint(3, 128, (STEPS * ROWS, 16), generator=torch.Generator().manual_seed(0))
    options = dict(report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True, dataloader_pin_memory=False)
    settings = transformers.TrainingArguments(
        folder,
        per_device_train_batch_size=ROWS,
        max_steps=STEPS,
        logging_steps=1,
        learning_rate=1e-2,
        **options,
        **arguments,
    )
    data = [{"input_ids": row, "labels": row} for row in tokens]
    trainer = transformers.Trainer(model=model, args=settings, train_dataset=data)
    trainer.train()
    return trainer


def losses(trainer) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.parametrize("changes", [{}, dict(torch_compile_mode="max-autotune"), dict(gradient_accumulation_steps=2)])
def test_trainer_by_name(tmp_path, changes):
    wanted = trained(tmp_path, llama(), **{k: v for k, v in changes.items() if k != "torch_compile_mode"})
    with recording() as records:
        actual = trained(tmp_path, llama(), **BY_NAME, **changes)
    check_ran(records)
    assert len(losses(actual)) == STEPS
    torch.testing.assert_close(losses(actual), losses(wanted), rtol=1e-4, atol=1e-5)
    actual.save_model(tmp_path / "saved")  # under the names of the model that is not compiled
    loaded = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "saved")
    torch.testing.assert_close(loaded.state_dict(), wanted.model.state_dict(), rtol=1e-3, atol=1e-4)


def test_trainer_with_a_model_compiled_in_place(tmp_path):
    """Needs no name: accelerate's list does not matter."""
    wanted = losses(trained(tmp_path, llama()))
    model = llama()
    model.compile(backend="ark", options={"threads": 1})
    with recording() as records:
        actual = losses(trained(tmp_path, model))
    check_ran(records)
    torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=1e-5)


def accelerated(**arguments) -> list[float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.Linear(32, 4))
    accelerator = accelerate.Accelerator(cpu=True, **arguments)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    found = []
    for _ in range(STEPS):
        loss = model(torch.randn(6, 12)).square().mean()
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        found.append(float(loss.detach()))
    return found


@pytest.mark.parametrize("mixed", ["no", "bf16"])
def test_accelerator_by_name(mixed):
    wanted = accelerated(mixed_precision=mixed)
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    with recording() as records:
        actual = accelerated(mixed_precision=mixed, dynamo_backend="ark")
    check_ran(records)
    limit = 1e-5 if mixed == "no" else 2e-2
    torch.testing.assert_close(actual, wanted, rtol=limit, atol=limit)


def test_other_names_stay_errors():
    from accelerate.utils import DynamoBackend

    ark_torch.accelerate.register()
    assert DynamoBackend("ARK") is DynamoBackend("ARK") and DynamoBackend("ARK").value == "ARK"
    assert DynamoBackend("INDUCTOR") is DynamoBackend.INDUCTOR
    with pytest.raises(ValueError, match="'BARK' is not a valid DynamoBackend"):
        DynamoBackend("BARK")
