"""accelerate (and transformers' Trainer, which stands on it) keeps a list of the backends of torch.compile:
`register()` adds "ark" to it."""

from __future__ import annotations

_NAME = "ARK"


def register() -> None:
    """From now on `Accelerator(dynamo_backend="ark")` and `TrainingArguments(torch_compile_backend="ark")` work in
    this process. Idempotent. Needs accelerate."""
    from accelerate.utils import DynamoBackend

    if _NAME in DynamoBackend:
        return
    member = str.__new__(DynamoBackend, _NAME)
    member._name_ = member._value_ = _NAME
    setattr(DynamoBackend, _NAME, member)  # Python before 3.11.4 copies a member by its name
    others = DynamoBackend._missing_

    def missing(_cls: type, value: object) -> object:
        """Called by the enumeration for a value that it does not list."""
        return member if value == _NAME else others(value)

    DynamoBackend._missing_ = classmethod(missing)


__all__ = ["register"]
