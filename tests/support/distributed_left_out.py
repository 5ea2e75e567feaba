"""Which of PyTorch's distributed tests do not run on the backend `ark`, and why."""

from __future__ import annotations

NEEDS_GPUS = "looks up the GPU of its rank although it sends no CUDA tensor"
GLOO_WORDS = "asks for Gloo's words in the error; tests/distributed/test_process_group.py has ark's"
BY_NAME = "makes its model by the backend's name (gloo, nccl), and none for another"

# On any device.
LEFT_OUT = {
    "test_accumulate_gradients_no_sync": BY_NAME,
    "test_accumulate_gradients_no_sync_allreduce_hook": BY_NAME,
    "test_accumulate_gradients_no_sync_allreduce_with_then_hook": BY_NAME,
    "test_accumulate_gradients_no_sync_grad_is_view": BY_NAME,
    "test_barrier_timeout_full_group": GLOO_WORDS,
    "test_barrier_timeout_global": GLOO_WORDS,
    "test_barrier_timeout_group": GLOO_WORDS,
    "test_ddp_create_graph": "leaves the ranks at different places after its error",
    "test_ddp_logging_data_cpu": "compares the backend's name with gloo",
    "test_sparse_all_reduce_sum": "runs for gloo alone; test_process_group_faults.py has what ark hands to it",
    "test_sparse_all_reduce_sum_cuda": "runs for gloo alone",
}
# Where there are no GPUs.
LEFT_OUT_ON_CPU = {
    "test_batch_isend_irecv_mixed_backend_err": "makes an NCCL group",
    "test_batch_isend_irecv_op_err": NEEDS_GPUS,
    "test_batch_isend_irecv_op_list_err": "leaves the ranks at different places after its error",
    "test_SyncBatchNorm_process_group": "needs torchvision",
}
# With a number of ranks other than four.
LEFT_OUT_BUT_FOR_FOUR = {"test_new_subgroups_with_group_param": "names ranks up to 3, for a world of 4"}
# Families: a part of the name, and why.
FAMILIES = {"monitored_barrier": "only Gloo has monitored barriers"}
FAMILIES_ON_CPU = {"cuda": "CUDA tensors", "nccl": "CUDA tensors"}


def why_left_out(test: str, on_gpus: bool, world: int) -> str:
    """Empty if the test runs."""
    names, families = dict(LEFT_OUT), dict(FAMILIES)
    if not on_gpus:
        names |= LEFT_OUT_ON_CPU
        families |= FAMILIES_ON_CPU
    if world != 4:
        names |= LEFT_OUT_BUT_FOR_FOUR
    return names.get(test) or next((why for part, why in families.items() if part in test), "")
