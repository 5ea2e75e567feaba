"""Data parallel training with DistributedDataParallel over the backend `ark`: gradients travel while the backward runs.

torchrun --nproc-per-node=2 examples/train_ddp.py --steps 50
"""

import argparse
import os
import time

import torch
import torch.distributed as dist

import ark_torch.distributed as ark


class Classifier(torch.nn.Module):
    def __init__(self, width: int, depth: int):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(depth))
        self.head = torch.nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + torch.nn.functional.gelu(layer(x))
        return self.head(x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="ark", help="ark, nccl or gloo")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--depth", type=int, default=8)
    args = parser.parse_args()
    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    on_gpus = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cuda", local) if on_gpus else torch.device("cpu")
    if on_gpus:
        torch.cuda.set_device(device)
    dist.init_process_group(args.backend)

    torch.manual_seed(0)
    model = Classifier(args.width, args.depth).to(device)
    model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[local] if on_gpus else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(rank)
    centres = torch.randn(10, args.width, generator=torch.Generator().manual_seed(7)) * 0.3

    begin = time.perf_counter()
    for step in range(args.steps):
        labels = torch.randint(10, (64,), generator=generator)
        data = (centres[labels] + torch.randn(64, args.width, generator=generator)).to(device)
        loss = torch.nn.functional.cross_entropy(model(data), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0 or step + 1 == args.steps:
            mean = loss.detach().clone()
            dist.all_reduce(mean, op=dist.ReduceOp.AVG if on_gpus else dist.ReduceOp.SUM)
            mean = mean.item() if on_gpus else mean.item() / dist.get_world_size()
            if rank == 0:
                print(f"step {step}: loss {mean:.4f}")
    if rank == 0:
        print(f"{args.steps} steps in {time.perf_counter() - begin:.2f} s; handed to NCCL: {ark.delegated_calls()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
